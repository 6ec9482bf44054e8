/** Runs that the server does not have any more. */

import type { Run } from "runcast-client";

import { instant } from "./time.js";

/** A page of the server's list, newest first. */
export interface Page {
  readonly runs: readonly Run[];
  readonly next_cursor: string | null;
}

/**
 * Of the runs that are known, those that a page would have if they were there: the ones made before `from` (all, on the
 * first page) and after the last of the page (all, on the last page). Of those made in the same moment as an end of the
 * page nothing can be said.
 */
export function gone(known: Iterable<Run>, page: Page, from: number | undefined): string[] {
  const there = new Set(page.runs.map((run) => run.id));
  const to = page.next_cursor === null ? undefined : endOf(page);
  const out: string[] = [];
  for (const run of known) {
    const at = instant(run.created_at);
    const isWithin = at !== undefined && (from === undefined || at < from) && (page.next_cursor === null || (to !== undefined && at > to));
    if (isWithin && !there.has(run.id)) out.push(run.id);
  }
  return out;
}

/** When the last run of a page was made. */
export function endOf(page: Page): number | undefined {
  return instant(page.runs.at(-1)?.created_at);
}
