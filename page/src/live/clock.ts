/** Time, for those who look: it stands still while the tab is hidden. */

import { signal } from "@preact/signals";

const TICK_MS = 1000;
/** A tick that comes later than this was asleep. */
const SLEPT_MS = 5000;
const HIDDEN_MS = 200;
const LATER_MS = 250;

/** The time of the last tick, in milliseconds. */
export const now = signal(Date.now());

/** Whether anybody can see the page. */
export const isVisible = signal(!document.hidden);

/** Grows when the machine has slept, the network came back or the page is seen again: what waits need not wait on. */
export const wakes = signal(0);

function tick(): void {
  const at = Date.now();
  if (at - now.peek() > SLEPT_MS && isVisible.peek()) wakes.value += 1;
  if (isVisible.peek()) now.value = at;
}

/** Begins to tell the time. */
export function startClock(): void {
  setInterval(tick, TICK_MS);
  document.addEventListener("visibilitychange", () => {
    now.value = Date.now();
    isVisible.value = !document.hidden;
    if (!document.hidden) wakes.value += 1;
  });
  window.addEventListener("online", () => (wakes.value += 1));
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) wakes.value += 1;
  });
}

/** Resolves after so long, or at once when `signal` is aborted or the page wakes up. */
export function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) {
      resolve();
      return;
    }
    const before = wakes.peek();
    const stop = wakes.subscribe((count) => {
      if (count !== before) done();
    });
    const timer = setTimeout(done, ms);
    function done(): void {
      clearTimeout(timer);
      stop();
      signal.removeEventListener("abort", done);
      resolve();
    }
    signal.addEventListener("abort", done);
  });
}

/** Calls `task` before the next frame is painted; soon, when the tab is hidden and paints none. */
export function soon(task: () => void): void {
  if (document.hidden) setTimeout(task, HIDDEN_MS);
  else requestAnimationFrame(() => task());
}

let waiting: (() => void)[] = [];

/** Calls `task` before one of the next frames is painted, together with all others that wait for that. */
export function later(task: () => void): void {
  waiting.push(task);
  if (waiting.length > 1) return;
  const run = (): void => {
    const tasks = waiting;
    waiting = [];
    for (const waited of tasks) waited();
  };
  setTimeout(() => soon(run), LATER_MS);
}

/** Calls a task with one of the next frames, once for all that asked for it: soon, or later if nobody is in a hurry. */
export class Drawing {
  readonly #task: () => void;
  #due: "soon" | "later" | undefined;

  constructor(task: () => void) {
    this.#task = task;
  }

  ask(when: "soon" | "later"): void {
    if (this.#due === "soon" || this.#due === when) return;
    this.#due = when;
    (when === "soon" ? soon : later)(() => {
      if (this.#due !== when) return;
      this.#due = undefined;
      this.#task();
    });
  }
}
