// npm `eventsource`: node events over SSE. It reconnects by itself, with Last-Event-ID, until it is answered 204.
import { EventSource } from "eventsource";
import { about, byteCuts, check, now, peer, same, watching } from "./peer.mjs";
import { NodeEvents } from "./nodes.mjs";
import { cuttingProxy } from "./proxy.mjs";

const KINDS = ["node.output_text.delta", "node.tool_call.started", "node.tool_call.completed", "node.report", "node.settled", "message"];

await peer("eventsource", "watches a node over server-sent events", {}, async (args, truth) => {
  const guess = truth.texts.length + 300 * truth.tools.length + 600;
  const readings = [];
  const judge = (reading, when) => {
    readings.push(reading);
    about(when, () => {
      reading.has.is(truth);
      same("records without text", reading.has.others(), readings[0].has.others());
    });
  };

  now("reading while the run may be live");
  const live = await Promise.all([read(args), read(args, byteCuts(args.random, args.cuts, guess))]);
  live.forEach((reading, at) => judge(reading, at ? "live, cut" : "live"));
  now("reading again from the start");
  const replay = await Promise.all([read(args), read(args, byteCuts(args.random, args.cuts, await replayLength(args)))]);
  replay.forEach((reading, at) => judge(reading, at ? "replay, cut" : "replay"));
  const sum = (count) => readings.reduce((total, reading) => total + count(reading), 0);
  return {
    records: readings[0].has.records.length,
    deltas: readings[0].has.deltas(),
    cuts: sum(({ cuts }) => cuts),
    connections: sum(({ connections }) => connections),
    returns: sum(({ returns }) => returns),
  };
});

/** Lets an EventSource run until it stops by itself. */
async function read(args, budgets = []) {
  const proxy = await cuttingProxy(args.base, budgets, args.random);
  const has = new NodeEvents(args.run);
  let connections = 0;
  let last = null;
  await new Promise((resolve, reject) => {
    const source = new EventSource(`${proxy.base}/v1/nodes/${encodeURIComponent(args.run)}/events`, {
      fetch: async (url, init) => {
        const headers = { ...init.headers, ...(args.token && { authorization: `Bearer ${args.token}` }) };
        connections += 1;
        const answer = await fetch(url, { ...init, headers });
        last = { status: answer.status, after: headers["Last-Event-ID"] };
        return answer;
      },
    });
    const guard = (take) => (event) => {
      try {
        take(event);
      } catch (error) {
        source.close();
        reject(error);
      }
    };
    source.addEventListener("open", watching);
    for (const kind of KINDS) {
      source.addEventListener(kind, guard((event) => has.take(kind, event.data, event.lastEventId)));
    }
    source.addEventListener("error", guard((event) => {
      if ("data" in event) {
        const { code } = JSON.parse(event.data).error;
        check(args.restarts && code === "draining", `an error record: ${code}`);
      } else if (source.readyState === source.CLOSED) {
        check(event.code === 204, `it stopped at ${event.code}: ${event.message}`);
        check(has.settled() && last.after === has.records.at(-1).id, `204 for ${last.after}, which is not the settled cursor`);
        resolve();
      }
    }));
  });
  proxy.close();
  // One connection is the first, one meets the 204.
  const returns = connections - 2 - proxy.cuts;
  check(args.restarts || returns <= 0, `${returns} connections more than the cuts explain`);
  return { has, cuts: proxy.cuts, connections, returns: Math.max(0, returns) };
}

/** How many bytes a replay of the whole takes. */
async function replayLength(args) {
  const headers = { accept: "text/event-stream", ...(args.token && { authorization: `Bearer ${args.token}` }) };
  const answer = await fetch(`${args.base}/v1/nodes/${encodeURIComponent(args.run)}/events`, { headers });
  check(answer.status === 200, `a settled run was answered with ${answer.status}`);
  return (await answer.arrayBuffer()).byteLength;
}
