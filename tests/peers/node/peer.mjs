// What the Node peers share: arguments, the truth, seeded chance, and the one line of JSON at the end.
import { isDeepStrictEqual, parseArgs } from "node:util";
import { readFileSync } from "node:fs";

const COMMON = {
  base: { type: "string", about: "URL   the server, http://127.0.0.1:PORT" },
  run: { type: "string", about: "ID    the run to watch" },
  token: { type: "string", about: "TEXT  bearer token" },
  truth: { type: "string", about: "FILE  what the run is to be (see ../README.md)" },
  cuts: { type: "string", default: "4", about: "N     how often each cut reading loses its connection" },
  seed: { type: "string", default: "1", about: "S     where it is cut" },
  timeout: { type: "string", default: "60", about: "SEC   after which it has failed, whatever it waits for" },
  restarts: { type: "boolean", default: false, about: "      the server may go away and return: reconnect" },
  help: { type: "boolean", default: false, about: "" },
};

/** A finding: the server did not do what its contract says. */
export class Wrong extends Error {}

export function check(holds, why) {
  if (!holds) throw new Wrong(why);
}

/** Says the first place where two lists differ. */
export function same(what, got, want) {
  if (isDeepStrictEqual(got, want)) return;
  if (!Array.isArray(got) || !Array.isArray(want)) throw new Wrong(`${what}: ${brief(got)}, expected ${brief(want)}`);
  const at = want.findIndex((item, at) => !isDeepStrictEqual(item, got[at]));
  const first = at < 0 ? want.length : at;
  throw new Wrong(`${what}: ${got.length} items, expected ${want.length}; at ${first}: ${brief(got[first])}, expected ${brief(want[first])}`);
}

/** Names what a finding is about. */
export function about(what, judge) {
  try {
    judge();
  } catch (error) {
    error.message = `${what}: ${error.message}`;
    throw error;
  }
}

export function brief(value) {
  const text = typeof value === "string" ? value : String(JSON.stringify(value));
  return text.length > 200 ? `${text.slice(0, 200)}… (${text.length})` : text;
}

/** Like `same`, for long text. */
export function sameText(what, got, want) {
  if (got === want) return;
  let at = 0;
  while (at < got.length && got[at] === want[at]) at++;
  const around = (text) => JSON.stringify(text.slice(Math.max(0, at - 20), at + 40));
  throw new Wrong(`${what}: ${got.length} characters, expected ${want.length}; at ${at}: ${around(got)}, expected ${around(want)}`);
}

/** Numbers from 0 up to 1 that a seed decides (mulberry32). */
export function chance(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** `count` byte budgets of successive connections that together carry at most `total` bytes. */
export function byteCuts(random, count, total) {
  const places = Array.from({ length: count }, () => Math.floor(random() * total)).sort((a, b) => a - b);
  return places.map((place, at) => Math.max(1, place - (at ? places[at - 1] : 0)));
}

/** After which numbers of items a reader leaves by itself. */
export function itemCuts(random, count, total) {
  return new Set(Array.from({ length: count }, () => 1 + Math.floor(random() * Math.max(1, total - 1))));
}

let stage = "starting";
/** What is being done, for the message when time runs out. */
export function now(what) {
  stage = what;
}

let seen = false;
/** Tells the harness, once, that a stream is open: from here on the run may go on. */
export function watching() {
  if (!seen) console.log("watching");
  seen = true;
}

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function finish(verdict) {
  console.log(JSON.stringify(verdict));
  process.exit(verdict.ok ? 0 : 1);
}

/** Runs one peer. `main` is given the arguments and the truth; what it returns goes into the last line. */
export async function peer(name, about, more, main) {
  const options = { ...COMMON, ...more };
  let args;
  try {
    args = parseArgs({ options: Object.fromEntries(Object.entries(options).map(([key, { about: _, ...rest }]) => [key, rest])) }).values;
    if (!args.help) for (const key of ["base", "run", "truth"]) if (!args[key]) throw new Error(`--${key} is needed`);
  } catch (error) {
    finish({ ok: false, why: error.message });
  }
  if (args.help) {
    const lines = Object.entries(options).map(([key, { about, default: value }]) => `  --${key} ${about}${value ? ` (${value})` : ""}`);
    console.log(`${name}: ${about}\n${lines.join("\n")}`);
    process.exit(0);
  }
  args.base = args.base.replace(/\/$/, "");
  for (const key of ["cuts", "seed", "timeout"]) args[key] = Number(args[key]);
  args.random = chance(args.seed);
  const clock = setTimeout(() => finish({ ok: false, peer: name, why: `not done after ${args.timeout} s: ${stage}` }), args.timeout * 1000);
  const fail = (error) => {
    if (!(error instanceof Wrong)) console.error(error.stack);
    finish({ ok: false, peer: name, why: error.message, stage });
  };
  process.on("uncaughtException", fail);
  try {
    const truth = JSON.parse(readFileSync(args.truth, "utf8"));
    const details = await main(args, truth);
    clearTimeout(clock);
    finish({ ok: true, peer: name, ...details });
  } catch (error) {
    fail(error);
  }
}
