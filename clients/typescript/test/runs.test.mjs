import assert from "node:assert/strict";
import { test } from "node:test";
import { WebSocket, WebSocketServer } from "ws";
import { all, json, stub, untilFailure } from "./stub.mjs";

const step = (index, more) => ({ id: `s${index}`, run_id: "r", step_index: index, created_at: null, data: { type: "user", ...more } });
const run = (status) => ({ type: "run", run: { id: "r", status } });
const indexes = (frames) => frames.flatMap((frame) => (frame.steps ?? []).map((step) => step.step_index));

/** A WebSocket server; `serve(socket, url, connections so far)`. */
async function sockets(t, serve, answer = (_, response) => json(response, 200, {})) {
  const urls = [];
  const accept = new WebSocketServer({ noServer: true });
  const { client, requests } = await stub(t, answer, (request, socket, head) => {
    const url = new URL(request.url, "http://stub");
    urls.push(url);
    if (serve === undefined) socket.end("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
    else accept.handleUpgrade(request, socket, head, (open) => serve(open, url, urls.length - 1, request));
  });
  t.after(() => accept.clients.forEach((open) => open.terminate()));
  return { urls, requests, client: (more) => client({ WebSocket, ...more }) };
}

const send = (socket, ...frames) => frames.forEach((frame) => socket.send(JSON.stringify(frame)));

test("a server without cursors is resumed by since, and steps that come twice are dropped", async (t) => {
  const { urls, client } = await sockets(t, (socket, url, at) => {
    if (at === 0) send(socket, { type: "snapshot", run: run("running").run, steps: [step(0), step(2)] });
    if (at === 1) send(socket, run("running"), { type: "steps_append", steps: [step(2, { late: true }), step(3)] });
    if (at === 2) send(socket, { type: "steps_append", steps: [step(1), step(4)] }, run("completed"));
    if (at < 2) socket.terminate();
    else socket.close(1000, "the run is over");
  });
  const stream = client().runs.watch("r");
  assert.deepEqual(indexes(await all(stream)), [0, 2, 3, 1, 4]);
  assert.deepEqual(urls.map((url) => url.searchParams.get("since")), [null, "2", "3"]);
  assert.equal(stream.run.status, "completed");
});

test("a cursor is exact and wins over since", async (t) => {
  const { urls, client } = await sockets(t, (socket, url, at) => {
    if (at === 0) {
      send(socket, { type: "steps_append", steps: [step(0)], cursor: "c0" }, { type: "novelty" });
      socket.close(1001, "draining");
    } else {
      send(socket, { type: "steps_append", steps: [step(1)], cursor: "c1" });
      socket.close(1000);
    }
  });
  const stream = client().runs.watch("r", { since: -1, deltas: true });
  assert.deepEqual((await all(stream)).map(({ type }) => type), ["steps_append", "steps_append"]);
  assert.deepEqual(urls.map(({ search }) => search), ["?since=-1&deltas=1", "?cursor=c0&deltas=1"]);
  assert.equal(stream.cursor, "c1");
});

test("it comes back after 1001, 1011, 1013 and 4408", async (t) => {
  const codes = [1011, 1013, 4408, 1001, 1000];
  const { urls, client } = await sockets(t, (socket, url, at) => {
    send(socket, { type: "steps_append", steps: [step(at)], cursor: `c${at}` });
    socket.close(codes[at]);
  });
  assert.deepEqual(indexes(await all(client().runs.watch("r"))), [0, 1, 2, 3, 4]);
  assert.equal(urls.length, codes.length);
});

for (const [code, word] of [[1003, "streaming_unsupported"], [1008, "invalid_message"], [4401, "unauthorized"], [4403, "forbidden"], [4404, "unknown_run"]]) {
  test(`${code} is the end: ${word}`, async (t) => {
    const { urls, client } = await sockets(t, (socket) => {
      send(socket, run("running"));
      socket.close(code, "why it is so");
    });
    const { items, error } = await untilFailure(client().runs.watch("r"));
    assert.equal(items.length, 1);
    assert.deepEqual([error.name, error.code, error.message], ["APIError", word, "why it is so"]);
    assert.equal(urls.length, 1);
  });
}

test("a server without the route says so in the end", async (t) => {
  const { client } = await sockets(t, undefined);
  await assert.rejects(all(client().runs.watch("r")), { code: "streaming_unsupported" });
});

test("an upgrade that is refused for the cursor's sake is refused with the server's words", async (t) => {
  const answer = (asked, response) =>
    asked.path.endsWith("/steps") ? json(response, 400, { error: { code: "invalid_cursor", message: "not ours" } }) : json(response, 200, {});
  const { client } = await sockets(t, undefined, answer);
  await assert.rejects(all(client().runs.watch("r", { cursor: "x" })), { status: 400, code: "invalid_cursor" });
});

test("a reader that is slow is not sent more than fits, and loses nothing", async (t) => {
  const count = 40;
  let told;
  const left = new Promise((resolve) => (told = resolve));
  const { urls, client } = await sockets(t, (socket, url) => {
    socket.on("close", told);
    const from = url.searchParams.get("cursor") === null ? 0 : Number(url.searchParams.get("cursor")) + 1;
    for (let at = from; at < count; at++) send(socket, { type: "steps_append", steps: [step(at, { text: "x".repeat(1 << 20) })], cursor: String(at) });
    socket.close(1000);
  });
  const seen = [];
  for await (const frame of client().runs.watch("r")) {
    // Until more was there than may wait.
    await left;
    seen.push(...indexes([frame]));
  }
  assert.deepEqual(seen, Array.from({ length: count }, (_, at) => at));
  assert.ok(urls.length > 1, "it was opened again");
});

test("headers are sent, or a ticket is asked for each connection", async (t) => {
  const seen = [];
  const serve = (socket, url, at, request) => {
    seen.push([request.headers.authorization, url.searchParams.get("ticket")]);
    if (at % 2 === 0) socket.terminate();
    else socket.close(1000);
  };
  let tickets = 0;
  const { client, requests } = await sockets(t, serve, (asked, response) => json(response, 200, { ticket: `t${++tickets}` }));
  await all(client({ token: "secret" }).runs.watch("r"));
  await all(client({ token: "secret", tickets: true }).runs.watch("r"));
  assert.deepEqual(seen, [["Bearer secret", null], ["Bearer secret", null], [undefined, "t1"], [undefined, "t2"]]);
  assert.ok(requests.every(({ headers }) => headers.authorization === "Bearer secret"));
});

test("a ticket that is refused is followed by another, while the token is good", async (t) => {
  const run = { type: "run", run: { id: "r", status: "completed" } };
  const good = new Set(["t2", "t4"]);
  let tickets = 0;
  const serve = (socket, url) => {
    if (!good.has(url.searchParams.get("ticket"))) return socket.close(4401, "unauthorized");
    socket.send(JSON.stringify(run));
    if (tickets < 4) socket.terminate();
    else socket.close(1000);
  };
  const { client } = await sockets(t, serve, (asked, response) => {
    tickets += 1;
    if (tickets > 8) json(response, 401, { error: { code: "unauthorized", message: "the token has expired" } });
    else json(response, 200, { ticket: `t${tickets}` });
  });
  const watch = () => client({ token: "secret", tickets: true }).runs.watch("r");
  assert.equal((await all(watch())).length, 2);
  assert.equal(tickets, 4);
  const lost = await untilFailure(watch());
  assert.deepEqual([lost.items, lost.error.code, tickets], [[], "unauthorized", 7]);
  const expired = await untilFailure(watch());
  assert.deepEqual([expired.error.status, expired.error.message, tickets], [401, "the token has expired", 9]);
});

test("without a WebSocket it says what to do", { skip: "WebSocket" in globalThis }, async (t) => {
  const { client } = await sockets(t, () => {});
  await assert.rejects(all(client({ WebSocket: undefined }).runs.watch("r")), /npm package ws/);
});

const envelope = (value, flags = 0) => {
  const payload = Buffer.from(JSON.stringify(value));
  const header = Buffer.alloc(5);
  header.writeUInt8(flags);
  header.writeUInt32BE(payload.length, 1);
  return Buffer.concat([header, payload]);
};
const message = (at) => ({ sdkMessage: { type: "status", message: { type: "status", at, text: "é" } }, offset: `o${at}` });
const MESSAGES = [message(0), {}, message(1), { result: { runId: "r" }, offset: "o2" }, { done: { runId: "r" }, offset: "o3" }];
const connect = (response) => response.writeHead(200, { "content-type": "application/connect+json" });
const asked = ({ body }) => JSON.parse(body.subarray(5));

test("a call that is cut at any byte loses nothing and repeats nothing", async (t) => {
  const rest = (offset) => MESSAGES.slice(offset === undefined ? 0 : MESSAGES.findIndex((message) => message.offset === offset) + 1);
  const bytes = Buffer.concat([...MESSAGES.map((message) => envelope(message)), envelope({}, 2)]);
  const { client } = await stub(t, (request, response) => {
    const { runId, afterOffset } = asked(request);
    if (afterOffset === undefined && Number(runId) > 0) {
      connect(response).write(bytes.subarray(0, Number(runId)), () => response.destroy());
      request.path = undefined;
      return;
    }
    connect(response);
    for (const byte of Buffer.concat([...rest(afterOffset).map((message) => envelope(message)), envelope({}, 2)])) response.write(Buffer.of(byte));
    response.end();
  });
  // Behind the first message, so that the second call has an offset.
  const first = envelope(MESSAGES[0]).length;
  const cuts = Array.from({ length: bytes.length - first }, (_, at) => first + at).filter((cut) => cut % 2 === 0);
  await Promise.all(cuts.map(async (cut) => {
    const offsets = (await all(client().runs.observe(String(cut)))).map(({ offset }) => offset);
    assert.deepEqual(offsets, ["o0", "o1", "o2", "o3"], `cut at ${cut}`);
  }));
});

test("an error at the end of a call is final, or the call is made again", async (t) => {
  const codes = ["unavailable", "resource_exhausted", "internal", "permission_denied"];
  const { client, requests } = await stub(t, (_, response, at) => {
    connect(response).end(Buffer.concat([envelope(message(at)), envelope({ error: { code: codes[at], message: "why", details: [{ type: "x" }] } }, 2)]));
  });
  const { items, error } = await untilFailure(client().runs.observe("r"));
  assert.deepEqual(items.map(({ offset }) => offset), ["o0", "o1", "o2", "o3"]);
  assert.deepEqual([error.code, error.message, error.details], ["permission_denied", "why", { details: [{ type: "x" }] }]);
  assert.deepEqual(requests.map((request) => asked(request).afterOffset), [undefined, "o0", "o1", "o2"]);
});

test("what cannot be read is refused, not guessed", async (t) => {
  const bodies = { compressed: envelope({}, 1), not_json: Buffer.concat([Buffer.from([0, 0, 0, 0, 1]), Buffer.from("{")]), message_too_long: Buffer.from([0, 255, 0, 0, 0]) };
  const { client } = await stub(t, (request, response) => connect(response).end(bodies[asked(request).runId]));
  for (const code of Object.keys(bodies)) await assert.rejects(all(client().runs.observe(code)), { code });
});

test("REST: lists, runs and steps", async (t) => {
  const { client, requests } = await stub(t, (_, response) => json(response, 200, { runs: [], steps: [] }));
  await client().runs.list({ limit: 2, status: "error" });
  await client().runs.retrieve("a/b");
  await client().runs.steps("r", { since: -1 });
  assert.deepEqual(requests.map(({ url }) => url.pathname + url.search), ["/v1/agents/runs?limit=2&status=error", "/v1/agents/runs/a%2Fb", "/v1/agents/runs/r/steps?since=-1"]);
});
