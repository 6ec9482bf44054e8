// The first view: the list of runs, live; what the page is served with; keys; accessibility.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { after, test } from "node:test";

import { CUT, INIT, open, quit, recorded, RESULT, said, Server } from "./support.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

after(quit);

/** What axe finds that is serious. The policy of the page allows no script but its own, so the check runs outside of it. */
async function serious(view) {
  const session = await view.context.newCDPSession(view.page);
  const { executionContextId } = await isolated(session);
  await evaluate(session, executionContextId, `${AXE}; true`);
  const { violations } = await evaluate(session, executionContextId, "axe.run(document, { resultTypes: ['violations'] })");
  const found = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  return found.map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.html.slice(0, 200)} (${node.failureSummary})`).join(" | ")}`);
}

async function isolated(session) {
  const { frameTree } = await session.send("Page.getFrameTree");
  return await session.send("Page.createIsolatedWorld", { frameId: frameTree.frame.id });
}

async function evaluate(session, contextId, expression) {
  const { result, exceptionDetails } = await session.send("Runtime.evaluate", { contextId, expression, awaitPromise: true, returnByValue: true });
  assert.equal(exceptionDetails, undefined, JSON.stringify(exceptionDetails)?.slice(0, 500));
  return result.value;
}

const statusOf = (run) => [...document.querySelectorAll(".list-row[data-key]")].find((row) => row.dataset.key === run)?.querySelector(".status")?.textContent;

test("the list shows runs as they come, go on and end, without a reload", async () => {
  const server = await Server.start();
  try {
    await server.ingest("done", recorded("fix-failing-test"));
    await server.ingest("broken", recorded("failed-run"), 1);
    const view = await open(server.base);
    await view.until((run) => document.querySelector(`[data-key="${run}"]`) !== null, "done");
    await view.page.evaluate(() => (window.sameDocument = true));
    await view.sees("I'll run the test suite first to see what fails.", '[data-key="done"]');
    await view.sees("$0.212", '[data-key="done"]');
    await view.sees("1 min 32 s", '[data-key="done"]');
    await view.sees("The run was interrupted while a tool was executing.", '[data-key="broken"]');
    assert.equal(await view.page.evaluate(statusOf, "done"), "completed");
    assert.equal(await view.page.evaluate(statusOf, "broken"), "error");

    await server.send("going", [INIT, said("A first word.")]);
    await view.until((run) => document.querySelector(`[data-key="${run}"] .status`)?.textContent === "running", "going");
    await view.sees("A first word.", '[data-key="going"]');
    const steps = (count) => document.querySelector('[data-key="going"] .c-steps')?.textContent === count;
    await view.until(steps, "2");
    await server.send("going", [said("A second.")], 2);
    await view.until(steps, "3");
    await view.shot("list");
    await server.send("going", [RESULT], 3);
    await server.end("going");
    await view.until((run) => document.querySelector(`[data-key="${run}"] .status`)?.textContent === "completed", "going");
    assert.equal(await view.page.evaluate(() => window.sameDocument), true);

    await view.page.fill("#filter", "interrupted while");
    await view.until(() => document.querySelectorAll(".list-row[data-key]").length === 1 && document.querySelector('[data-key="broken"]') !== null);
    await view.page.fill("#filter", "");
    await view.page.click(".kinds button:has-text('Failed')");
    await view.until(() => document.querySelectorAll(".list-row[data-key]").length === 1 && document.querySelector('[data-key="broken"]') !== null);
    await view.close();
  } finally {
    await server.stop();
  }
});

test("the page is served with a strict policy, and only where it is wanted", async () => {
  const server = await Server.start();
  try {
    const answer = await fetch(server.base);
    assert.equal(answer.status, 200);
    const policy = answer.headers.get("content-security-policy");
    for (const part of ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "require-trusted-types-for 'script'"]) {
      assert.ok(policy.includes(part), policy);
    }
    assert.ok(!/unsafe|\*|https?:/.test(policy), policy);
    assert.equal(answer.headers.get("x-content-type-options"), "nosniff");
    assert.equal(answer.headers.get("referrer-policy"), "no-referrer");
    const again = await fetch(server.base, { headers: { "if-none-match": answer.headers.get("etag") } });
    assert.equal(again.status, 304);
  } finally {
    await server.stop();
  }
  const off = await Server.start({ toml: "[page]\nenabled = false\n" });
  try {
    assert.equal((await fetch(off.base)).status, 404);
    assert.equal((await fetch(`${off.base}/v1/agents/runs`)).status, 200);
  } finally {
    await off.stop();
  }
});

test("keys lead from the list into a run, through it and back", async () => {
  const server = await Server.start();
  try {
    await server.ingest("older", recorded("failed-run"), 1);
    await server.ingest("newer", recorded("fix-failing-test"));
    const view = await open(server.base);
    const { keyboard } = view.page;
    await view.until(() => document.querySelectorAll(".list-row[data-key]").length === 2);
    await keyboard.press("/");
    await view.until(() => document.activeElement?.id === "filter");
    await keyboard.type("newer");
    await view.until(() => document.querySelectorAll(".list-row[data-key]").length === 1);
    await keyboard.press("Escape");
    await keyboard.press("Escape");
    await view.until(() => document.querySelectorAll(".list-row[data-key]").length === 2);
    await keyboard.press("j");
    await view.until(() => document.querySelector(".list-row.chosen")?.dataset.key === "newer");
    await keyboard.press("j");
    await view.until(() => document.querySelector(".list-row.chosen")?.dataset.key === "older");
    await keyboard.press("k");
    await keyboard.press("Enter");
    await view.until(() => location.hash === "#/runs/newer");
    await view.state("ended");
    const selected = () => document.querySelector("article.selected")?.getAttribute("aria-posinset");
    await keyboard.press("j");
    await view.until((at) => document.querySelector("article.selected")?.getAttribute("aria-posinset") === at, "1");
    for (let times = 0; times < 4; times += 1) await keyboard.press("j");
    await view.until((at) => document.querySelector("article.selected")?.getAttribute("aria-posinset") === at, "5");
    await keyboard.press("Enter");
    await view.until(() => document.querySelector("article.selected .tool-head")?.getAttribute("aria-expanded") === "true");
    await view.sees("assertion `left == right` failed", "article.selected");
    assert.equal(await view.page.evaluate(selected), "5");
    await keyboard.press("/");
    await view.until(() => document.activeElement?.id === "search");
    await keyboard.type("div_euclid");
    await view.until(() => /^1 of \d+$/.test(document.querySelector(".found")?.textContent ?? ""));
    const first = await view.page.evaluate(selected);
    await keyboard.press("Enter");
    await view.until((before) => document.querySelector("article.selected")?.getAttribute("aria-posinset") !== before, first);
    await view.until(() => CSS.highlights.get("found")?.size > 0);
    await view.closeSearch();
    await keyboard.press("G");
    await view.until(() => document.querySelector('.tools [aria-pressed="true"]')?.textContent.includes("Follow"));
    await keyboard.press("g");
    await view.until(() => document.querySelector(".transcript").scrollTop === 0);
    await keyboard.press("]");
    await view.until(() => location.hash === "#/runs/older");
    await keyboard.press("?");
    await view.until(() => document.querySelector("dialog.help")?.open === true);
    await keyboard.press("Escape");
    await view.until(() => document.querySelector("dialog.help")?.open !== true);
    await keyboard.press("t");
    await view.until(() => document.documentElement.dataset.theme === "light");
    await keyboard.press("Escape");
    await view.until(() => document.querySelector(".list-main") !== null);
    await view.close();
  } finally {
    await server.stop();
  }
});

for (const colorScheme of ["light", "dark"]) {
  test(`nothing serious stands in the way of those who hear or tap the page (${colorScheme})`, async () => {
    const server = await Server.start();
    try {
      await server.ingest("broken", recorded("failed-run"), 1);
      await server.ingest("done", recorded("fix-failing-test"));
      await server.send("going", [INIT, said("A first word.")]);
      for (const [name, viewport] of [
        ["wide", { width: 1440, height: 900 }],
        ["narrow", { width: 390, height: 844 }],
      ]) {
        const view = await open(server.base, { colorScheme, viewport });
        await view.sees("A first word.", '[data-key="going"]');
        assert.deepEqual(await serious(view), []);
        await view.shot(`list-${name}-${colorScheme}`);
        await view.page.goto(`${server.base}/#/runs/done`);
        await view.state("ended");
        assert.deepEqual(await serious(view), []);
        await view.shot(`run-${name}-${colorScheme}`);
        await view.page.keyboard.press("e");
        await view.until(() => document.querySelectorAll(".diff").length > 0 || document.querySelectorAll(".output").length > 0);
        await view.search("split");
        await view.until(() => / of /.test(document.querySelector(".found")?.textContent ?? ""));
        assert.deepEqual(await serious(view), []);
        await view.shot(`run-unfolded-${name}-${colorScheme}`);
        await view.page.goto(`${server.base}/#/runs/broken`);
        await view.sees("Failed", ".outcome");
        assert.deepEqual(await serious(view), []);
        await view.page.keyboard.press("?");
        await view.until(() => document.querySelector("dialog.help")?.open === true);
        assert.deepEqual(await serious(view), []);
        await view.shot(`help-${name}-${colorScheme}`);
        await view.close();
      }
    } finally {
      await server.stop();
    }
  });
}

test("a failed run says why, and shows which call failed", async () => {
  const server = await Server.start();
  try {
    await server.ingest("broken", recorded("failed-run"), 1);
    const view = await open(server.base, { run: "broken" });
    await view.state("ended");
    await view.sees("Failed", ".outcome.failed");
    await view.sees("The run was interrupted while a tool was executing.", ".outcome.failed");
    await view.sees("6 in all, 3 failed", ".facts-panel");
    await view.sees("Permission to use Bash with this command was denied.", ".transcript");
    await view.sees("$0.063", ".facts-panel");
    assert.match(await view.page.title(), /^✕ /);
    await view.shot("run-failed");
    await view.page.goto(`${server.base}/#/runs/nobody`);
    await view.sees("There is no such run.");
    view.wrong = view.wrong.filter((line) => !/404/.test(line));
    await view.close();
  } finally {
    await server.stop();
  }
});

test("fifty runs at once are all live, and few of them are in the document", async () => {
  const server = await Server.start();
  try {
    const lines = recorded("fix-failing-test");
    const runs = Array.from({ length: 50 }, (_, at) => `run-${at}`);
    await Promise.all(runs.map((run) => server.send(run, lines.slice(0, 4))));
    const view = await open(server.base);
    await view.until(() => document.querySelector(".kinds button:nth-child(2) .n")?.textContent === "50");
    await view.until(() => [...document.querySelectorAll(".list-row[data-key] .c-steps")].every((cell) => cell.textContent === "4"));
    for (let from = 4; from < lines.length; from += 13) await Promise.all(runs.map((run) => server.send(run, lines.slice(from, from + 13), from)));
    await view.until(() => [...document.querySelectorAll(".list-row[data-key] .c-steps")].every((cell) => cell.textContent === "56"));
    await view.shot("fifty-runs");
    await Promise.all(runs.map((run) => server.end(run)));
    await view.until(() => document.querySelector(".kinds button:nth-child(3) .n")?.textContent === "50");
    await view.until(() => [...document.querySelectorAll(".list-row[data-key] .status")].every((status) => status.textContent === "completed"));
    assert.ok((await view.page.evaluate(() => document.querySelectorAll(".list-row[data-key]").length)) < 45);
    await view.close();
  } finally {
    await server.stop();
  }
});

test("a list that could not be asked for says so, and has no hole afterwards", async () => {
  const server = await Server.start();
  try {
    const runs = (from, to) => Array.from({ length: to - from }, (_, at) => `run-${String(from + at).padStart(4, "0")}`);
    for (const run of runs(0, 3)) await server.ingest(run, [INIT, said(`I am ${run}.`), RESULT]);
    const view = await open(server.base, { allow: CUT });
    await view.until(() => document.querySelectorAll(".list-row[data-key]").length === 3);
    await view.page.route("**/v1/agents/runs?*", (route) => route.abort());
    await view.until(() => document.querySelector("[data-list]")?.dataset.list === "waiting");
    await view.sees("The list is not up to date", ".list-state");
    await Promise.all(runs(3, 260).map((run) => server.ingest(run, [INIT, said(`I am ${run}.`), RESULT])));
    await view.page.unroute("**/v1/agents/runs?*");
    await view.until(() => document.querySelector("[data-list]")?.dataset.list === "live");
    await view.page.fill("#filter", "run-");
    await view.until(() => document.querySelector(".kinds button .n")?.textContent === "260");
    await view.close();
  } finally {
    await server.stop();
  }
});

test("of more than a thousand runs all can be scrolled to and found, and few are in the document", async () => {
  const server = await Server.start();
  try {
    const COUNT = 1200;
    let next = 0;
    const send = async () => {
      while (next < COUNT) {
        const run = `run-${String(next++).padStart(5, "0")}`;
        await server.ingest(run, [INIT, said(`I am ${run}.`), RESULT]);
      }
    };
    await server.ingest("the-oldest", [INIT, said("I was first."), RESULT]);
    await Promise.all(Array.from({ length: 16 }, send));
    const view = await open(server.base);
    await view.until(() => document.querySelectorAll(".list-row[data-key]").length > 10);
    await view.page.fill("#filter", "the-oldest");
    await view.until(() => document.querySelectorAll(".list-row[data-key]").length === 1 && document.querySelector('[data-key="the-oldest"]') !== null);
    await view.page.fill("#filter", "");
    await view.until((count) => document.querySelector(".kinds button .n")?.textContent === String(count), COUNT + 1);
    await view.page.evaluate(() => (document.querySelector(".list-rows").scrollTop = 1e9));
    await view.until(() => document.querySelector('[data-key="the-oldest"]') !== null);
    await view.sees("I was first.", '[data-key="the-oldest"]');
    assert.ok((await view.page.evaluate(() => document.querySelectorAll(".list-row[data-key]").length)) < 45);
    await view.close();
  } finally {
    await server.stop();
  }
});


test("runs that are not kept any more leave the list, and who looks at one is told", async () => {
  const server = await Server.start({ toml: "[log.retention]\nruns_max = 3\nsweep_every_ms = 50\n" });
  try {
    for (const run of ["a", "b", "c"]) await server.ingest(run, [INIT, said(`I am ${run}.`), RESULT]);
    const view = await open(server.base);
    const shown = (runs) => [...document.querySelectorAll(".list-row[data-key]")].map((row) => row.dataset.key).join(" ") === runs;
    await view.until(shown, "c b a");
    await server.ingest("d", [INIT, said("I am d."), RESULT]);
    await view.until(shown, "d c b");
    await view.until(() => document.querySelector(".kinds button .n")?.textContent === "3");
    await view.page.goto(`${server.base}/#/runs/a`);
    await view.sees("There is no such run.");
    view.wrong = view.wrong.filter((line) => !/404/.test(line));
    await view.close();
  } finally {
    await server.stop();
  }
});

test("what is copied is what was said, character for character", async () => {
  const server = await Server.start();
  try {
    const odd = "A  line\twith `marks`, \u202ehidden ones\u202c,\n\n- and 🌍.";
    await server.ingest("r", [INIT, said(odd), RESULT]);
    const view = await open(server.base, { run: "r", permissions: ["clipboard-read", "clipboard-write"] });
    await view.state("ended");
    const copied = () => view.page.evaluate(() => navigator.clipboard.readText());
    await view.page.hover(".kind-text .said");
    await view.page.click(".kind-text .copy");
    await view.until(() => document.querySelector('[role="status"][aria-live="polite"]').textContent === "copied");
    assert.equal(await copied(), odd);
    await view.page.click(".run-id .copy");
    await view.until(async () => (await navigator.clipboard.readText()) === "r");
    await view.close();
  } finally {
    await server.stop();
  }
});

test("thinking, input and output are folded until they are asked for", async () => {
  const server = await Server.start();
  try {
    await server.ingest("done", recorded("fix-failing-test"));
    const view = await open(server.base, { run: "done" });
    await view.state("ended");
    const count = (what) => view.page.evaluate((what) => document.querySelectorAll(what).length, what);
    assert.ok((await count(".kind-thinking")) > 0 && (await count(".tool")) > 0);
    assert.deepEqual([await count(".kind-thinking .fold-body"), await count(".tool-body")], [0, 0]);
    await view.page.click(".kind-thinking .fold-head");
    await view.sees("so I run the suite before", ".kind-thinking .fold-body");
    await view.page.click(".tool .tool-head");
    await view.until(() => document.querySelectorAll(".tool-body").length === 1);
    await view.page.keyboard.press("e");
    await view.until(() => document.querySelectorAll(".tool-body, .fold-body").length === 0);
    // A message that says when it was, or which step it is where all was written down at once.
    assert.match(await view.page.textContent(".kind-thinking .when"), /^\s*#\d+\s*$/);
    await view.close();
  } finally {
    await server.stop();
  }
});
