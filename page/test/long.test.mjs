// The long run: 1,490 lines, 9 MB.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, test } from "node:test";

import { open, quit, recorded, Server } from "./support.mjs";

after(quit);

/** What says only that something is going on is no step. */
const isStep = (line) => JSON.parse(line).subtype !== "status";
const LINES = recorded("long-refactor");
const STEPS = LINES.filter(isStep);

test("a long run opens whole, and only what can be seen is in the document", async (context) => {
  const server = await Server.start();
  try {
    await server.ingest("long", LINES);
    // A first visit has the files of the page in the browser's memory.
    const view = await open(server.base);
    await view.until(() => document.querySelector('[data-key="long"]') !== null);
    const took = await view.page.evaluate(async () => {
      const begin = performance.now();
      document.querySelector('[data-key="long"] a').click();
      const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
      let first;
      while (document.querySelector(".run-title .connection")?.dataset.state !== "ended") {
        if (first === undefined && document.querySelector(".transcript-body > article") !== null) first = performance.now() - begin;
        await frame();
      }
      await frame();
      return { first, whole: performance.now() - begin };
    });
    context.diagnostic(`the first rows were there after ${Math.round(took.first)} ms, all after ${Math.round(took.whole)} ms`);
    await view.sees(`${STEPS.length} steps`, ".glance-facts");
    await view.sees("634", ".glance-facts");
    await view.shot("long-run");

    const most = await view.page.evaluate(async () => {
      const frame = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
      const scroller = document.querySelector(".transcript");
      let most = 0;
      let slowest = 0;
      while (scroller.scrollTop + scroller.clientHeight < scroller.scrollHeight - 2) {
        const begin = performance.now();
        scroller.scrollTop += scroller.clientHeight * 0.9;
        await frame();
        slowest = Math.max(slowest, performance.now() - begin);
        most = Math.max(most, document.querySelectorAll(".transcript-body > article").length);
      }
      return { most, slowest };
    });
    context.diagnostic(`at most ${most.most} rows in the document; the slowest of two frames took ${Math.round(most.slowest)} ms`);
    assert.ok(most.most < 120, `${most.most} rows`);

    // Every row is reached, and numbered without a hole.
    const { rows, last } = await view.transcript();
    assert.equal(rows.length, last);

    // Sub-agents are folded; what is looked for comes out of them.
    const inside = await view.page.evaluate(() => document.querySelectorAll(".depth1").length);
    assert.equal(inside, 0);
    const line = LINES.map((line) => JSON.parse(line)).find((line) => line.parent_tool_use_id && line.type === "assistant" && line.message.content[0]?.type === "text");
    const words = line.message.content[0].text.slice(0, 60);
    await view.search(words);
    await view.until(() => /^1 of \d+$/.test(document.querySelector(".found")?.textContent ?? ""));
    await view.until(() => document.querySelector("article.selected.depth1") !== null);
    await view.sees(words, "article.selected");
    await view.shot("long-run-search");
    await view.closeSearch();

    // The timeline leads to the call that it shows.
    const box = await view.page.locator(".timeline canvas").boundingBox();
    const failed = await view.page.evaluate(() => {
      const canvas = document.querySelector(".timeline canvas");
      const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const probe = document.createElement("canvas").getContext("2d");
      probe.fillStyle = getComputedStyle(canvas).getPropertyValue("--bad").trim();
      probe.fillRect(0, 0, 1, 1);
      const [red, green, blue] = probe.getImageData(0, 0, 1, 1).data;
      for (let at = 0; at < width * height; at += 1) {
        if (data[at * 4] === red && data[at * 4 + 1] === green && data[at * 4 + 2] === blue) return { x: (at % width) / width, y: Math.floor(at / width) / height };
      }
    });
    assert.ok(failed !== undefined, "no failed call is drawn");
    await view.page.mouse.click(box.x + failed.x * box.width + 1, box.y + failed.y * box.height + 3);
    await view.until(() => document.querySelector("article.selected .tool.failed") !== null);
    await view.close();
  } finally {
    await server.stop();
  }
});

test("a run is downloaded as it was recorded, letter for letter", async () => {
  const server = await Server.start();
  try {
    const odd = '{"type":"assistant","message":{"id":"m","content":[{"type":"text","text":"n"}]},"n":12345678901234567890,"f":1.0,"u":"\\u00e9","uuid":"x1"}';
    const lines = [...STEPS, odd];
    await server.ingest("long", [...LINES, odd]);
    const view = await open(server.base, { run: "long" });
    await view.state("ended");
    const [file] = await Promise.all([view.page.waitForEvent("download"), view.page.click(".tools button:has-text('NDJSON')")]);
    assert.equal(file.suggestedFilename(), "long.ndjson");
    const got = readFileSync(await file.path(), "utf8");
    assert.ok(got === `${lines.join("\n")}\n`, `${got.length} characters in place of ${lines.join("\n").length + 1}`);
    await view.close();
  } finally {
    await server.stop();
  }
});
