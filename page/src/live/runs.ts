/**
 * The list of runs, kept up to date while somebody looks at it: the newest page and the runs that are going on are asked
 * for again and again, older pages now and then, one after another, for runs that are not kept any more. What was going on
 * and is not any more is asked for by itself.
 */

import { signal } from "@preact/signals";
import { APIError, type Run, type Step } from "runcast-client";

import { Transcript } from "../model/fold.js";
import { endOf, gone, type Page } from "../model/gone.js";
import { instant } from "../model/time.js";
import { isVisible, now, pause } from "./clock.js";
import { isOver } from "./feed.js";
import { asked, client, logins, wantsToken } from "./session.js";

const POLL_MS = 2000;
const WAIT_MAX_MS = 15_000;
const HEAD_LIMIT = 100;
const RUNNING_LIMIT = 500;
const PAGE_LIMIT = 500;
/** With every so many looks at the list comes a look at an older page. */
const OLDER_EVERY = 10;
/** So many ends are asked for at a time. */
const ENDS_MAX = 8;
/** A first look at a run takes so many steps. */
const PEEK_STEPS = 8;
const PEEKS_AT_ONCE = 3;
const PEEKS_MAX = 5000;

/** A run as it stands in the list. */
export interface Entry {
  readonly id: string;
  readonly run: Run;
  readonly status: string;
  /** What it is called, or what was said first in it; empty while nobody knows. */
  readonly title: string;
  readonly startedAt: number | undefined;
  readonly endedAt: number | undefined;
  /** When something was last heard of it. */
  readonly activeAt: number | undefined;
}

export type ListState =
  | { readonly kind: "loading" }
  | { readonly kind: "live" }
  | { readonly kind: "waiting"; readonly until: number; readonly why: string }
  | { readonly kind: "logged-out" }
  | { readonly kind: "refused"; readonly message: string };

export const listState = signal<ListState>({ kind: "loading" });

/** All runs that are known, newest first. */
export const entries = signal<readonly Entry[]>([]);

/** Whether the list is on the page: otherwise nobody asks for it. */
export const isListShown = signal(true);

/** Whether there are older ones. */
export const hasOlder = signal(false);

const runs = new Map<string, Run>();
/** The order: as the server gave it, newest first. */
let order: string[] = [];
const activity = new Map<string, number>();
const titles = new Map<string, string>();
let oldest: string | null = null;
let reachesEnd = false;
let loadingOlder = false;

export function startRuns(): void {
  void poll();
}

async function poll(): Promise<void> {
  const stop = new AbortController();
  let waitMs = POLL_MS;
  for (;;) {
    if (asked.peek() !== "no") await changed(logins);
    if (!isVisible.peek()) await changed(isVisible);
    if (!isListShown.peek()) await changed(isListShown);
    try {
      await look();
      waitMs = POLL_MS;
      listState.value = { kind: "live" };
      await pause(POLL_MS, stop.signal);
    } catch (error) {
      if (wantsToken(error)) {
        listState.value = { kind: "logged-out" };
        continue;
      }
      const why = error instanceof Error ? error.message : String(error);
      if (error instanceof APIError && error.status === 403) listState.value = { kind: "refused", message: why };
      else listState.value = { kind: "waiting", until: Date.now() + waitMs, why };
      await pause(waitMs, stop.signal);
      waitMs = Math.min(waitMs * 2, WAIT_MAX_MS);
    }
  }
}

/** Resolves when a signal has another value. */
function changed<Value>(of: { peek: () => Value; subscribe: (told: (value: Value) => void) => () => void }): Promise<void> {
  const before = of.peek();
  return new Promise((resolve) => {
    let isOver = false;
    const stop = of.subscribe((value) => {
      if (value === before || isOver) return;
      isOver = true;
      queueMicrotask(() => stop());
      resolve();
    });
  });
}

async function look(): Promise<void> {
  const list = client.peek().runs;
  const [head, running] = await Promise.all([list.list({ limit: HEAD_LIMIT }), list.list({ limit: RUNNING_LIMIT, status: "running" })]);
  const isWhole = running.next_cursor === null;
  const goesOn = new Set(running.runs.map((run) => run.id));
  for (const run of [...running.runs, ...head.runs]) put(run);
  // More has come than the newest page holds (nobody looked for a while): what lies between is not known.
  const last = head.runs.at(-1);
  if (head.next_cursor !== null && last !== undefined && order.length > 0 && !known.has(last.id)) {
    order = [];
    known.clear();
    oldest = null;
    reachesEnd = false;
  }
  drop(gone(runs.values(), head, undefined).filter((id) => !goesOn.has(id)));
  await lookBack(head, goesOn);
  // The head is the newest; what was known before follows, and runs that are going on have their place by their age.
  const fresh = new Set(head.runs.map((run) => run.id));
  order = [...head.runs.map((run) => run.id), ...order.filter((id) => !fresh.has(id))];
  let isSorted = true;
  for (const run of running.runs) {
    if (fresh.has(run.id) || known.has(run.id)) continue;
    order.push(run.id);
    isSorted = false;
  }
  for (const id of order) known.add(id);
  if (!isSorted) order.sort((a, b) => (instant(runs.get(b)?.created_at) ?? 0) - (instant(runs.get(a)?.created_at) ?? 0));
  if (oldest === null && !reachesEnd) {
    oldest = head.next_cursor;
    reachesEnd = oldest === null;
  }
  hasOlder.value = !reachesEnd;
  const ended = isWhole ? order.filter((id) => runs.get(id)?.status === "running" && !goesOn.has(id) && !fresh.has(id)) : [];
  for (const id of ended.slice(0, ENDS_MAX)) {
    try {
      put(await list.retrieve(id));
    } catch (error) {
      if (!(error instanceof APIError) || error.status !== 404) throw error;
      drop([id]);
    }
  }
  publish();
}

const known = new Set<string>();

/** Where the next look at an older page begins: behind the runs made at `from`. At the head, when there is none. */
let back: { readonly cursor: string; readonly from: number } | undefined;
let looks = 0;

/** Asks for one older page of what is known, when it is time to. */
async function lookBack(head: Page, goesOn: ReadonlySet<string>): Promise<void> {
  looks += 1;
  if (looks % OLDER_EVERY !== 0) return;
  const last = instant(runs.get(order.at(-1) ?? "")?.created_at) ?? Infinity;
  const place = back ?? behind(head);
  back = undefined;
  if (place === undefined || place.from <= last) return;
  const page = await client.peek().runs.list({ limit: PAGE_LIMIT, cursor: place.cursor });
  for (const run of page.runs) if (runs.has(run.id)) put(run);
  drop(gone(runs.values(), page, place.from).filter((id) => !goesOn.has(id)));
  back = behind(page);
}

function behind(page: Page): { cursor: string; from: number } | undefined {
  const from = endOf(page);
  return page.next_cursor === null || from === undefined ? undefined : { cursor: page.next_cursor, from };
}

/** Forgets runs. */
function drop(ids: readonly string[]): void {
  if (ids.length === 0) return;
  for (const id of ids) {
    runs.delete(id);
    known.delete(id);
    titles.delete(id);
    activity.delete(id);
    peeked.delete(id);
  }
  const dropped = new Set(ids);
  order = order.filter((id) => !dropped.has(id));
}

/** A page of its own was told that there is no such run. */
export function forget(id: string): void {
  if (!runs.has(id)) return;
  drop([id]);
  publish();
}

function put(run: Run): void {
  const before = runs.get(run.id);
  const moved = before !== undefined && (before.last_step_index !== run.last_step_index || before.status !== run.status);
  if (moved) activity.set(run.id, Date.now());
  runs.set(run.id, run);
}

function publish(): void {
  const out: Entry[] = [];
  for (const id of order) {
    const run = runs.get(id);
    if (run !== undefined) out.push(entry(run));
  }
  entries.value = out;
}

function entry(run: Run): Entry {
  const named = [run.title, run.name].find((name) => typeof name === "string" && name.trim() !== "") as string | undefined;
  const endedAt = instant(run.ended_at);
  const startedAt = instant(run.started_at) ?? instant(run.created_at);
  return {
    id: run.id,
    run,
    status: run.status,
    title: named ?? titles.get(run.id) ?? "",
    startedAt,
    endedAt,
    activeAt: isOver(run.status) ? (endedAt ?? activity.get(run.id)) : activity.get(run.id),
  };
}

/** A run that a page of its own has news of. */
export function tell(run: Run): void {
  if (!runs.has(run.id)) return;
  put(run);
  publish();
}

/** Takes the next older page. */
export async function loadOlder(): Promise<void> {
  if (loadingOlder || oldest === null) return;
  loadingOlder = true;
  try {
    const page = await client.peek().runs.list({ limit: PAGE_LIMIT, cursor: oldest });
    oldest = page.next_cursor;
    reachesEnd = oldest === null;
    for (const run of page.runs) {
      put(run);
      if (known.has(run.id)) continue;
      known.add(run.id);
      order.push(run.id);
    }
    hasOlder.value = !reachesEnd;
    publish();
  } catch (error) {
    wantsToken(error);
  } finally {
    loadingOlder = false;
  }
}

const peeked = new Set<string>();
const wanted = new Map<string, Run>();
let peeking = 0;

/** Says which runs are looked at: those without a title, or of which nobody knows when they were last active, get a first look. */
export function see(shown: readonly Entry[]): void {
  wanted.clear();
  for (const { id, run } of shown) if (!peeked.has(id)) wanted.set(id, run);
  while (peeking < PEEKS_AT_ONCE && wanted.size > 0) void peek();
}

async function peek(): Promise<void> {
  const next = wanted.entries().next().value;
  if (next === undefined) return;
  const [id, run] = next;
  wanted.delete(id);
  peeked.add(id);
  if (peeked.size > PEEKS_MAX) for (const oldest of peeked) {
    peeked.delete(oldest);
    titles.delete(oldest);
    break;
  }
  peeking += 1;
  try {
    const list = client.peek().runs;
    const { steps } = await list.steps(id, { limit: PEEK_STEPS });
    const seen = new Transcript();
    for (const step of steps) seen.step(step);
    if (seen.title !== "") titles.set(id, seen.title);
    // Nothing said yet: it is looked at again when it has gone on.
    else if (!isOver(run.status)) peeked.delete(id);
    const end = run.last_step_index;
    if (!isOver(run.status) && typeof end === "number" && !activity.has(id)) {
      const last: Step | undefined = end < steps.length ? steps.at(-1) : (await list.steps(id, { since: end - 1, limit: 1 })).steps.at(-1);
      const at = instant(last?.created_at);
      if (at !== undefined && !activity.has(id)) activity.set(id, Math.min(at, now.peek()));
    }
    publish();
  } catch (error) {
    // It is a look, and no more: the list says what is wrong. It is taken again with the next news of the list.
    peeked.delete(id);
    wantsToken(error);
  } finally {
    peeking -= 1;
  }
}
