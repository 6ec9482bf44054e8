// npm `@connectrpc/connect-node`: ObserveRun and GetRun over Connect, gRPC and gRPC-Web.
import { createFileRegistry, fromBinary, toJson } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport, createGrpcTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { Observed } from "./bridge.mjs";
import { about, byteCuts, check, itemCuts, now, pause, peer, same, watching } from "./peer.mjs";
import { cuttingProxy } from "./proxy.mjs";

const TRANSPORTS = {
  "connect-json-h1": (options) => createConnectTransport({ ...options, httpVersion: "1.1", useBinaryFormat: false }),
  "connect-proto-h1": (options) => createConnectTransport({ ...options, httpVersion: "1.1", useBinaryFormat: true }),
  "connect-json-h2": (options) => createConnectTransport({ ...options, httpVersion: "2", useBinaryFormat: false }),
  "connect-proto-h2": (options) => createConnectTransport({ ...options, httpVersion: "2", useBinaryFormat: true }),
  "grpc-h2": (options) => createGrpcTransport(options),
  "grpc-web-h1": (options) => createGrpcWebTransport({ ...options, httpVersion: "1.1" }),
  "grpc-web-h2": (options) => createGrpcWebTransport({ ...options, httpVersion: "2" }),
};
const options = {
  transport: { type: "string", default: "all", about: `NAME  one of ${Object.keys(TRANSPORTS).join(", ")}` },
  proto: { type: "string", default: fileURLToPath(new URL("../../../translators/proto", import.meta.url)), about: "DIR   where sdk/v1/sdk.proto is" },
  agent: { type: "string", default: "runcast", about: "NAME  the agent that the run is of" },
};
const RUN_NOT_FOUND = 7;

await peer("connect-node", "watches a run over sdk.v1", options, async (args, truth) => {
  const registry = schema(args.proto);
  const names = args.transport === "all" ? Object.keys(TRANSPORTS) : [args.transport];
  check(names.every((name) => name in TRANSPORTS), `no transport ${args.transport}`);
  const bytes = truth.steps.reduce((sum, step) => sum + step.length / 2 + 150, 0);
  const half = Math.ceil(args.cuts / 2);
  const cutting = (total, messages) => ({ budgets: byteCuts(args.random, half, total), leaves: itemCuts(args.random, args.cuts - half, messages) });

  const readings = [];
  const judge = (reading, when) => {
    readings.push(reading);
    about(`${reading.name}, ${when}`, () => {
      reading.has.is(truth);
      // Only within one transport: JSON carries integers that a Struct cannot.
      same("messages", reading.has.messages, readings.find(({ name }) => name === reading.name).has.messages);
    });
  };

  now("reading while the run may be live");
  const messages = truth.bridge_types?.length ?? truth.steps.length;
  const live = names.flatMap((name) => [read(args, registry, name), read(args, registry, name, cutting(bytes, messages))]);
  for (const reading of await Promise.all(live)) judge(reading, "live");
  for (const name of names) {
    now(`reading again over ${name}`);
    const whole = await read(args, registry, name);
    judge(whole, "replay");
    judge(await read(args, registry, name, cutting(whole.bytes, whole.has.messages.length)), "replay, cut");
    await refusals(args, registry, name, whole.has, truth);
  }
  const sum = (count) => readings.reduce((total, reading) => total + count(reading), 0);
  return {
    transports: names,
    messages: readings[0].has.messages.length,
    cuts: sum(({ cuts }) => cuts),
    returns: sum(({ returns }) => returns),
    keepalives: sum(({ has }) => has.keepalives),
  };
});

/** The schema as it is in the tree, without generated code. */
function schema(proto) {
  const folder = mkdtempSync(path.join(tmpdir(), "runcast-peers-"));
  const image = path.join(folder, "sdk.binpb");
  const bin = process.env.RUNCAST_TEST_BIN_DIR ?? fileURLToPath(new URL("../../../.cache/python/bin", import.meta.url));
  try {
    execFileSync(path.join(bin, "buf"), ["build", proto, "-o", image], { env: { ...process.env, BUF_CACHE_DIR: folder } });
    return createFileRegistry(fromBinary(FileDescriptorSetSchema, readFileSync(image)));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function client(args, registry, name, base) {
  const authorize = (next) => (request) => {
    if (args.token) request.header.set("authorization", `Bearer ${args.token}`);
    return next(request);
  };
  const jsonOptions = { registry };
  return createClient(registry.getService("sdk.v1.SdkAgentService"), TRANSPORTS[name]({ baseUrl: base, interceptors: [authorize], jsonOptions }));
}

/** Reads to the end, over as many calls as the cuts make of it. */
async function read(args, registry, name, { budgets = [], leaves = new Set() } = {}) {
  const proxy = await cuttingProxy(args.base, budgets, args.random);
  const asking = client(args, registry, name, proxy.base);
  const message = registry.getMessage("sdk.v1.RunStreamMessage");
  const has = new Observed(args.run, args.agent);
  let left = 0;
  let returns = 0;
  while (!has.ended) {
    const leaving = new AbortController();
    try {
      const stream = asking.observeRun({ runId: args.run, afterOffset: has.offset }, { signal: leaving.signal, onHeader: watching });
      for await (const received of stream) {
        has.take(received, toJson(message, received, { registry }));
        if (leaves.delete(has.messages.length)) {
          left += 1;
          leaving.abort();
        }
      }
      has.ends();
    } catch (error) {
      if (!(error instanceof ConnectError)) throw error;
      if (leaving.signal.aborted || proxy.explainsDrop()) continue;
      const away = [Code.Unavailable, Code.Unknown, Code.Internal, Code.Aborted, Code.Canceled].includes(error.code);
      if (!args.restarts || !away) throw error;
      returns += 1;
      await pause(100);
    }
  }
  proxy.close();
  return { name, has, cuts: proxy.cuts + left, returns, bytes: proxy.bytes };
}

/** The rest of the contract, asked of a run that is over. */
async function refusals(args, registry, name, whole, truth) {
  const asking = client(args, registry, name, args.base);
  const observe = async (request) => {
    const kinds = [];
    for await (const received of asking.observeRun(request)) kinds.push(received.envelope.case);
    return kinds;
  };
  const refused = async (what, call, code) => {
    const error = await call().then(() => undefined, (error) => error);
    check(error instanceof ConnectError && error.code === code, `${name}: ${what}: ${error?.message ?? "no error"}, expected ${Code[code]}`);
    return error;
  };
  const [result, done] = whole.messages.slice(-2).map(({ offset }) => offset);
  same(`${name}: after the result`, await observe({ runId: args.run, afterOffset: result }), ["done"]);
  same(`${name}: after done`, await observe({ runId: args.run, afterOffset: done }), []);
  const all = await observe({ runId: args.run, afterOffset: "" });
  check(all.length === whole.messages.length, `${name}: ${all.length} messages for an empty offset`);
  const damaged = `${result.slice(0, -1)}${result.endsWith("A") ? "B" : "A"}`;
  for (const offset of [damaged, "1", "not-an-offset", "A".repeat(200)]) {
    await refused(`offset ${offset.slice(0, 40)}`, () => observe({ runId: args.run, afterOffset: offset }), Code.InvalidArgument);
  }
  const unknown = { runId: "no-such-run-zz" };
  for (const [what, call] of [["GetRun", () => asking.getRun(unknown)], ["ObserveRun", () => observe(unknown)]]) {
    const error = await refused(`${what} of an unknown run`, call, Code.NotFound);
    const [details] = error.findDetails(registry.getMessage("sdk.v1.SdkErrorDetails"));
    check(details?.sdkErrorCode === RUN_NOT_FOUND, `${name}: ${what} of an unknown run has no RUN_NOT_FOUND in its details`);
  }
  const { run } = await asking.getRun({ runId: args.run });
  same(`${name}: GetRun`, [run.runId, run.agentId], [args.run, args.agent]);
  check(run.status === Observed.status(truth), `${name}: GetRun says status ${run.status}`);
}
