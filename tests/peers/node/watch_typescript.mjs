// Our own TypeScript client (clients/typescript): a run in three protocols, resumed by the client itself.
import path from "node:path";
import { pathToFileURL } from "node:url";
import { WebSocket } from "ws";
import { Observed } from "./bridge.mjs";
import { NodeEvents } from "./nodes.mjs";
import { about, byteCuts, check, now, peer, same, sameText, watching } from "./peer.mjs";
import { cuttingProxy } from "./proxy.mjs";

const options = {
  library: { type: "string", about: "DIR   where the client was built" },
};
const STATUS = ["UNSPECIFIED", "CREATING", "RUNNING", "FINISHED", "ERROR", "CANCELLED", "EXPIRED"];

await peer("typescript", "watches a run with runcast-client", options, async (args, truth) => {
  const library = await import(pathToFileURL(path.join(args.library, "index.js")));
  const readers = { nodes, activity, websocket, live_text: websocket, tickets: websocket, native: websocket, since, connect };
  // Node 20 has a WebSocket of its own only when it is told to.
  if (!("WebSocket" in globalThis)) delete readers.native;
  const bytes = truth.steps.reduce((sum, step) => sum + step.length / 3 + 100, 0);
  const readings = [];
  const read = async (name, when, budgets = []) => {
    const proxy = await cuttingProxy(args.base, budgets, args.random);
    const given = name === "native" ? {} : { WebSocket };
    const client = new library.Client({ baseUrl: proxy.base, token: args.token, giveUpAfterMs: 60_000, tickets: name === "tickets", ...given });
    // A single call is not made again by the client.
    const calls = new library.Client({ baseUrl: args.base, token: args.token });
    try {
      const has = await readers[name]({ client, calls, library, args, truth, deltas: name === "live_text" });
      readings.push({ name, has, cuts: proxy.cuts, bytes: proxy.bytes });
      return proxy.bytes;
    } catch (error) {
      error.message = `${name}, ${when}: ${error.message}`;
      throw error;
    } finally {
      proxy.close();
    }
  };

  now("reading while the run may be live");
  const names = Object.keys(readers);
  await Promise.all(names.flatMap((name) => [read(name, "live"), read(name, "live, cut", byteCuts(args.random, args.cuts, bytes))]));
  for (const name of names) {
    now(`reading again: ${name}`);
    const length = await read(name, "replay");
    await read(name, "replay, cut", byteCuts(args.random, args.cuts, length));
    const seen = readings.filter((reading) => reading.name === name).map(({ has }) => has);
    about(name, () => seen.forEach((has) => same("what was seen", has, seen[0])));
  }
  now("asking what is to be refused");
  await refusals(library, args);
  return { readings: readings.length, cuts: readings.reduce((sum, { cuts }) => sum + cuts, 0) };
});

async function nodes({ client, calls, args, truth }) {
  const has = new NodeEvents(args.run);
  const stream = client.nodes.events(args.run);
  let heard = "";
  stream.on("node.output_text.delta", ({ delta }) => (heard += delta));
  for await (const { type, ...record } of stream) {
    watching();
    check(type !== "error", `an error record: ${JSON.stringify(record)}`);
    has.take(type, JSON.stringify(record), String(record.sequence_number));
  }
  has.is(truth);
  sameText("the text that was heard", heard, truth.texts);
  same("the outcome", await stream.finalOutcome(), has.records.at(-1).record.outcome);
  same("the node", (await calls.nodes.events(args.run).node).id, args.run);
  same("the outcome route", await calls.nodes.outcome(args.run), await stream.finalOutcome());
  return has.others();
}

async function activity({ client, library, args, truth }) {
  let last = [];
  let lists = 0;
  for await (const steps of library.followActivity(client.nodes.events(args.run), { describe: (tool) => tool })) {
    check(steps.length >= last.length && steps !== last, "a list that has lost steps");
    last = steps;
    lists += 1;
  }
  same("the tools", last.map(({ call_id, tool }) => [call_id, tool]), truth.tools);
  return { last, lists };
}

async function websocket({ client, calls, args, truth, deltas }) {
  const steps = [];
  const ids = new Set();
  let open = "";
  let text = "";
  const stream = client.runs.watch(args.run, { deltas });
  for await (const frame of stream) {
    watching();
    if (frame.type === "delta") open = [...open].slice(0, frame.start).join("") + frame.text;
    for (const step of frame.steps ?? []) {
      check(!ids.has(step.id), `step ${step.id} came twice`);
      ids.add(step.id);
      steps.push(step);
      const said = mainText(step.data);
      if (said === undefined) continue;
      check(said.startsWith(open), `live text that is not the message's: ${JSON.stringify(open.slice(0, 40))}`);
      open = "";
      text += said;
    }
  }
  same("steps", steps.map(({ data }) => data), truth.steps.map((step) => JSON.parse(step)));
  sameText("the text", text, truth.texts);
  check(stream.run.status === truth.status, `the run is ${stream.run.status}`);
  same("the run over REST", await calls.runs.retrieve(args.run), stream.run);
  return steps;
}

/** As against a server that has no cursors: page by page, each one a stream that goes on behind an index. */
async function since({ client, args, truth }) {
  const steps = [];
  const ids = new Set();
  let at = -1;
  for (let over = false; !over; ) {
    over = true;
    let fresh = 0;
    for await (const frame of client.runs.watch(args.run, { since: at })) {
      for (const step of frame.steps ?? []) {
        check(step.late || !ids.has(step.id), `step ${step.id} came twice`);
        if (ids.has(step.id)) continue;
        ids.add(step.id);
        steps.push(step);
        at = Math.max(at, step.step_index);
        fresh += 1;
      }
      over = fresh < 5;
      if (!over) break;
    }
  }
  same("steps", steps.map(({ data }) => data), truth.steps.map((step) => JSON.parse(step)));
  return steps;
}

function mainText({ type, parent_tool_use_id: parent, message }) {
  if (type !== "assistant" || parent) return undefined;
  const content = typeof message.content === "string" ? [{ type: "text", text: message.content }] : (message.content ?? []);
  const texts = content.filter((block) => block?.type === "text").map((block) => block.text);
  return texts.length === 0 ? undefined : texts.join("");
}

async function connect({ client, args, truth }) {
  const has = new Observed(args.run, "runcast");
  for await (const message of client.runs.observe(args.run)) {
    watching();
    const { offset, ...parts } = message;
    const [[kind, value]] = Object.entries(parts);
    const status = STATUS.indexOf(String(value.status).replace("RUN_LIFECYCLE_STATUS_", ""));
    has.take({ offset, envelope: { case: kind, value: { ...value, status } } }, message);
  }
  has.ends();
  has.is(truth);
  return has.messages;
}

async function refusals({ Client, APIError }, args) {
  const asking = (token) => new Client({ baseUrl: args.base, token, WebSocket });
  const client = asking(args.token);
  const refused = async (what, iterable, codes) => {
    let error;
    try {
      for await (const item of iterable) check(item === undefined, `${what}: ${JSON.stringify(item)}`);
    } catch (found) {
      error = found;
    }
    check(error instanceof APIError && codes.includes(error.code), `${what}: ${error?.code}: ${error?.message}`);
  };
  const unknown = "no-such-run-zz";
  await refused("an unknown node", client.nodes.events(unknown), ["unknown_node"]);
  await refused("an unknown run", client.runs.watch(unknown), ["unknown_run"]);
  await refused("an unknown run over Connect", client.runs.observe(unknown), ["not_found"]);
  await refused("a damaged cursor", client.runs.watch(args.run, { cursor: "x" }), ["invalid_cursor"]);
  await refused("a damaged offset", client.runs.observe(args.run, { afterOffset: "x" }), ["invalid_argument"]);
  if (args.token) {
    await refused("a wrong token", asking("wrong").nodes.events(args.run), ["unauthorized"]);
    await refused("a wrong token over WebSocket", asking("wrong").runs.watch(args.run), ["unauthorized"]);
    await refused("a wrong token over Connect", asking("wrong").runs.observe(args.run), ["unauthenticated"]);
  }
}
