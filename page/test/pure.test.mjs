// The parts without a browser: the fold of steps, text that is made visible, changes of files.

import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";

import { build } from "vite";

const HERE = fileURLToPath(new URL(".", import.meta.url));
const FAULTS = fileURLToPath(new URL("../../tests/fixtures/faults", import.meta.url));
const RUNS = fileURLToPath(new URL("../../tests/fixtures/runs", import.meta.url));

let folder;
let pure;

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "runcast-pure-"));
  const lib = { entry: join(HERE, "pure.ts"), formats: ["es"], fileName: "pure" };
  await build({ configFile: false, root: join(HERE, ".."), logLevel: "error", build: { lib, outDir: folder, minify: false } });
  pure = await import(pathToFileURL(join(folder, "pure.js")).href);
});

after(() => rmSync(folder, { recursive: true, force: true }));

/** Steps as the server would give them. */
function steps(lines) {
  return lines.map((data, at) => ({ id: `s${at}`, run_id: "r", step_index: at, created_at: new Date(1e12 + at * 1000).toISOString(), data }));
}

function folded(lines) {
  const transcript = new pure.Transcript();
  for (const step of steps(lines)) transcript.step(step);
  return transcript;
}

function lines(path) {
  const out = [];
  for (const line of readFileSync(path, "utf8").split("\n")) {
    try {
      out.push(JSON.parse(line));
    } catch {
      // Not what this is about.
    }
  }
  return out;
}

const text = (said, parent = null) => ({ type: "assistant", message: { id: said, content: [{ type: "text", text: said }] }, parent_tool_use_id: parent });
const call = (id, name, input, parent = null) => ({ type: "assistant", message: { id: `m${id}`, content: [{ type: "tool_use", id, name, input }] }, parent_tool_use_id: parent });
const result = (id, content, more = {}, parent = null) => ({ type: "user", message: { content: [{ type: "tool_result", tool_use_id: id, content, ...more }] }, parent_tool_use_id: parent });

test("a call and its result are one item, in whatever order they come", () => {
  for (const order of [
    [call("a", "Bash", { command: "ls" }), result("a", "x")],
    [result("a", "x"), call("a", "Bash", { command: "ls" })],
  ]) {
    const { items, calls } = folded(order);
    assert.equal(items.length, 1);
    assert.equal(calls.length, 1);
    const [tool] = items;
    assert.deepEqual([tool.name, tool.state, tool.output.text, pure.subject(tool)], ["Bash", "ok", "x", "ls"]);
  }
});

test("a call that failed says why", () => {
  const { items } = folded([call("a", "Bash", { command: "x" }), result("a", "Exit code 7\nbegin\nerror: no luck\nmore", { is_error: true })]);
  assert.equal(items[0].state, "failed");
  assert.equal(pure.upshot(items[0]), "error: no luck");
  assert.equal(pure.exitCode(items[0]), "7");
});

test("what a sub-agent does lies below its call, also when it is seen first", () => {
  for (const first of [[call("t", "Task", { description: "look" })], []]) {
    const rest = [text("mine", "t"), call("b", "Grep", { pattern: "x" }, "t"), result("b", "1", {}, "t"), call("t", "Task", { description: "look" }), text("main")];
    const { items } = folded([...first, ...rest]);
    assert.deepEqual(
      items.map((item) => item.kind),
      ["tool", "text"],
    );
    assert.deepEqual(
      items[0].children.map((item) => item.kind),
      ["text", "tool"],
    );
    assert.equal(items[0].calls, 1);
    assert.equal(items[0].name, "Task");
  }
});

test("a step that comes twice is shown once", () => {
  const transcript = new pure.Transcript();
  const [one, two] = steps([text("a"), text("b")]);
  for (const step of [one, two, one, two, two]) transcript.step(step);
  assert.equal(transcript.items.length, 2);
  assert.equal(transcript.steps, 2);
});

test("open text is what the deltas say, from wherever they begin, and its message ends it", () => {
  const transcript = new pure.Transcript();
  const take = (said, start) => transcript.take({ type: "delta", text: said, start });
  take("Hello 🌍", 0);
  take("!", 7);
  assert.equal(transcript.open.text, "Hello 🌍!");
  // Counted in characters, not in halves of them.
  take(" and moon", 7);
  assert.equal(transcript.open.text, "Hello 🌍 and moon");
  // A new connection tells it from the start.
  take("Hello 🌍 and", 0);
  assert.equal(transcript.open.text, "Hello 🌍 and");
  transcript.take({ type: "steps_append", steps: steps([call("a", "Bash", {})]) });
  assert.equal(transcript.open.text, "Hello 🌍 and", "a call closes no text");
  transcript.take({ type: "steps_append", steps: [{ ...steps([text("Hello 🌍 and moon")])[0], id: "other" }] });
  assert.equal(transcript.open, undefined);
});

test("a gap says which steps are missing", () => {
  const transcript = folded([text("a"), text("b")]);
  transcript.take({ type: "gap", earliest_step_index: 7, latest_step_index: 9, reason: "retention" });
  assert.match(transcript.items.at(-1).text, /Steps 2 to 6 are missing. \(retention\)/);
});

test("when the run is over no call goes on", () => {
  const transcript = folded([call("a", "Bash", {})]);
  transcript.settle();
  assert.equal(transcript.items[0].state, "unknown");
});

test("a message that was replaced says so", () => {
  const old = { ...text("old"), uuid: "u1" };
  const { items } = folded([old, { ...text("new"), supersedes: ["u1"] }]);
  assert.deepEqual(
    items.map((item) => item.replaced),
    [true, false],
  );
});

test("tokens are counted once for each message, and results have the last word", () => {
  const usage = (output) => ({ input_tokens: 10, output_tokens: output, cache_read_input_tokens: 5, cache_creation_input_tokens: 1 });
  const line = (id, output) => ({ type: "assistant", message: { id, model: "m", content: [], usage: usage(output) } });
  const transcript = folded([line("a", 1), line("a", 20), line("b", 2)]);
  assert.deepEqual(transcript.usage.total(), { input: 20, output: 22, cacheRead: 10, cacheWrite: 2 });
  const modelUsage = { m: { inputTokens: 100, outputTokens: 50, cacheReadInputTokens: 7, cacheCreationInputTokens: 3, costUSD: 0.5 } };
  transcript.step({ ...steps([{ type: "result", subtype: "success", total_cost_usd: 0.5, num_turns: 2, modelUsage }])[0], id: "r" });
  assert.deepEqual(transcript.usage.total(), { input: 100, output: 50, cacheRead: 7, cacheWrite: 3 });
  assert.equal(transcript.usage.cost, 0.5);
});

test("every step of every recorded and every broken run is shown somewhere", () => {
  const files = [...readdirSync(RUNS).map((name) => join(RUNS, name)), ...readdirSync(FAULTS).map((name) => join(FAULTS, name))];
  let count = 0;
  for (const path of files.filter((name) => name.endsWith(".ndjson"))) {
    const all = lines(path).filter((line) => typeof line === "object" && line !== null);
    const transcript = new pure.Transcript();
    const rows = () => {
      const walk = (items) => items.reduce((sum, item) => sum + item.rev + 1 + (item.kind === "tool" ? walk(item.children) : 0), 0);
      return walk(transcript.items);
    };
    for (const step of steps(all)) {
      const before = rows();
      transcript.step(step);
      const { type, message, subtype } = step.data;
      const isEmpty = ["assistant", "user"].includes(type) && (message?.content === null || message?.content === undefined || message.content.length === 0 || nothing(message.content));
      if (isEmpty || ["task_started", "task_progress", "task_notification"].includes(subtype)) continue;
      assert.ok(rows() > before, `${path}: ${JSON.stringify(step.data).slice(0, 300)}`);
      count += 1;
    }
  }
  assert.ok(count > 1500, `only ${count} steps`);
});

function nothing(content) {
  if (typeof content === "string") return content.trim() === "";
  return content.every((block) => block === null || (typeof block === "object" && ["text", "thinking"].includes(block.type) && (block.text ?? block.thinking ?? "").trim() === ""));
}

test("what cannot be seen is shown, and nothing is lost", () => {
  const { pieces, visible } = pure;
  assert.equal(visible("a\u202eb\u2066c\u200bd"), "a⟨RLO⟩b⟨LRI⟩c⟨ZWSP⟩d");
  assert.equal(visible("bell\u0007 nul\u0000 del\u007f c1\u0085"), "bell␇ nul␀ del␡ c1⟨U+85⟩");
  assert.equal(visible("half \ud800 whole 😀"), "half \ufffd whole 😀");
  assert.equal(visible("tag\u{e0041}"), "tag⟨U+E0041⟩");
  assert.equal(visible("a\r\nb\rc\td"), "a\nb␍c\td");
  for (const piece of pieces("x\u202ey")) assert.ok(!/[\u202a-\u202e\u2066-\u2069]/.test(piece.text));
  assert.equal(visible("👨‍👩‍👧 café عربي"), "👨‍👩‍👧 café عربي", "letters of all people stay as they are");
});

test("colours of a terminal are obeyed where they are wanted, and every other escape is shown", () => {
  const { pieces } = pure;
  assert.deepEqual(pieces("\u001b[1;31mred\u001b[0m plain", true), [{ text: "red", style: { bold: true, fg: 1 } }, { text: " plain" }]);
  assert.deepEqual(pieces("\u001b[31mx", false)[0].mark, "terminal escape");
  assert.deepEqual(pieces("\u001b[38;5;196mx\u001b[39m", true), [{ text: "x", style: { fg: 9 } }]);
  assert.deepEqual(pieces("\u001b[38;2;10;200;10;4mx", true)[0].style, { fg: 2, underline: true });
  for (const escape of ["\u001b[2J", "\u001b]0;title\u0007", "\u001b]8;;https://x\u001b\\", "\u001bc", "\u001b[?25l", "\u001bP1$q\u001b\\"]) {
    const shown = pieces(`a${escape}b`, true);
    assert.deepEqual([shown[0].text, shown.at(-1).text, shown[1].mark], ["a", "b", "terminal escape"], JSON.stringify(escape));
    assert.ok(!shown.some((piece) => piece.text.includes("\u001b")));
  }
  // Concealed text can be read.
  assert.deepEqual(pieces("\u001b[8mhidden", true), [{ text: "hidden" }]);
});

test("much of anything is cut into pieces at once", () => {
  for (const part of ["x", "\u001b", "\u001b[", "\u001b]", "\u202e", "\ud800", "\u001b[31m"]) {
    const all = part.repeat(100_000 / part.length);
    assert.ok(pure.pieces(all, true).reduce((sum, piece) => sum + piece.text.length, 0) >= 0);
  }
});

test("changes are found line by line, with the lines around them", () => {
  const before = Array.from({ length: 30 }, (_, at) => `line ${at}`);
  const after = [...before];
  after[3] = "changed";
  after.splice(20, 1);
  after.push("new");
  const hunks = pure.between(`${before.join("\n")}\n`, `${after.join("\n")}\n`, 1);
  assert.deepEqual(pure.counted(hunks), { added: 2, removed: 2 });
  assert.deepEqual(
    hunks.map((hunk) => [hunk.oldStart, hunk.newStart]),
    [
      [1, 1],
      [18, 18],
      [28, 27],
    ],
  );
});

test("the changes make the new text of the old, whatever the two are", () => {
  const seed = Number(process.env.RUNCAST_TEST_SEED ?? Math.floor(Math.random() * 1e9));
  let state = seed;
  const random = (below) => {
    state = (state * 1103515245 + 12345) % 2147483648;
    return state % below;
  };
  for (let round = 0; round < 300; round += 1) {
    const make = () => Array.from({ length: random(14) }, () => "abc"[random(3)]);
    const [old, fresh] = [make(), make()];
    const hunks = pure.between(old.join("\n"), fresh.join("\n"), 1);
    const made = [];
    let at = 1;
    for (const hunk of hunks) {
      while (at < hunk.oldStart) made.push(old[at++ - 1]);
      for (const line of hunk.lines) {
        if (line.kind !== "+") assert.equal(old[at++ - 1], line.text, `seed ${seed}`);
        if (line.kind !== "-") made.push(line.text);
      }
    }
    while (at <= old.length) made.push(old[at++ - 1]);
    assert.deepEqual(made, fresh, `seed ${seed}: ${old.join("")} to ${fresh.join("")}`);
  }
});

test("a patch is read as it is, and nonsense is none", () => {
  const hunks = pure.fromPatch([{ oldStart: 3, oldLines: 2, newStart: 3, newLines: 2, lines: [" a", "-b", "+c"] }]);
  assert.deepEqual(pure.counted(hunks), { added: 1, removed: 1 });
  for (const nonsense of [undefined, null, [], {}, [null], [{ lines: "x" }], "x", 7]) assert.equal(pure.fromPatch(nonsense), undefined);
});

test("a download has every number and key as the server wrote it", () => {
  const data = ['{"n":12345678901234567890,"f":1.0,"k":1,"k":2}', '{"s":"a\\"}]{[,\\\\","deep":[[[{}]],"x"]}', "null", '"text"'];
  const page = ` {"steps" : [${data.map((text, at) => `{"id":"${at}","data":${text},"late":true}`).join(" , ")}],"next_since":1,"next_cursor":"c\\"d"} `;
  assert.deepEqual(pure.dataOfSteps(page), { steps: data, next: 'c"d' });
  assert.deepEqual(pure.dataOfSteps('{"steps":[],"next_cursor":"z"}'), { steps: [], next: "z" });
  assert.throws(() => pure.dataOfSteps('{"steps":[{"data":{"a":"b}'));
});

test("calls side by side stand in lanes of their own", () => {
  const { calls } = folded([call("a", "Bash", {}), call("b", "Read", {}), result("b", "x"), result("a", "x"), call("c", "Read", {}), result("c", "x")]);
  const chart = pure.lay(calls, 0);
  assert.equal(chart.byOrder, false);
  assert.deepEqual(
    chart.bars.map((bar) => bar.lane),
    [0, 1, 0],
  );
});

test("a run that was recorded at once is drawn in its order", () => {
  const transcript = new pure.Transcript();
  for (const step of steps([call("a", "Bash", {}), result("a", "x"), call("b", "Bash", {}), result("b", "x")])) transcript.step({ ...step, created_at: "2026-01-01T00:00:00Z" });
  const chart = pure.lay(transcript.calls, 0);
  assert.equal(chart.byOrder, true);
  assert.ok(chart.bars[0].to <= chart.bars[1].from);
});

test("times and amounts are short", () => {
  const { duration, age, amount, money } = pure;
  assert.deepEqual([0, 999, 1500, 59_400, 59_600, 3_599_600, 90_000_000].map(duration), ["0 ms", "1.0 s", "1.5 s", "59 s", "1 min 00 s", "1 h 00 min", "25 h 00 min"]);
  assert.deepEqual([0, 5000, 65_000, 7_200_000, 200_000_000].map(age), ["now", "5 s", "1 min", "2 h", "2 d"]);
  assert.deepEqual([12, 1234, 56_789, 999_600].map(amount), ["12", "1.23k", "56.8k", "1.00M"]);
  assert.deepEqual([0.0321, 1.5].map(money), ["$0.032", "$1.50"]);
});

test("what is looked for is found in input and output alike", () => {
  const { items } = folded([call("a", "Bash", { command: "Find ME" }), result("a", "the OutPut")]);
  assert.ok(pure.haystack(items[0]).includes("find me"));
  assert.ok(pure.haystack(items[0]).includes("the output"));
  const agent = folded([call("t", "Task", { prompt: "needle" }), call("b", "Grep", { pattern: "Needle" }, "t"), result("b", "none", {}, "t"), result("t", "a NEEDLE")]);
  const found = pure.search(agent.items, "needle").map(({ item, isTail }) => [item.callId, isTail]);
  assert.deepEqual(found, [
    ["t", false],
    ["b", false],
    ["t", true],
  ]);
});

test("of the runs that are known, those are gone that a page of the list would have and has not", () => {
  const run = (id, minute) => ({ id, created_at: new Date(1e12 + minute * 60_000).toISOString() });
  const known = [run("e", 5), run("d", 4), run("c", 3), run("b", 2), run("a", 1), { id: "?", created_at: null }];
  const at = (minute) => 1e12 + minute * 60_000;
  const page = (next_cursor, ...runs) => ({ runs, next_cursor });
  // The first page, with more behind it: what is older than its last run may be there.
  assert.deepEqual(pure.gone(known, page("more", run("f", 6), run("d", 4), run("c", 3)), undefined), ["e"]);
  assert.deepEqual(pure.gone(known, page("more", run("e", 5), run("d", 4)), undefined), []);
  // A page in the middle says nothing of what is newer than where it begins.
  assert.deepEqual(pure.gone(known, page("more", run("b", 2)), at(4)), ["c"]);
  // The last page has all that is older.
  assert.deepEqual(pure.gone(known, page(null, run("b", 2)), at(4)), ["c", "a"]);
  assert.deepEqual(pure.gone(known, page(null), undefined), ["e", "d", "c", "b", "a"]);
  // Runs of the moment in which a page ends may be on either side.
  assert.deepEqual(pure.gone([run("x", 4), run("d", 4)], page("more", run("d", 4)), undefined), []);
  assert.deepEqual(pure.gone([run("x", 4)], page("more", run("b", 2)), at(4)), []);
});

test("the end of a long text begins with a line, keeps still while more is written, and is never half a character", () => {
  const { endFrom } = pure;
  assert.equal(endFrom("short", 100), 0);
  const lines = Array.from({ length: 5000 }, (_, at) => `line ${at} 🌍`).join("\n");
  const places = new Set();
  for (let length = 20_001; length < lines.length; length += 7) {
    const from = endFrom(lines.slice(0, length), 20_000);
    assert.ok(lines.startsWith("line", from) && length - from <= 20_000 && length - from > 7000, `${from} of ${length}`);
    places.add(from);
  }
  assert.ok(places.size <= lines.length / 10_000 + 1, `${places.size} places`);
  for (const shift of ["", "x"]) {
    const text = shift + "🌍".repeat(20_000);
    assert.equal(text.slice(endFrom(text, 20_000)).codePointAt(0), 0x1f30d);
  }
});
