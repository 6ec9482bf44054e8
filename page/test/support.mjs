// A real server, a real browser, and ways to wait for what is to be seen. Nothing here waits for a time to pass.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

import { chromium } from "playwright-core";

const PROGRAM = process.env.RUNCAST_TEST_PROGRAM;
export const CHROMIUM = process.env.RUNCAST_TEST_CHROMIUM ?? "/usr/bin/chromium";
const SHOTS = process.env.RUNCAST_TEST_SHOTS ?? fileURLToPath(new URL("../../target/page", import.meta.url));
const RUNS = fileURLToPath(new URL("../../tests/fixtures/runs", import.meta.url));
const FAULTS = fileURLToPath(new URL("../../tests/fixtures/faults", import.meta.url));
/** Nothing is waited for longer: then the test fails. */
export const LIMIT_MS = Number(process.env.RUNCAST_TEST_LIMIT_MS ?? 60_000);
export const ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

/** The lines of a recorded run. */
export function recorded(name) {
  return readFileSync(join(RUNS, `${name}.ndjson`), "utf8").trimEnd().split("\n");
}

export function broken(name) {
  return readFileSync(join(FAULTS, `${name}.ndjson`), "utf8").trimEnd().split("\n");
}

/** A running `runcast serve`. */
export class Server {
  #child;
  #folder = mkdtempSync(join(tmpdir(), "runcast-page-"));
  #options;
  base;

  static async start(options = {}) {
    const server = new Server();
    server.#options = options;
    await server.#spawn("127.0.0.1:0");
    return server;
  }

  async #spawn(listen) {
    const { toml = "", env = {}, program = PROGRAM } = this.#options;
    assert.ok(program, "RUNCAST_TEST_PROGRAM is not set");
    const config = join(this.#folder, "config.toml");
    writeFileSync(config, toml);
    const folder = ["--data", join(this.#folder, "data"), "--config", config];
    this.#child = spawn(program, ["serve", "--listen", listen, "--admin-listen", "127.0.0.1:0", ...folder], {
      env: { ...process.env, ...env },
      stdio: ["ignore", "ignore", "pipe"],
    });
    const said = [];
    const lines = createInterface({ input: this.#child.stderr });
    this.base = await new Promise((resolve, reject) => {
      lines.on("line", (line) => {
        said.push(line);
        const address = parsed(line)?.fields?.address;
        if (address !== undefined) resolve(`http://${address}`);
      });
      this.#child.on("exit", () => reject(new Error(`the server ended before it served:\n${said.join("\n")}`)));
    });
  }

  get port() {
    return Number(new URL(this.base).port);
  }

  /** Ends it as `kill -9` does. */
  async kill() {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const ended = new Promise((resolve) => this.#child.once("exit", resolve));
    this.#child.kill("SIGKILL");
    await ended;
  }

  /** Starts it again on its data and its port. */
  async restart() {
    await this.kill();
    await this.#spawn(new URL(this.base).host);
  }

  async stop() {
    await this.kill();
    rmSync(this.#folder, { recursive: true, force: true });
  }

  #headers() {
    const { token } = this.#options;
    return token === undefined ? {} : { authorization: `Bearer ${token}` };
  }

  /** Sends lines in, the first being number `from`. */
  async send(run, lines, from = 0) {
    const url = `${this.base}/v1/runs/${encodeURIComponent(run)}/events?session=tests&from=${from}`;
    const body = lines.map((line) => `${typeof line === "string" ? line : JSON.stringify(line)}\n`).join("");
    const answer = await fetch(url, { method: "POST", body, headers: this.#headers() });
    assert.ok(answer.ok, `${answer.status}: ${await answer.text()}`);
  }

  async end(run, exitStatus = 0) {
    const body = JSON.stringify({ session: "tests", exit_status: exitStatus });
    const answer = await fetch(`${this.base}/v1/runs/${encodeURIComponent(run)}/end`, { method: "POST", body, headers: this.#headers() });
    assert.ok(answer.ok, `${answer.status}: ${await answer.text()}`);
  }

  /** A run that is over. */
  async ingest(run, lines, exitStatus = 0) {
    await this.send(run, lines);
    await this.end(run, exitStatus);
  }
}

function parsed(line) {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}

/** What stands between a browser and a server, and can be cut. */
export class Link {
  #server;
  #sockets = new Set();
  #port;
  #to;
  isCut = false;
  /** How many connections asked for a WebSocket. */
  upgrades = 0;
  /** The heads of the requests that asked for one. */
  asked = [];
  base;

  static async to(server) {
    const link = new Link();
    link.lead(server);
    link.#server = createServer((client) => link.#serve(client, link.#to));
    await new Promise((resolve) => link.#server.listen(0, "127.0.0.1", resolve));
    link.#port = link.#server.address().port;
    link.base = `http://127.0.0.1:${link.#port}`;
    return link;
  }

  #serve(client, server) {
    if (this.isCut) {
      client.destroy();
      return;
    }
    const upstream = connect(server.port, "127.0.0.1");
    for (const [from, to] of [
      [client, upstream],
      [upstream, client],
    ]) {
      this.#sockets.add(from);
      from.on("error", () => to.destroy());
      from.on("close", () => {
        this.#sockets.delete(from);
        to.destroy();
      });
    }
    client.on("data", (bytes) => {
      const head = bytes.toString("latin1");
      if (/^upgrade: websocket/im.test(head)) {
        this.upgrades += 1;
        this.asked.push(head);
        if (this.refuses) {
          client.end("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
          return;
        }
      }
      upstream.write(bytes);
    });
    upstream.pipe(client);
  }

  /** Whether WebSockets are refused, as some proxies do. */
  refuses = false;

  /** What comes from now on goes to this server. */
  lead(server) {
    this.#to = server;
  }

  /** Ends all connections; new ones are refused until it is mended. */
  cut() {
    this.isCut = true;
    for (const socket of this.#sockets) socket.destroy();
  }

  mend() {
    this.isCut = false;
  }

  /** What is connected stays so, and nothing comes through it any more; new connections are served. */
  freeze() {
    for (const socket of this.#sockets) socket.pause();
  }

  async stop() {
    this.cut();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

let browser;

export async function launch() {
  browser ??= await chromium.launch({ executablePath: CHROMIUM, args: ARGUMENTS });
  return browser;
}

export async function quit() {
  await browser?.close();
  browser = undefined;
}

/** A fresh profile's page, which notes everything that goes wrong in it. */
export async function open(base, options = {}) {
  const { run, path = run === undefined ? "/" : `/#/runs/${encodeURIComponent(run)}`, allow = [], ...more } = options;
  const context = await (await launch()).newContext({ viewport: { width: 1440, height: 900 }, acceptDownloads: true, ...more });
  context.setDefaultTimeout(LIMIT_MS);
  const page = await context.newPage();
  const wrong = [];
  const foreign = [];
  page.on("pageerror", (error) => wrong.push(`${error.name}: ${error.message}`));
  page.on("console", (message) => {
    if (message.type() !== "error" && message.type() !== "warning") return;
    if (!allow.some((allowed) => allowed.test(message.text()))) wrong.push(message.text());
  });
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(base) && !url.startsWith("data:") && !url.startsWith("blob:")) foreign.push(url);
  });
  page.on("websocket", (socket) => {
    if (!socket.url().startsWith(base.replace(/^http/, "ws"))) foreign.push(socket.url());
  });
  await page.goto(base + path);
  const view = new View(page, context, wrong, foreign);
  return view;
}

/** Connections that are cut leave such lines in the console; they are the browser's, not the page's. */
export const CUT = [/WebSocket connection to .* failed/, /Failed to load resource/];

export class View {
  constructor(page, context, wrong, foreign) {
    Object.assign(this, { page, context, wrong, foreign });
  }

  /** Waits until the page says so; `what` is a function that runs in the page. */
  async until(what, argument, name = String(what)) {
    try {
      await this.page.waitForFunction(what, argument, { timeout: LIMIT_MS, polling: 50 });
    } catch (error) {
      const text = await this.page.evaluate(() => document.body.innerText.slice(0, 3000)).catch(() => "");
      throw new Error(`never: ${name}\nThe page says:\n${text}\nand noted: ${this.wrong.join("; ")}`, { cause: error });
    }
  }

  async state(kind) {
    await this.until((kind) => document.querySelector(".run-title .connection")?.dataset.state === kind, kind, `the connection is ${kind}`);
  }

  async sees(text, where = "body") {
    await this.until(([text, where]) => (document.querySelector(where)?.innerText ?? "").includes(text), [text, where], `${where} says ${text}`);
  }

  /** Looks for a text in the run that is open. */
  async search(text) {
    await this.page.keyboard.press("/");
    await this.until(() => document.activeElement?.id === "search");
    await this.page.keyboard.type(text);
  }

  /** What stands below its bar moves up with it, and the keys go to the page again. */
  async closeSearch() {
    await this.page.keyboard.press("Escape");
    await this.until(() => document.querySelector(".search-bar") === null);
  }

  async shot(name) {
    mkdirSync(SHOTS, { recursive: true });
    await this.page.screenshot({ path: join(SHOTS, `${name}.png`) });
  }

  /** The texts of all rows of the transcript from first to last, as one reads them by scrolling. */
  async transcript() {
    return await this.page.evaluate(async () => {
      const scroller = document.querySelector(".transcript");
      const frame = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
      const seen = new Map();
      let last = 0;
      const look = () => {
        for (const row of document.querySelectorAll(".transcript-body > article")) {
          seen.set(Number(row.getAttribute("aria-posinset")), row.innerText);
          last = Number(row.getAttribute("aria-setsize"));
        }
      };
      scroller.scrollTop = 0;
      await frame();
      look();
      while (scroller.scrollTop + scroller.clientHeight < scroller.scrollHeight - 2) {
        scroller.scrollTop += scroller.clientHeight / 2;
        await frame();
        look();
      }
      look();
      return { rows: [...seen].sort(([a], [b]) => a - b).map(([, text]) => text), last };
    });
  }

  /** Nothing went wrong, and nobody else was asked for anything. */
  async close() {
    await this.context.close();
    assert.deepEqual(this.wrong, [], "the page notes errors");
    assert.deepEqual(this.foreign, [], "the page asks others");
  }
}

/** A line of the main thread that says a text. */
export function said(text, id = `msg-${Math.random()}`) {
  return { type: "assistant", message: { id, role: "assistant", content: [{ type: "text", text }] }, parent_tool_use_id: null, uuid: `u-${Math.random()}` };
}

export function delta(text) {
  return { type: "stream_event", event: { type: "content_block_delta", index: 0, delta: { type: "text_delta", text } }, parent_tool_use_id: null };
}

export function called(id, name, input, parent = null) {
  return { type: "assistant", message: { id: `m-${id}`, role: "assistant", content: [{ type: "tool_use", id, name, input }] }, parent_tool_use_id: parent, uuid: `u-${id}` };
}

export function answered(id, content, more = {}) {
  const { isError = false, twin, parent = null } = more;
  const block = { type: "tool_result", tool_use_id: id, content, ...(isError ? { is_error: true } : {}) };
  return { type: "user", message: { role: "user", content: [block] }, parent_tool_use_id: parent, uuid: `r-${id}`, ...(twin === undefined ? {} : { tool_use_result: twin }) };
}

export const INIT = { type: "system", subtype: "init", model: "claude-sonnet-4-6", cwd: "/home/dev/x", tools: ["Bash"], session_id: "s", uuid: "u-init" };
export const RESULT = { type: "result", subtype: "success", is_error: false, duration_ms: 1200, num_turns: 2, result: "All done.", total_cost_usd: 0.01, uuid: "u-result" };
