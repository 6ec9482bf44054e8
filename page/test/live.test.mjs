// One run, live: text as it is written, and connections that are cut.

import assert from "node:assert/strict";
import { after, test } from "node:test";

import { answered, called, CUT, delta, INIT, Link, open, quit, recorded, RESULT, said, Server } from "./support.mjs";

after(quit);

const START = { type: "stream_event", event: { type: "message_start", message: { id: "m", role: "assistant", content: [] } }, parent_tool_use_id: null };

test("text is seen as it is written, calls as they start and end", async () => {
  const server = await Server.start();
  try {
    await server.send("r", [INIT, START, delta("The first words")]);
    const view = await open(server.base, { run: "r" });
    await view.state("live");
    await view.sees("The first words", ".kind-open");
    await server.send("r", [delta(", and more of them")], 3);
    await view.sees("The first words, and more of them", ".kind-open");
    await view.shot("live-text");
    await server.send("r", [said("The first words, and more of them.", "m")], 4);
    await view.sees("The first words, and more of them.", ".kind-text");
    assert.equal(await view.page.evaluate(() => document.querySelectorAll(".kind-open").length), 0);

    await server.send("r", [called("c1", "Bash", { command: "sleep 1; echo done" })], 5);
    await view.sees("sleep 1; echo done", ".tool.running");
    await server.send("r", [answered("c1", "done", { twin: { stdout: "done\n", stderr: "a warning", interrupted: false } })], 6);
    await view.sees("sleep 1; echo done", ".tool.ok");
    await view.page.click(".tool.ok .tool-head");
    await view.sees("done", ".tool.ok .output:not(.stderr):not(.command)");
    await view.sees("a warning", ".tool.ok .output.stderr");
    await server.send("r", [called("c2", "Bash", { command: "false" }), answered("c2", "Exit code 3\nboom", { isError: true })], 7);
    await view.sees("exit 3", ".tool.failed");
    await view.sees("boom", ".tool.failed");

    // A sub-agent that is at work is shown unfolded, below its call.
    await server.send("r", [called("t", "Task", { description: "look around", prompt: "look" }), called("c3", "Grep", { pattern: "needle" }, "t")], 9);
    await view.sees("needle", ".depth1");
    await view.sees("look around", ".tool.running");
    await server.send("r", [answered("c3", "hay", { parent: "t" }), answered("t", "found nothing")], 11);
    await view.sees("found nothing", ".tail");

    const patch = [{ oldStart: 1, oldLines: 1, newStart: 1, newLines: 1, lines: ["-old line", "+new line"] }];
    await server.send("r", [called("e", "Edit", { file_path: "/x.rs", old_string: "old line", new_string: "new line" }), answered("e", "ok", { twin: { filePath: "/x.rs", structuredPatch: patch } })], 13);
    await view.sees("+1 −1", ".transcript");
    await view.page.click(".tool-head:has-text('/x.rs')");
    await view.sees("old line", ".line.removed");
    await view.sees("new line", ".line.added");

    await server.send("r", [{ type: "system", subtype: "report", title: "A report", text: "All is well." }], 15);
    await view.sees("All is well.", ".report");
    await view.shot("live-tools");
    await server.send("r", [RESULT], 16);
    await server.end("r");
    await view.state("ended");
    await view.sees("Completed", ".outcome.ok");
    assert.match(await view.page.title(), /^✓ /);
    await view.close();
  } finally {
    await server.stop();
  }
});

/** Lines that are told apart, with live text before some of them. */
function story(count) {
  const lines = [INIT];
  for (let at = 0; at < count; at += 1) {
    if (at % 3 === 0) lines.push({ ...START, event: { ...START.event, message: { id: `m${at}`, role: "assistant", content: [] } } }, delta(`Word ${at} `), delta("is said."));
    lines.push(said(`Word ${at} is said.`, `m${at}`));
  }
  return [...lines, RESULT];
}

/** The texts of the story that the page shows, in order. */
async function words(view) {
  const { rows } = await view.transcript();
  return rows.map((row) => /Word (\d+) is said\./.exec(row)?.[1]).filter((word) => word !== undefined).map(Number);
}

const ALL = (count) => Array.from({ length: count }, (_, at) => at);

test("a connection that is cut again and again loses nothing, repeats nothing, and nothing that was there goes away", async () => {
  const server = await Server.start();
  const link = await Link.to(server);
  try {
    const COUNT = 40;
    const lines = story(COUNT);
    await server.send("r", lines.slice(0, 6));
    const view = await open(link.base, { run: "r", allow: CUT });
    await view.state("live");
    await view.until(() => document.querySelectorAll(".kind-text").length > 0);
    await view.page.evaluate(() => {
      window.sameDocument = true;
      window.least = Infinity;
      const look = () => (window.least = Math.min(window.least, Number(document.querySelector(".transcript-body > article")?.getAttribute("aria-setsize") ?? 0)));
      look();
      new MutationObserver(look).observe(document.querySelector(".transcript-body"), { childList: true, subtree: true, attributes: true });
    });
    const before = await view.page.evaluate(() => window.least);
    for (let from = 6, cuts = 0; from < lines.length - 1; from += 13) {
      link.cut();
      await view.until(() => ["waiting", "connecting"].includes(document.querySelector(".run-title .connection")?.dataset.state));
      if (cuts++ === 0) {
        await view.until(() => document.querySelector(".run-title .connection")?.dataset.state === "waiting");
        await view.sees("it goes on from exactly there", ".notices");
        assert.match(await view.page.getAttribute(".notices [title]", "title"), /^cursor \S+$/);
        await view.shot("reconnecting");
      }
      await server.send("r", lines.slice(from, from + 13), from);
      link.mend();
      await view.state("live");
      const to = Math.min(from + 13, lines.length);
      const last = lines.slice(0, to).findLast((line) => line.type === "assistant").message.content[0].text;
      await view.sees(last, ".transcript");
    }
    await server.send("r", [RESULT], lines.length - 1).catch(() => undefined);
    await server.end("r");
    await view.state("ended");
    assert.deepEqual(await words(view), ALL(COUNT));
    assert.ok((await view.page.evaluate(() => window.least)) >= before, "what was shown went away");
    assert.equal(await view.page.evaluate(() => window.sameDocument), true);
    await view.close();
  } finally {
    await link.stop();
    await server.stop();
  }
});

test("a server that is killed and started again is gone on with", async () => {
  const server = await Server.start();
  try {
    const COUNT = 24;
    const lines = story(COUNT);
    await server.send("r", lines.slice(0, 5));
    const view = await open(server.base, { run: "r", allow: CUT });
    await view.state("live");
    let from = 5;
    while (from < lines.length) {
      await server.kill();
      await view.until(() => document.querySelector(".run-title .connection")?.dataset.state === "waiting");
      await server.restart();
      // Live text is not kept by a server that was killed: its lines are wanted again.
      const { next_line: next } = await (await fetch(`${server.base}/v1/runs/r/ingest`)).json();
      const to = Math.min(from + 16, lines.length);
      await server.send("r", lines.slice(next, to), next);
      from = to;
      await view.state(from === lines.length ? "live" : "live");
    }
    await server.end("r");
    await view.state("ended");
    assert.deepEqual(await words(view), ALL(COUNT));
    await view.close();
  } finally {
    await server.stop();
  }
});

test("a browser without a network says so, and catches up when it has one", async () => {
  const server = await Server.start();
  const link = await Link.to(server);
  try {
    await server.send("r", [INIT, said("Before.")]);
    const view = await open(link.base, { run: "r", allow: CUT });
    await view.state("live");
    await view.context.setOffline(true);
    link.cut();
    await view.sees("This computer is offline", ".notices");
    await server.send("r", [said("Meanwhile.")], 2);
    link.mend();
    await view.until(() => document.querySelector(".run-title .connection")?.dataset.state === "waiting");
    assert.equal(await view.page.evaluate(() => document.body.innerText.includes("Meanwhile.")), false);
    await view.context.setOffline(false);
    await view.state("live");
    await view.sees("Meanwhile.", ".transcript");
    assert.equal(await view.page.evaluate(() => document.querySelectorAll(".kind-text").length), 2);
    await view.close();
  } finally {
    await link.stop();
    await server.stop();
  }
});

test("a hole is shown as one: the run came again with another history", async () => {
  const server = await Server.start();
  const other = await Server.start();
  const link = await Link.to(server);
  try {
    await server.send("r", [INIT, ...ALL(6).map((at) => said(`Word ${at} is said.`))]);
    const view = await open(link.base, { run: "r", allow: CUT });
    await view.state("live");
    await view.sees("Word 5 is said.", ".transcript");
    link.cut();
    await view.until(() => document.querySelector(".run-title .connection")?.dataset.state === "waiting");
    await other.send("r", [INIT, said("Another history.")]);
    link.lead(other);
    link.mend();
    await view.state("live");
    await view.sees("Gap", ".kind-gap");
    await view.sees("There is a gap", ".notices");
    await other.send("r", [said("Another history, gone on with.")], 2);
    await view.sees("Another history, gone on with.", ".transcript");
    assert.deepEqual(await words(view), ALL(6), "what was seen stays");
    await view.shot("gap");
    await view.close();
  } finally {
    await link.stop();
    await server.stop();
    await other.stop();
  }
});

test("where a proxy refuses WebSockets the page says so and asks for steps", async () => {
  const server = await Server.start();
  const link = await Link.to(server);
  link.refuses = true;
  try {
    await server.send("r", [INIT, said("Word 0 is said.")]);
    const view = await open(link.base, { run: "r", allow: CUT });
    await view.state("polling");
    await view.sees("No live stream can be had", ".notices");
    await view.sees("Word 0 is said.", ".transcript");
    await server.send("r", [said("Word 1 is said.")], 2);
    await view.sees("Word 1 is said.", ".transcript");
    await server.send("r", [RESULT], 3);
    await server.end("r");
    await view.state("ended");
    assert.deepEqual(await words(view), ALL(2));
    await view.close();
  } finally {
    await link.stop();
    await server.stop();
  }
});

test("who follows stays at the end, and who reads further up is left in peace", async () => {
  const server = await Server.start();
  try {
    await server.send("r", [INIT, ...ALL(60).map((at) => said(`Word ${at} is said.`))]);
    const view = await open(server.base, { run: "r" });
    await view.state("live");
    const atEnd = () => {
      const scroller = document.querySelector(".transcript");
      return scroller.scrollHeight - scroller.clientHeight - scroller.scrollTop < 4;
    };
    await view.sees("Word 59 is said.", ".transcript");
    await view.until(atEnd);
    await server.send("r", [said("Word 60 is said.")], 61);
    await view.sees("Word 60 is said.", ".transcript");
    await view.until(atEnd);
    await view.page.mouse.move(600, 500);
    await view.page.mouse.wheel(0, -700);
    await view.until(() => document.querySelector(".to-end") !== null);
    const place = () => {
      const top = document.querySelector(".transcript").getBoundingClientRect().top;
      const row = [...document.querySelectorAll(".transcript-body > article")].find((row) => row.getBoundingClientRect().bottom > top + 1);
      return [row.dataset.key, Math.round(row.getBoundingClientRect().top - top)];
    };
    const before = await view.page.evaluate(place);
    await server.send("r", ALL(20).map((at) => said(`Word ${61 + at} is said.`)), 62);
    await view.sees("20 new steps", ".to-end");
    assert.deepEqual(await view.page.evaluate(place), before);
    await view.page.click(".to-end");
    await view.sees("Word 80 is said.", ".transcript");
    await view.until(atEnd);
    await view.close();
  } finally {
    await server.stop();
  }
});

test("rows that turn out higher than they were thought to be do not move what is read", async () => {
  const server = await Server.start();
  try {
    const texts = ALL(150).map((at) => said(`Word ${at} is said.\n\n${"# A line\n- and another\n```\ncode\n```\n".repeat(at % 7)}`));
    await server.send("r", [INIT, ...texts]);
    const view = await open(server.base, { run: "r" });
    await view.state("live");
    await view.sees("Word 149 is said.", ".transcript");
    const moved = await view.page.evaluate(async () => {
      const scroller = document.querySelector(".transcript");
      const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
      const places = () => new Map([...document.querySelectorAll(".transcript-body > article")].map((row) => [row.dataset.key, row.getBoundingClientRect().top]));
      const out = [];
      while (scroller.scrollTop > 300) {
        const before = places();
        scroller.scrollTop -= 300;
        for (let times = 0; times < 4; times += 1) await frame();
        const height = scroller.clientHeight;
        const both = [...places()].filter(([key, top]) => before.has(key) && top > 0 && top < height);
        out.push(...both.map(([key, top]) => Math.round(top - before.get(key))));
      }
      return out;
    });
    assert.ok(moved.length > 100);
    assert.deepEqual([...new Set(moved.filter((by) => Math.abs(by - 300) > 1))], []);
    await view.close();
  } finally {
    await server.stop();
  }
});

test("a page that is left opens no connection, and one that is over is not asked for again", async () => {
  const server = await Server.start();
  const link = await Link.to(server);
  try {
    await server.ingest("r", recorded("fix-failing-test"));
    const view = await open(link.base, { run: "r" });
    await view.state("ended");
    // The list asks again and again; the socket does not.
    let asked = 0;
    view.page.on("response", (response) => (asked += response.url().includes("/v1/agents/runs?") ? 1 : 0));
    while (asked < 4) await view.page.waitForEvent("response");
    assert.equal(link.upgrades, 1);
    await view.close();
  } finally {
    await link.stop();
    await server.stop();
  }
});

test("long text shows its end while it is written and its start when asked, and all of it as a message", async () => {
  const server = await Server.start();
  try {
    const sentences = ALL(2000).map((at) => `Sentence ${at} of it.`);
    const parts = ALL(20).map((at) => delta(`${sentences.slice(at * 100, at * 100 + 100).join("\n")}\n`));
    await server.send("r", [INIT, START, ...parts]);
    const view = await open(server.base, { run: "r" });
    await view.state("live");
    await view.sees("Sentence 1999 of it.", ".kind-open");
    const says = (where, what) => view.page.evaluate(([where, what]) => document.querySelector(where).innerText.includes(what), [where, what]);
    assert.equal(await says(".kind-open", "Sentence 0 of it."), false);
    await view.sees("Show from the start", ".kind-open");
    await view.shot("live-long-text");
    await view.page.click(".kind-open .earlier");
    await view.sees("Sentence 0 of it.", ".kind-open");
    await server.send("r", [delta("And one more.")], 22);
    await view.sees("And one more.", ".kind-open");
    assert.equal(await says(".kind-open", "Sentence 0 of it."), true);
    await server.send("r", [said(`${sentences.slice(0, 900).join("\n")}\nThe last of it.`, "m")], 23);
    await view.until(() => document.querySelector(".kind-open") === null);
    await view.sees("Sentence 0 of it.", ".kind-text");
    await view.sees("The last of it.", ".kind-text");
    await view.close();
  } finally {
    await server.stop();
  }
});

test("a laptop that slept finds its connection dead, and catches up", async () => {
  const server = await Server.start();
  const link = await Link.to(server);
  try {
    await server.send("r", [INIT, said("Word 0 is said.")]);
    const view = await open(link.base, { run: "r", allow: CUT });
    await view.state("live");
    await view.sees("Word 0 is said.", ".transcript");
    // Nobody says that the connection is gone: nothing comes any more, and that is all.
    link.freeze();
    await server.send("r", [said("Word 1 is said.")], 2);
    assert.equal(link.upgrades, 1);
    await view.page.evaluate(() => {
      const now = Date.now;
      Date.now = () => now() + 60_000;
    });
    await view.sees("Word 1 is said.", ".transcript");
    await view.state("live");
    assert.equal(link.upgrades, 2);
    assert.deepEqual(await words(view), ALL(2));
    await view.close();
  } finally {
    await link.stop();
    await server.stop();
  }
});

test("who listens is told of news now and then, and not of each", async () => {
  const server = await Server.start();
  try {
    await server.send("r", [INIT, said("Word 0 is said.")]);
    const view = await open(server.base, { run: "r" });
    await view.state("live");
    await view.page.evaluate(() => {
      window.told = [];
      const region = document.querySelector('[role="status"][aria-live="polite"]');
      new MutationObserver(() => window.told.push({ text: region.textContent, at: performance.now() })).observe(region, { childList: true, characterData: true, subtree: true });
    });
    let sent = 1;
    for (const times of ALL(8)) {
      // What is said twice in the same words is not heard twice.
      const count = 1 + (times % 2);
      await server.send("r", ALL(count).map((at) => said(`Word ${sent + at} is said.`)), sent + 1);
      sent += count;
      await view.sees(`Word ${sent - 1} is said.`, ".transcript");
    }
    // The last steps and the end are drawn together: the end is what is told.
    await view.page.evaluate(() => {
      window.held = [];
      window.paint = window.requestAnimationFrame;
      window.requestAnimationFrame = (task) => window.held.push(task);
    });
    await server.send("r", [said("All is said."), RESULT], sent + 1);
    await server.end("r");
    await view.state("ended");
    await view.page.evaluate(() => {
      window.requestAnimationFrame = window.paint;
      for (const task of window.held) task(performance.now());
    });
    await view.until(() => window.told.at(-1)?.text === "The run has ended: completed");
    const told = await view.page.evaluate(() => window.told);
    assert.match(told[0].text, /^\d+ new steps?$/);
    for (let at = 1; at < told.length; at += 1) assert.ok(told[at].at - told[at - 1].at > 5000, JSON.stringify(told));
    await view.close();
  } finally {
    await server.stop();
  }
});
