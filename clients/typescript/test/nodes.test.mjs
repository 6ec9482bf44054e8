import assert from "node:assert/strict";
import { test } from "node:test";
import { after, all, APIError, completed, delta, describeToolDefault, failure, followActivity, head, json, outcome, record, settled, started, stub, untilFailure } from "./stub.mjs";

const EVENTS = [delta(1, "Hél"), delta(2, "lo 😀"), started(3, "c", "Bash"), completed(4, "c", "Bash", "ok"), settled(5)];

for (const eol of ["\n", "\r\n", "\r"]) {
  test(`a stream that is cut at any byte loses nothing and repeats nothing (${JSON.stringify(eol)})`, async (t) => {
    const text = `\ufeffretry: 1${eol}id: 0${eol}${eol}: keepalive${eol}${eol}${EVENTS.map((event) => record(event, { eol })).join("")}`;
    const bytes = Buffer.from(text);
    const { client, requests } = await stub(t, (asked, response) => {
      const cut = Number(asked.path.split("/")[3]);
      if (asked.after === null) {
        head(response).write(bytes.subarray(0, cut), () => response.destroy());
        return;
      }
      head(response);
      // In pieces of one byte: letters and line ends in two halves.
      for (const byte of Buffer.from(after(EVENTS, asked.after).map((event) => record(event, { eol })).join(""))) response.write(Buffer.of(byte));
      response.end();
    });
    const cuts = Array.from({ length: bytes.length }, (_, cut) => cut).filter((cut) => cut % 2 === 0);
    await Promise.all(cuts.map(async (cut) => {
      const stream = client().nodes.events(String(cut), { after: cut < 40 ? 0 : undefined });
      assert.deepEqual((await all(stream)).map(({ sequence_number }) => sequence_number), [1, 2, 3, 4, 5], `cut at ${cut}`);
      assert.deepEqual(await stream.finalOutcome(), outcome);
    }));
    assert.ok(requests.length > cuts.length);
  });
}

test("a gap is told, and the stream goes on from the floor, also where a server counts anew", async (t) => {
  const { client } = await stub(t, (asked, response) => {
    const gap = failure("stream_gap", { earliest_sequence: 2 });
    head(response).end([gap, delta(2, "b"), settled(3)].map((event) => record(event)).join(""));
  });
  const stream = client().nodes.events("n", { after: 100 });
  const seen = await all(stream);
  assert.deepEqual(seen.map(({ type }) => type), ["error", "node.output_text.delta", "node.settled"]);
  assert.equal(seen[0].error.details.earliest_sequence, 2);
});

test("a record that comes twice is handed on once", async (t) => {
  const { client } = await stub(t, (_, response) => head(response).end([1, 1, 2, 1].map((n) => record(delta(n, "x"))).join("") + record(settled(3))));
  assert.deepEqual((await all(client().nodes.events("n"))).map((event) => event.sequence_number), [1, 2, 3]);
});

test("a stream that was sent away comes back by itself, with its cursor", async (t) => {
  const codes = ["stream_dropped", "draining", "over_capacity", "upstream_unavailable", "internal"];
  const { client, requests } = await stub(t, (_, response, at) => {
    head(response);
    if (at < codes.length) response.end(record(delta(at + 1, "x")) + record(failure(codes[at])));
    else response.end(record(settled(9)));
  });
  const seen = await all(client().nodes.events("n"));
  assert.deepEqual(seen.map((event) => event.sequence_number), [1, 2, 3, 4, 5, 9]);
  assert.deepEqual(requests.map((asked) => asked.after), [null, "1", "2", "3", "4", "5"]);
});

test("without resume an end that is none is told, and thrown", async (t) => {
  const { client, requests } = await stub(t, (_, response) => head(response).end(record(delta(7, "x")) + record(failure("stream_dropped"))));
  const { items, error } = await untilFailure(client().nodes.events("n", { resume: false }));
  assert.deepEqual(items.map(({ type }) => type), ["node.output_text.delta", "error"]);
  assert.ok(error instanceof APIError);
  assert.deepEqual([error.status, error.code, error.message], [0, "stream_dropped", "it is stream_dropped"]);
  assert.equal(requests.length, 1);
});

test("a credential that expires ends the stream, in every way of reading it", async (t) => {
  const { client, requests } = await stub(t, (_, response) => head(response).end(record(delta(1, "x")) + record(failure("unauthorized"))));
  const stream = client().nodes.events("n");
  const heard = [];
  stream.on("error", (event) => heard.push(event.error.code));
  const final = assert.rejects(stream.finalOutcome(), { code: "unauthorized", status: 0 });
  const { items, error } = await untilFailure(stream);
  assert.deepEqual(items.map(({ type }) => type), ["node.output_text.delta", "error"]);
  assert.equal(error.code, "unauthorized");
  assert.deepEqual(heard, ["unauthorized"]);
  await final;
  assert.equal(requests.length, 1);
});

test("an id that is none is a TypeError, and nothing is requested", async (t) => {
  const { client, requests } = await stub(t, (_, response) => json(response, 500, {}));
  for (const id of ["", "a\nb", "x".repeat(129), "ä".repeat(65), "..", "\ud800", 7, null, undefined]) {
    const stream = client().nodes.events(id);
    await assert.rejects(stream.node, TypeError, `node of ${id}`);
    await assert.rejects(stream.finalOutcome(), TypeError, `finalOutcome of ${id}`);
    await assert.rejects(all(stream), TypeError, `iteration of ${id}`);
    assert.throws(() => client().runs.watch(id), TypeError);
    assert.throws(() => client().runs.observe(id), TypeError);
    await assert.rejects(client().nodes.revive(id), TypeError);
  }
  await assert.rejects(all(client().nodes.events("n", { after: -1 })), TypeError);
  await assert.rejects(all(client().nodes.events("n", { after: 0.5 })), TypeError);
  assert.equal(requests.length, 0);
});

test("what the server refuses is an APIError, once", async (t) => {
  const { client, requests } = await stub(t, (_, response) => json(response, 404, { error: { code: "unknown_node", message: "there is no such node", details: { hint: 1 } } }));
  const stream = client().nodes.events("n");
  await assert.rejects(all(stream), { name: "APIError", status: 404, code: "unknown_node", details: { hint: 1 } });
  await assert.rejects(stream.finalOutcome(), { code: "unknown_node" });
  assert.equal(requests.length, 1);
});

test("an answer that is no stream is said to be none", async (t) => {
  const { client } = await stub(t, (_, response) => response.writeHead(200, { "content-type": "text/html" }).end("<p>a proxy's page"));
  await assert.rejects(all(client().nodes.events("n")), { code: "not_a_stream" });
});

test("a server that is busy is asked again", async (t) => {
  const { client, requests } = await stub(t, (_, response, at) => {
    if (at < 2) response.writeHead(at === 0 ? 503 : 429, { "retry-after": "0" }).end();
    else head(response).end(record(settled(1)));
  });
  assert.equal((await all(client().nodes.events("n"))).length, 1);
  assert.equal(requests.length, 3);
});

test("a server that is not there is given up", async (t) => {
  const { client, server } = await stub(t, () => {});
  await new Promise((resolve) => server.close(resolve));
  await assert.rejects(client({ giveUpAfterMs: 300 }).nodes.events("n").finalOutcome(), { code: "connection_lost" });
});

test("a server that says nothing, not even that it lives, is left and asked anew", async (t) => {
  const { client, requests } = await stub(t, (_, response, at) => {
    head(response).write(record(delta(at + 1, "x")));
    if (at > 0) response.end(record(settled(9)));
  });
  assert.deepEqual((await all(client({ silenceMs: 100 }).nodes.events("n"))).map((event) => event.sequence_number), [1, 2, 9]);
  assert.deepEqual(requests.map((asked) => asked.after), [null, "1"]);
});

test("abort ends the response and the iteration, and asks for nothing else", async (t) => {
  const { client, requests } = await stub(t, (_, response) => head(response).write(record(delta(1, "x"))));
  const stream = client().nodes.events("n");
  const final = assert.rejects(stream.finalOutcome(), { code: "aborted" });
  const seen = [];
  for await (const event of stream) {
    seen.push(event.sequence_number);
    stream.abort();
  }
  assert.deepEqual(seen, [1]);
  await final;
  await requests[0].closed;
  assert.equal(requests.length, 1);
  const controller = new AbortController();
  const other = client().nodes.events("n", { signal: controller.signal });
  for await (const event of other) if (event) controller.abort();
  await assert.rejects(other.finalOutcome(), { code: "aborted" });
});

test("who leaves the loop closes the connection, and who comes again gets what follows", async (t) => {
  const { client, requests } = await stub(t, (asked, response) => {
    head(response);
    for (const event of after(EVENTS, asked.after)) response.write(record(event));
  });
  const stream = client().nodes.events("n");
  const seen = [];
  while (seen.at(-1) !== 5) {
    for await (const event of stream) {
      seen.push(event.sequence_number);
      break;
    }
    await requests.at(-1).closed;
  }
  assert.deepEqual(seen, [1, 2, 3, 4, 5]);
  assert.deepEqual(await all(stream), []);
  assert.deepEqual(await stream.finalOutcome(), outcome);
});

test("all who listen and iterate see the same events, and nothing is read ahead of the slowest", async (t) => {
  const { client } = await stub(t, (asked, response) => head(response).end(EVENTS.map((event) => record(event)).join("")));
  const stream = client().nodes.events("n");
  const heard = [];
  const listener = (event) => heard.push(event.sequence_number);
  stream.on("node.output_text.delta", listener).on("node.settled", listener);
  const fast = all(stream);
  const slow = [];
  for await (const event of stream) {
    slow.push(event.sequence_number);
    assert.ok(heard.every((number) => number <= event.sequence_number), "nothing ahead");
    if (event.sequence_number === 1) stream.off("node.output_text.delta", listener);
    await new Promise((resolve) => setImmediate(resolve));
  }
  assert.deepEqual(slow, [1, 2, 3, 4, 5]);
  assert.deepEqual((await fast).map((event) => event.sequence_number), [1, 2, 3, 4, 5]);
  assert.deepEqual(heard, [1, 5]);
});

test("stream makes a node once, and watches it with the given headers", async (t) => {
  const { client, requests } = await stub(t, (asked, response) => {
    if (asked.method === "POST") json(response, 201, { id: "made here", state: "live" });
    else head(response).end(record(settled(1)));
  });
  const stream = client({ token: "secret" }).nodes.stream({ prompt: "Fix it", cwd: "." }, { headers: { "x-trace": "run-9" } });
  assert.deepEqual(await stream.finalOutcome(), outcome);
  assert.equal((await stream.node).id, "made here");
  assert.deepEqual(requests.map(({ method, path }) => [method, path]), [["POST", "/v1/nodes"], ["GET", "/v1/nodes/made%20here/events"]]);
  assert.deepEqual(JSON.parse(requests[0].body), { prompt: "Fix it", cwd: "." });
  for (const { headers } of requests) assert.deepEqual([headers["x-trace"], headers.authorization], ["run-9", "Bearer secret"]);
});

test("a node that cannot be made fails the stream, and is not tried again", async (t) => {
  const { client, requests } = await stub(t, (_, response) => json(response, 503, { error: { code: "upstream_unavailable", message: "away" } }));
  const stream = client().nodes.stream({ prompt: "x" });
  await assert.rejects(stream.node, { status: 503, code: "upstream_unavailable" });
  await assert.rejects(stream.finalOutcome(), { status: 503 });
  assert.equal(requests.length, 1);
});

test("a cursor at the end gives the outcome and no event", async (t) => {
  const { client } = await stub(t, (asked, response, at) => {
    if (!asked.path.endsWith("/outcome")) response.writeHead(204).end();
    else if (at === 1) response.destroy();
    else json(response, 200, outcome);
  });
  const stream = client().nodes.events("n", { after: 5 });
  assert.deepEqual(await all(stream), []);
  assert.deepEqual(await stream.finalOutcome(), outcome);
});

test("an event type that nobody knows is handed on, and a member too", async (t) => {
  const { client } = await stub(t, (_, response) => head(response).end(record({ type: "node.new", node_id: "n", sequence_number: 1, more: [1] }) + record(settled(2))));
  assert.deepEqual((await all(client().nodes.events("n")))[0], { type: "node.new", node_id: "n", sequence_number: 1, more: [1] });
});

test("activity is a list of steps that never changes, made anew with each change", async (t) => {
  const events = [started(1, "a", "Bash"), delta(2, "x"), started(3, "b", "mcp__files__read"), started(4, "h", "TodoWrite"), completed(5, "a", "Bash", "ok"), completed(6, "h", "TodoWrite", "ok"), completed(7, "b", "mcp__files__read", "error"), completed(8, "early", "Made Up", "ok"), settled(9)];
  const { client } = await stub(t, (_, response) => head(response).end(events.map((event) => record(event)).join("")));
  const asked = [];
  const describe = (tool, summary) => {
    asked.push([tool, summary]);
    return tool === "TodoWrite" ? null : describeToolDefault(tool, summary);
  };
  const lists = await all(followActivity(client().nodes.events("n"), { describe }));
  assert.deepEqual(lists.map((steps) => steps.map(({ label, status }) => `${label}: ${status}`)), [
    ["Running a command: running"],
    ["Running a command: running", "files: read: running"],
    ["Running a command: done", "files: read: running"],
    ["Running a command: done", "files: read: failed"],
    ["Running a command: done", "files: read: failed", "Made Up: done"],
  ]);
  assert.equal(lists[1][0], lists[0][0], "what has not changed is the same object");
  assert.ok(lists.every((steps) => Object.isFrozen(steps) && steps.every(Object.isFrozen)));
  assert.deepEqual(asked[0], ["Bash", "object with 1 field"]);
  assert.equal(describeToolDefault("constructor", ""), "constructor");
});
