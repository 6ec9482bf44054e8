// How long a run of 1,490 lines and 9 MB takes to open:
// `node --experimental-websocket test/open.bench.mjs ROUNDS PROGRAM...`, the programs by turns.
// A measurement, no test: it is to have the machine for itself. The browser is spoken to past Playwright, which has it copy
// every message of a WebSocket.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

import { ARGUMENTS, CHROMIUM, recorded, Server } from "./support.mjs";

const [rounds, ...programs] = process.argv.slice(2);
const LINES = recorded("long-refactor");
const STEPS = LINES.filter((line) => JSON.parse(line).subtype !== "status").length;

/** A browser with a fresh profile. */
class Browser {
  #folder = mkdtempSync(join(tmpdir(), "runcast-open-"));
  #child;
  #base;

  static async start() {
    const browser = new Browser();
    const own = [`--user-data-dir=${browser.#folder}`, "--remote-debugging-port=0", "--window-size=1440,900", "about:blank"];
    browser.#child = spawn(CHROMIUM, [...ARGUMENTS, ...own], { stdio: ["ignore", "ignore", "pipe"] });
    const lines = createInterface({ input: browser.#child.stderr });
    browser.#base = await new Promise((resolve) => {
      lines.on("line", (line) => {
        const address = /ws:\/\/(\S+?)\//.exec(line)?.[1];
        if (address !== undefined) resolve(`http://${address}`);
      });
    });
    return browser;
  }

  async open(url) {
    const { id, webSocketDebuggerUrl } = await (await fetch(`${this.#base}/json/new?${encodeURIComponent(url)}`, { method: "PUT" })).json();
    return { id, socket: await connected(webSocketDebuggerUrl) };
  }

  async close({ id, socket }) {
    socket.close();
    await fetch(`${this.#base}/json/close/${id}`);
  }

  async stop() {
    const ended = new Promise((resolve) => this.#child.once("exit", resolve));
    const { webSocketDebuggerUrl } = await (await fetch(`${this.#base}/json/version`)).json();
    await call(await connected(webSocketDebuggerUrl), "Browser.close");
    await ended;
    // Some of its processes write for a moment more.
    rmSync(this.#folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  }
}

async function connected(url) {
  const socket = new WebSocket(url);
  await new Promise((resolve, reject) => {
    socket.onopen = resolve;
    socket.onerror = reject;
  });
  return socket;
}

let asked = 0;

async function call(socket, method, params) {
  asked += 1;
  const id = asked;
  return await new Promise((resolve, reject) => {
    socket.addEventListener("message", ({ data }) => {
      const said = JSON.parse(data);
      if (said.id === id) (said.error === undefined ? resolve : reject)(said.result ?? new Error(said.error.message));
    });
    socket.send(JSON.stringify({ id, method, params }));
  });
}

/** Calls a function in the page. */
async function evaluate(socket, task, ...args) {
  const expression = `(${task})(${args.map((arg) => JSON.stringify(arg)).join(", ")})`;
  for (;;) {
    try {
      const { result, exceptionDetails } = await call(socket, "Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
      if (exceptionDetails !== undefined) throw new Error(JSON.stringify(exceptionDetails));
      return result.value;
    } catch (error) {
      // The page that was asked has just been left.
      if (!/context|navigated/.test(error.message)) throw error;
    }
  }
}

async function listed() {
  while (document.querySelector('[data-key="long"] a') === null) await new Promise((resolve) => requestAnimationFrame(resolve));
}

/** When the first row is drawn, when all steps are there and drawn, and when the last row is in view. */
async function opened(steps, isClick) {
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const begin = isClick ? performance.now() : 0;
  if (isClick) document.querySelector('[data-key="long"] a').click();
  let first;
  const isWhole = () =>
    document.querySelector(".run-title .connection")?.dataset.state === "ended" && document.querySelector(".glance-facts")?.textContent.includes(`${steps} steps`);
  while (!isWhole()) {
    if (first === undefined && document.querySelector(".transcript-body > article") !== null) first = performance.now() - begin;
    await frame();
  }
  await frame();
  const whole = performance.now() - begin;
  document.querySelector(".to-end").click();
  const isAtEnd = () => {
    const last = [...document.querySelectorAll(".transcript-body > article")].at(-1);
    return last?.getAttribute("aria-posinset") === last?.getAttribute("aria-setsize") && last.getBoundingClientRect().top < innerHeight;
  };
  while (!isAtEnd()) await frame();
  await frame();
  return { first: first ?? whole, whole, end: performance.now() - begin };
}

/** From the list, where the files of the page are there already. */
async function click(browser, server) {
  const tab = await browser.open(server.base);
  await evaluate(tab.socket, listed);
  const took = await evaluate(tab.socket, opened, STEPS, true);
  await browser.close(tab);
  return took;
}

/** The address of the run in a new tab: the page itself is loaded too. */
async function visit(browser, server) {
  const tab = await browser.open("about:blank");
  await call(tab.socket, "Page.navigate", { url: `${server.base}/#/runs/long` });
  const took = await evaluate(tab.socket, opened, STEPS, false);
  await browser.close(tab);
  return took;
}

const servers = [];
let browser;
try {
  for (const program of programs) {
    const server = await Server.start({ program });
    servers.push({ program, server, took: [] });
    await server.ingest("long", LINES);
  }
  for (let round = 0; round < Number(rounds); round += 1) {
    for (const { server, took } of servers) {
      browser = await Browser.start();
      // Not its very first page: a browser that has only just begun is busy with itself.
      const before = await browser.open(server.base);
      await evaluate(before.socket, listed);
      await browser.close(before);
      took.push({ visit: await visit(browser, server), click: await click(browser, server) });
      await browser.stop();
      browser = undefined;
    }
  }
} finally {
  await browser?.stop();
  for (const { server } of servers) await server.stop();
}

const spread = (numbers) => {
  const sorted = numbers.toSorted((a, b) => a - b).map((ms) => Math.round(ms));
  return `${sorted[0]} … ${sorted[Math.floor(sorted.length / 2)]} … ${sorted.at(-1)}`;
};
for (const { program, took } of servers) {
  console.log(`${program}, least, median and most of ${took.length} rounds, in ms:`);
  for (const how of ["click", "visit"]) {
    const part = (name) => spread(took.map((round) => round[how][name]));
    console.log(`  ${how}: first rows ${part("first")}, all ${part("whole")}, at the end ${part("end")}`);
  }
}
