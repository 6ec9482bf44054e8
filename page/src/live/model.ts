/** One run as it is looked at: what it holds, what is unfolded, what is looked for. */

import { signal } from "@preact/signals";
import type { Run, RunFrames } from "runcast-client";

import { Transcript } from "../model/fold.js";
import type { Item, ToolItem } from "../model/item.js";
import { type Found, search } from "../model/search.js";
import { announce } from "./announce.js";
import { Drawing } from "./clock.js";
import { Feed, isOver } from "./feed.js";
import { forget, tell } from "./runs.js";

/** A row of the transcript: an item at its depth, or what a sub-agent's call gave back, below what it did. */
export interface Row {
  readonly key: string;
  readonly item: Item;
  readonly depth: number;
  readonly isTail: boolean;
}

function tailKey(item: Item): string {
  return `${item.key}-tail`;
}

export interface Search {
  readonly query: string;
  /** Where it is, in the order of the transcript. */
  readonly found: readonly Found[];
  readonly at: number;
}

export class RunModel {
  readonly id: string;
  readonly transcript = new Transcript();
  readonly feed: Feed;
  readonly run = signal<Run | undefined>(undefined);
  /** Grows with each change of what is to be seen, at most once a frame. */
  readonly version = signal(0);
  readonly follows = signal(true);
  readonly selected = signal<string | undefined>(undefined);
  /** The row that the keys went to: it takes the focus when it is drawn. */
  wantsFocus: string | undefined;
  /** The row to be brought into view; a new object each time. */
  readonly target = signal<{ readonly key: string } | undefined>(undefined);
  readonly search = signal<Search>({ query: "", found: [], at: -1 });
  /** What came since the reader left the end. */
  readonly unread = signal(0);
  /** Whether a frame has come. */
  readonly hasBegun = signal(false);

  readonly #unfolded = new Map<string, boolean>();
  #rows: readonly Row[] = [];
  #rowsAt = -1;
  readonly #drawing = new Drawing(() => {
    this.#seek();
    this.version.value += 1;
    this.#announce();
  });
  #announced = { steps: 0, failed: 0, isOver: false };

  constructor(id: string) {
    this.id = id;
    this.feed = new Feed(id, (frame) => this.#take(frame));
    this.feed.connection.subscribe((connection) => {
      if (connection.kind === "refused" && connection.code === "unknown_run") forget(id);
    });
  }

  start(): void {
    this.feed.start();
  }

  stop(): void {
    this.feed.stop();
  }

  #take(frame: RunFrames): void {
    const before = this.transcript.steps;
    this.transcript.isLive = this.feed.isCaughtUp;
    if ("run" in frame) {
      // Who comes to a run that is over reads it from its beginning.
      if (this.run.peek() === undefined && isOver(frame.run.status)) this.follows.value = false;
      this.run.value = frame.run;
      tell(frame.run);
    }
    this.transcript.take(frame);
    if (frame.type === "run" && isOver(frame.run.status)) this.transcript.settle();
    if (!this.follows.peek() && this.transcript.isLive) this.unread.value += this.transcript.steps - before;
    if (!this.hasBegun.peek()) this.hasBegun.value = true;
    this.changed();
  }

  /** Has the view drawn anew, with the next frame. */
  changed(): void {
    // History is drawn at once, and then now and then, so that reading it goes first; what is news waits for no history.
    this.#drawing.ask(this.transcript.isLive || this.version.peek() === 0 ? "soon" : "later");
  }

  /** Tells of what was just drawn, with one sentence: the end of a run comes after its last steps and outweighs them. */
  #announce(): void {
    const { transcript } = this;
    const status = this.run.peek()?.status;
    const over = status !== undefined && isOver(status);
    const failed = transcript.calls.filter((call) => call.state === "failed").length;
    const steps = transcript.steps - this.#announced.steps;
    if (transcript.isLive && over && !this.#announced.isOver) announce(`The run has ended: ${status}`);
    else if (transcript.isLive && this.#announced.steps > 0 && steps > 0) {
      const more = failed - this.#announced.failed;
      announce(`${steps} new ${steps === 1 ? "step" : "steps"}${more > 0 ? `, ${more} failed` : ""}`);
    }
    this.#announced = { steps: transcript.steps, failed, isOver: over };
  }

  isUnfolded(item: Item): boolean {
    const known = this.#unfolded.get(item.key);
    if (known !== undefined) return known;
    return item.kind === "tool" && item.beganLive;
  }

  unfold(item: Item, isOpen: boolean): void {
    this.#unfolded.set(item.key, isOpen);
    item.rev += 1;
    this.#rowsAt = -1;
    this.version.value += 1;
  }

  toggle(item: Item): void {
    this.unfold(item, !this.isUnfolded(item));
  }

  /** Unfolds, or folds, everything that can be. */
  unfoldAll(isOpen: boolean): void {
    const walk = (items: readonly Item[]): void => {
      for (const item of items) {
        this.#unfolded.set(item.key, isOpen);
        item.rev += 1;
        if (item.kind === "tool") walk(item.children);
      }
    };
    walk(this.transcript.items);
    this.#rowsAt = -1;
    this.version.value += 1;
  }

  /** What is to be seen, one below another. */
  rows(): readonly Row[] {
    if (this.#rowsAt === this.transcript.rev) return this.#rows;
    const out: Row[] = [];
    const walk = (items: readonly Item[], depth: number): void => {
      for (const item of items) {
        out.push({ key: item.key, item, depth, isTail: false });
        if (item.kind !== "tool" || item.children.length === 0 || !this.isUnfolded(item)) continue;
        walk(item.children, depth + 1);
        if (item.output !== undefined) out.push({ key: tailKey(item), item, depth: depth + 1, isTail: true });
      }
    };
    walk(this.transcript.items, 0);
    const { open } = this.transcript;
    if (open !== undefined) out.push({ key: open.key, item: open, depth: 0, isTail: false });
    this.#rows = out;
    this.#rowsAt = this.transcript.rev;
    return out;
  }

  /** Brings an item into view, out of the folds that it lies in. */
  show(item: Item, isUnfolded: boolean, isTail = false): void {
    for (let above: ToolItem | undefined = item.parent; above !== undefined; above = above.parent) {
      if (!this.isUnfolded(above)) this.unfold(above, true);
    }
    if (isUnfolded && !this.isUnfolded(item)) this.unfold(item, true);
    const key = isTail ? tailKey(item) : item.key;
    this.follows.value = false;
    this.selected.value = key;
    this.target.value = { key };
  }

  /** Goes so many rows on, or back. */
  step(by: number): void {
    const rows = this.rows();
    const at = rows.findIndex((row) => row.key === this.selected.peek());
    const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by))];
    if (next === undefined) return;
    this.wantsFocus = next.key;
    this.follows.value = false;
    this.selected.value = next.key;
    this.target.value = { key: next.key };
  }

  toStart(): void {
    const first = this.rows()[0];
    if (first !== undefined) this.show(first.item, false);
  }

  toEnd(): void {
    this.unread.value = 0;
    this.selected.value = undefined;
    this.follows.value = true;
    this.version.value += 1;
  }

  look(query: string): void {
    this.search.value = { query, found: [], at: -1 };
    this.#seekRev = -1;
    this.#seek();
    if (this.search.peek().found.length > 0) this.next(1);
    this.version.value += 1;
  }

  /** Goes to the next place that was found, or to the one before. */
  next(by: number): void {
    const { query, found, at } = this.search.peek();
    if (found.length === 0) return;
    const here = at < 0 ? (by > 0 ? 0 : found.length - 1) : (at + by + found.length) % found.length;
    this.search.value = { query, found, at: here };
    const place = found[here];
    if (place !== undefined) this.show(place.item, true, place.isTail);
  }

  #seekRev = -1;

  #seek(): void {
    const { query, found, at } = this.search.peek();
    if (query === "" || this.#seekRev === this.transcript.rev) return;
    this.#seekRev = this.transcript.rev;
    const fresh = search(this.transcript.items, query);
    const here = found[at];
    this.search.value = { query, found: fresh, at: here === undefined ? -1 : fresh.findIndex((place) => place.item === here.item && place.isTail === here.isTail) };
  }
}
