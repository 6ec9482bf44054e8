/** Calls as bars in lanes: those of the main thread above, those of each sub-agent below the call that began it. */

import type { ToolItem } from "./item.js";
import { duration } from "./time.js";

export interface Bar {
  readonly call: ToolItem;
  readonly lane: number;
  readonly from: number;
  readonly to: number;
  readonly isAgent: boolean;
}

export interface Chart {
  readonly bars: readonly Bar[];
  readonly lanes: number;
  readonly from: number;
  readonly to: number;
  readonly ticks: readonly { readonly at: number; readonly label: string }[];
  /** There are no times to go by, so the calls stand one after another. */
  readonly byOrder: boolean;
}

const LANES_MAX = 8;
/** What happened within less was recorded at once: its times say nothing. */
const SPAN_MIN_MS = 50;
const TICKS_MS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400].map((seconds) => seconds * 1000);
const TICKS = 8;

/** `until`: where calls end that are still running. */
export function lay(calls: readonly ToolItem[], until: number): Chart {
  const times = calls.flatMap((call) => [call.startedAt, call.endedAt]).filter((at) => at !== undefined);
  const first = times.reduce((least, at) => Math.min(least, at), Infinity);
  const last = times.reduce((most, at) => Math.max(most, at), until);
  // A call takes a while; where calls take less each than the clock can tell, they were replayed.
  const byOrder = !Number.isFinite(first) || last - first < Math.max(SPAN_MIN_MS, calls.length * 3);
  const begin = (call: ToolItem, at: number): number => (byOrder ? at : (call.startedAt ?? call.endedAt ?? first));
  const finish = (call: ToolItem, at: number): number => {
    if (!byOrder) return Math.max(begin(call, at), call.endedAt ?? (call.state === "running" ? until : begin(call, at)));
    return at + 0.8 + (call.children.length > 0 ? call.calls : 0);
  };
  const [from, to] = byOrder ? [0, Math.max(1, calls.length)] : [first, Math.max(last, first + 1)];
  const least = byOrder ? 0 : (to - from) / 400;

  const bars: Bar[] = [];
  // The main thread has the first lanes; each sub-agent takes the first free ones below.
  const ends: number[] = [];
  const threads = new Map<ToolItem | undefined, number>();
  const put = (call: ToolItem, at: number, floor: number): number => {
    const [start, end] = [begin(call, at), Math.max(finish(call, at), begin(call, at) + least)];
    let lane = floor;
    while (lane < LANES_MAX - 1 && (ends[lane] ?? -Infinity) > start) lane += 1;
    ends[lane] = Math.max(ends[lane] ?? -Infinity, end);
    bars.push({ call, lane, from: start, to: finish(call, at), isAgent: call.children.length > 0 });
    return lane;
  };
  let main = 0;
  calls.forEach((call, at) => {
    if (call.parent === undefined) main = Math.max(main, put(call, at, 0));
  });
  const floor = Math.min(main + 1, LANES_MAX - 1);
  calls.forEach((call, at) => {
    if (call.parent === undefined) return;
    const known = threads.get(call.parent);
    if (known !== undefined) {
      ends[known] = Math.max(ends[known] ?? 0, finish(call, at));
      bars.push({ call, lane: known, from: begin(call, at), to: finish(call, at), isAgent: call.children.length > 0 });
      return;
    }
    // The lane is its thread's for as long as the call above it takes.
    const parentAt = calls.indexOf(call.parent);
    const lane = put(call, at, floor);
    threads.set(call.parent, lane);
    ends[lane] = Math.max(ends[lane] ?? 0, byOrder ? finish(call, at) : finish(call.parent, parentAt));
  });
  return { bars, lanes: Math.max(1, ends.length), from, to, ticks: byOrder ? [] : ticks(from, to), byOrder };
}

function ticks(from: number, to: number): { at: number; label: string }[] {
  const span = to - from;
  const every = TICKS_MS.find((ms) => span / ms <= TICKS) ?? span / TICKS;
  const out: { at: number; label: string }[] = [];
  for (let at = 0; at <= span; at += every) out.push({ at: from + at, label: at === 0 ? "0" : duration(at).replace(/\.0 s$/, " s").replace(/ min 00 s$/, " min").replace(/ h 00 min$/, " h") });
  return out;
}
