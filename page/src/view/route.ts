/** What is looked at, as the address says: `#/runs/ID`. So the address needs nothing of the server. */

import { signal } from "@preact/signals";

const PREFIX = "#/runs/";

function read(): string | undefined {
  const { hash } = location;
  if (!hash.startsWith(PREFIX) || hash.length === PREFIX.length) return undefined;
  try {
    return decodeURIComponent(hash.slice(PREFIX.length));
  } catch {
    return hash.slice(PREFIX.length);
  }
}

/** The run that is looked at; `undefined` for the list. */
export const openRun = signal(read());

export function startRoutes(): void {
  window.addEventListener("hashchange", () => (openRun.value = read()));
}

export function addressOf(run: string): string {
  return `${PREFIX}${encodeURIComponent(run)}`;
}

export function go(run: string | undefined): void {
  location.hash = run === undefined ? "#/" : addressOf(run);
}
