// npm `ws`: the run stream over WebSocket, resumed by cursor, by since, with deltas, and by a first message.
import WebSocket from "ws";
import { about, byteCuts, check, itemCuts, now, pause, peer, same, watching } from "./peer.mjs";
import { cuttingProxy } from "./proxy.mjs";
import { Steps } from "./steps.mjs";

const MODES = ["cursor", "since", "deltas", "message"];
const options = {
  mode: { type: "string", default: "all", about: `NAME  one of ${MODES.join(", ")}` },
  tickets: { type: "boolean", default: false, about: "      as a dashboard: the unversioned door, a ticket instead of the token" },
};

await peer("ws", "watches a run over WebSocket", options, async (args, truth) => {
  const modes = args.mode === "all" ? MODES : [args.mode];
  check(modes.every((mode) => MODES.includes(mode)), `no mode ${args.mode}`);
  const bytes = truth.steps.reduce((sum, step) => sum + step.length + 150, 0);
  const half = Math.ceil(args.cuts / 2);
  const cutting = (total) => ({ budgets: byteCuts(args.random, half, total), leaves: itemCuts(args.random, args.cuts - half, truth.steps.length) });

  const readings = [];
  const judge = (reading, when) => {
    readings.push(reading);
    about(`${reading.mode}, ${when}`, () => {
      reading.has.is(truth);
      if (reading.mode !== "since") same("unreadable records", reading.has.unreadable, readings[0].has.unreadable);
    });
  };

  now("reading while the run may be live");
  const live = modes.flatMap((mode) => [read(args, mode), read(args, mode, cutting(bytes))]);
  for (const reading of await Promise.all(live)) judge(reading, "live");
  for (const mode of modes) {
    now(`reading again by ${mode}`);
    const whole = await read(args, mode);
    judge(whole, "replay");
    judge(await read(args, mode, cutting(whole.bytes)), "replay, cut");
  }
  now("asking what is to be refused");
  await refusals(args, readings[0].has);
  const sum = (count) => readings.reduce((total, reading) => total + count(reading), 0);
  return {
    steps: truth.steps.length,
    cuts: sum(({ cuts }) => cuts),
    returns: sum(({ returns }) => returns),
    deltas: sum(({ has }) => has.deltas),
    repeats: sum(({ has }) => has.repeats),
    unreadable: readings[0].has.unreadable.length,
  };
});

/** Reads to the end, over as many connections as the cuts make of it. */
async function read(args, mode, { budgets = [], leaves = new Set() } = {}) {
  const proxy = await cuttingProxy(args.base, budgets, args.random);
  const has = new Steps(mode, args.run);
  let left = 0;
  let returns = 0;
  const leave = (count) => leaves.delete(count) && ++left;
  for (;;) {
    const end = await connection(args, proxy.base, has, leave);
    if (end === 1000) break;
    if (end === "left" || proxy.explainsDrop()) continue;
    check(args.restarts && [1001, 1006, "refused"].includes(end), `the stream ended with ${end} after ${has.steps.length} steps (${mode})`);
    returns += 1;
    await pause(100);
  }
  proxy.close();
  return { mode, has, cuts: proxy.cuts + left, returns, bytes: proxy.bytes };
}

/** One connection. Gives the close code, `left`, or `refused` when there was none. */
async function connection(args, base, has, leave) {
  const query = new URLSearchParams();
  const resumed = has.mode === "since" || has.cursor !== undefined;
  if (has.mode === "since") query.set("since", has.since ?? -1);
  else if (has.mode === "message") query.set("resume", "message");
  else if (has.cursor !== undefined) query.set("cursor", has.cursor);
  if (has.mode === "deltas") query.set("deltas", "1");
  const headers = args.token && !args.tickets ? { authorization: `Bearer ${args.token}` } : {};
  if (args.tickets) {
    const ticket = await askTicket(args);
    if (ticket === undefined) return "refused";
    query.set("ticket", ticket);
  }
  const door = `${args.tickets ? "" : "/v1"}/agents/runs/${encodeURIComponent(args.run)}/stream`;
  has.joins(resumed);
  return new Promise((resolve, reject) => {
    const socket = new WebSocket(`${base.replace("http", "ws")}${door}?${query}`, { headers });
    let gone = false;
    let opened = false;
    socket.on("open", () => {
      opened = true;
      if (has.mode === "message" && resumed) socket.send(JSON.stringify({ type: "resume", cursor: has.cursor }));
    });
    socket.on("message", (message, binary) => {
      if (gone) return;
      try {
        check(!binary, "a binary message");
        gone = has.take(message.toString("utf8"), leave);
      } catch (error) {
        socket.terminate();
        reject(error);
      }
      watching();
      if (gone) socket.terminate();
    });
    socket.on("unexpected-response", (_, response) => {
      socket.terminate();
      reject(new Error(`the upgrade was answered with ${response.statusCode}`));
    });
    socket.on("error", () => {});
    socket.on("close", (code) => resolve(gone ? "left" : opened ? code : "refused"));
  });
}

/** How a stream that cannot be is answered, asked of a run that is over. */
async function refusals(args, whole) {
  const ask = (run, query, token = args.token) =>
    new Promise((resolve) => {
      const headers = token ? { authorization: `Bearer ${token}` } : {};
      const url = `${args.base.replace("http", "ws")}/v1/agents/runs/${encodeURIComponent(run)}/stream?${new URLSearchParams(query)}`;
      const socket = new WebSocket(url, { headers });
      const frames = [];
      socket.on("message", (message) => frames.push(JSON.parse(message)));
      socket.on("unexpected-response", (_, response) => {
        socket.terminate();
        resolve({ end: `HTTP ${response.statusCode}`, frames });
      });
      socket.on("error", () => {});
      socket.on("close", (code) => resolve({ end: code, frames }));
    });
  same("an unknown run", (await ask("no-such-run-zz", {})).end, 4404);
  if (args.token) same("a wrong token", (await ask(args.run, {}, "wrong")).end, 4401);
  const damaged = `${whole.cursor.slice(0, -1)}${whole.cursor.endsWith("A") ? "B" : "A"}`;
  for (const query of [{ since: "-2" }, { since: "abc" }, { since: "1.5" }, { cursor: damaged }, { cursor: "x" }]) {
    same(`${JSON.stringify(query)}`, (await ask(args.run, query)).end, "HTTP 400");
  }
  const beyond = await ask(args.run, { since: 1_000_000_000 });
  const gaps = beyond.frames.filter(({ type }) => type === "gap");
  same("a since beyond the end", [beyond.end, gaps.length], [1000, 1]);
  same("the latest step", gaps[0].latest_step_index, whole.run.last_step_index);
  const atEnd = await ask(args.run, { cursor: whole.cursor });
  same("a cursor at the end", [atEnd.end, atEnd.frames.every(({ type }) => type === "run")], [1000, true]);
}

async function askTicket(args) {
  const headers = args.token ? { authorization: `Bearer ${args.token}` } : {};
  const answer = await fetch(`${args.base}/v1/agents/runs/${encodeURIComponent(args.run)}/stream-ticket`, { headers }).catch(() => undefined);
  if (answer === undefined && args.restarts) return undefined;
  check(answer?.status === 200, `the ticket was answered with ${answer?.status}`);
  check(answer.headers.get("cache-control") === "no-store", "a ticket that may be stored");
  return (await answer.json()).ticket;
}
