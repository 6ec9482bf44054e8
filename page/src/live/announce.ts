/** What a screen reader is told: the newest news, and never more than one in a while. */

import { signal } from "@preact/signals";

const QUIET_MS = 6000;

export const announced = signal("");

let waiting: string | undefined;
let isQuiet = false;

export function announce(text: string): void {
  if (isQuiet) {
    waiting = text;
    return;
  }
  announced.value = text;
  isQuiet = true;
  setTimeout(() => {
    isQuiet = false;
    const next = waiting;
    waiting = undefined;
    if (next !== undefined) announce(next);
  }, QUIET_MS);
}
