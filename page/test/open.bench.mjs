// How long a run of 1,490 lines and 9 MB takes to open: `node test/open.bench.mjs ROUNDS PROGRAM...`, the programs by turns.
// A measurement, no test: it is to have the machine for itself.

import { open, quit, recorded, Server } from "./support.mjs";

const [rounds, ...programs] = process.argv.slice(2);
const LINES = recorded("long-refactor");
const STEPS = LINES.filter((line) => JSON.parse(line).subtype !== "status").length;

/** Runs in the page: when the first row is drawn, when all steps are there and drawn, and when the last row is in view. */
function watch() {
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  window.opened = async (begin, steps) => {
    let first;
    const isWhole = () =>
      document.querySelector(".run-title .connection")?.dataset.state === "ended" && document.querySelector(".glance-facts")?.innerText.includes(`${steps} steps`);
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
  };
}

async function click(server) {
  const view = await open(server.base);
  await view.until(() => document.querySelector('[data-key="long"] a') !== null);
  await view.page.evaluate(watch);
  const took = await view.page.evaluate(async (steps) => {
    const begin = performance.now();
    document.querySelector('[data-key="long"] a').click();
    return await window.opened(begin, steps);
  }, STEPS);
  await view.close();
  return took;
}

/** The address of the run is opened in a new tab: the page itself is loaded too. */
async function visit(server) {
  const view = await open("about:blank", { path: "" });
  view.foreign.length = 0;
  await view.page.addInitScript(watch);
  await view.page.goto(`${server.base}/#/runs/long`, { waitUntil: "commit" });
  const took = await view.page.evaluate((steps) => window.opened(0, steps), STEPS);
  await view.context.close();
  return took;
}

const servers = [];
for (const program of programs) {
  const server = await Server.start({ program });
  await server.ingest("long", LINES);
  servers.push({ program, server, took: [] });
}
for (let round = 0; round < Number(rounds); round += 1) {
  for (const { server, took } of servers) took.push({ click: await click(server), visit: await visit(server) });
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
for (const { server } of servers) await server.stop();
await quit();
