/**
 * One run, followed. It says what is true of its connection, and comes back by itself with the exact cursor, so that
 * nothing is lost and nothing is shown twice.
 */

import { signal } from "@preact/signals";
import { APIError, type RunFrames, type RunStream } from "runcast-client";

import { Drawing, pause, wakes } from "./clock.js";
import { client, logins, wantsToken } from "./session.js";

export type Connection =
  | { readonly kind: "connecting"; readonly again: boolean }
  | { readonly kind: "catching-up"; readonly have: number; readonly of: number }
  | { readonly kind: "live" }
  /** `until`: when it is tried again, in milliseconds. */
  | { readonly kind: "waiting"; readonly until: number; readonly why: string; readonly cursor: string | undefined }
  /** No socket can be had, so steps are asked for. */
  | { readonly kind: "polling" }
  | { readonly kind: "ended" }
  | { readonly kind: "logged-out" }
  | { readonly kind: "refused"; readonly code: string; readonly message: string };

const WAIT_MIN_MS = 300;
const WAIT_MAX_MS = 15_000;
const DRAINING = 1001;
const DRAIN_SPREAD_MS = 2000;
/** After so many sockets in a row that never said anything, while the server answers otherwise, steps are asked for. */
const MUTE_MAX = 3;
const POLL_MS = 2000;
/** So often steps are asked for before a socket is tried again. */
const POLLS = 15;
const POLL_LIMIT = 200;
/** A stream that says nothing for so long is not trusted when the page wakes up: the server says something every 20 s. */
const STALE_MS = 25_000;

const TERMINAL: ReadonlySet<string> = new Set(["completed", "error", "cancelled", "stopped", "expired"]);

export function isOver(status: string | undefined): boolean {
  return status !== undefined && TERMINAL.has(status);
}

export class Feed {
  readonly connection = signal<Connection>({ kind: "connecting", again: false });
  /** Whether what comes is news rather than history. */
  isCaughtUp = false;
  readonly #id: string;
  readonly #take: (frame: RunFrames) => void;
  readonly #stop = new AbortController();
  #stream: RunStream | undefined;
  #skip: AbortController | undefined;
  #cursor: string | undefined;
  #have = -1;
  #end = -1;
  #heard = Date.now();
  #isStale = false;
  #isOver = false;
  #next: Connection | undefined;
  readonly #showing = new Drawing(() => {
    if (this.#next !== undefined && this.#next !== this.connection.peek()) this.connection.value = this.#next;
  });

  /** `take` gets each frame, in order. */
  constructor(id: string, take: (frame: RunFrames) => void) {
    this.#id = id;
    this.#take = take;
  }

  start(): void {
    const forget = wakes.subscribe(() => this.#wake());
    this.#stop.signal.addEventListener("abort", forget);
    void this.#follow();
  }

  stop(): void {
    this.#stop.abort();
    this.#stream?.abort();
  }

  /** Does not wait any longer. */
  retry(): void {
    this.#skip?.abort();
  }

  #wake(): void {
    if (this.connection.peek().kind === "ended" || Date.now() - this.#heard <= STALE_MS) return;
    this.#isStale = true;
    this.#stream?.abort();
  }

  /** What changes with each frame is shown when the next one is drawn, everything else at once. */
  #say(connection: Connection): void {
    this.#next = connection;
    const isFrequent = connection.kind === "catching-up" || connection.kind === "live";
    if (!isFrequent) {
      this.isCaughtUp = connection.kind === "polling";
      this.connection.value = connection;
    } else if (connection.kind !== this.connection.peek().kind) this.#showing.ask("soon");
    else if (connection.kind === "catching-up") this.#showing.ask("later");
  }

  #isStopped(): boolean {
    return this.#stop.signal.aborted;
  }

  async #follow(): Promise<void> {
    let waitMs = WAIT_MIN_MS;
    let mute = 0;
    while (!this.#isStopped()) {
      this.#say({ kind: "connecting", again: this.#have >= 0 });
      let why = "the connection was cut";
      let didHear = false;
      let isDraining = false;
      try {
        const cursor = this.#cursor;
        const stream = client.peek().runs.watch(this.#id, {
          deltas: true,
          resume: false,
          ...(cursor !== undefined ? { cursor } : this.#have >= 0 ? { since: this.#have } : {}),
        });
        this.#stream = stream;
        this.#heard = Date.now();
        for await (const frame of stream) {
          if (this.#isStopped()) return;
          didHear = true;
          mute = 0;
          waitMs = WAIT_MIN_MS;
          this.#heard = Date.now();
          this.#cursor = stream.cursor;
          this.#took(frame, true);
        }
        if (this.#isStopped()) return;
        if (!this.#isStale) {
          this.#say({ kind: "ended" });
          return;
        }
        this.#isStale = false;
        continue;
      } catch (error) {
        if (this.#isStopped()) return;
        if (wantsToken(error)) {
          this.#say({ kind: "logged-out" });
          await this.#login();
          continue;
        }
        if (error instanceof APIError && error.code === "streaming_unsupported") mute = MUTE_MAX;
        else if (isFinal(error)) {
          const { code, message } = error;
          this.#say({ kind: "refused", code, message });
          return;
        }
        why = error instanceof Error ? error.message : String(error);
        isDraining = error instanceof APIError && error.details?.close_code === DRAINING;
      }
      if (await this.#isAllThere()) {
        this.#say({ kind: "ended" });
        return;
      }
      if (!didHear) mute += 1;
      if (mute >= MUTE_MAX && (await this.#poll())) return;
      if (this.#isStopped()) return;
      // A server that goes down sends all of its clients away at once.
      const ms = isDraining ? Math.random() * DRAIN_SPREAD_MS : waitMs * (0.7 + Math.random() * 0.6);
      waitMs = Math.min(waitMs * 2, WAIT_MAX_MS);
      this.#say({ kind: "waiting", until: Date.now() + ms, why, cursor: this.#cursor });
      await this.#pause(ms);
    }
  }

  /** Waits, until somebody presses the button or the page wakes up. */
  async #pause(ms: number): Promise<void> {
    const skip = new AbortController();
    this.#skip = skip;
    await pause(ms, AbortSignal.any([skip.signal, this.#stop.signal]));
  }

  #login(): Promise<void> {
    const before = logins.peek();
    return new Promise((resolve) => {
      const forget = logins.subscribe((count) => {
        if (count !== before) resolve();
      });
      this.#stop.signal.addEventListener(
        "abort",
        () => {
          forget();
          resolve();
        },
        { once: true },
      );
    });
  }

  /** `isSocket`: it came over a socket, so what follows comes by itself. */
  #took(frame: RunFrames, isSocket: boolean): void {
    if ("run" in frame) this.#isOver = isOver(frame.run.status);
    if ("run" in frame) this.#end = Math.max(this.#end, frame.run.last_step_index ?? -1);
    if ("steps" in frame) for (const step of frame.steps) this.#have = Math.max(this.#have, step.step_index);
    this.#take(frame);
    const isBehind = !isSocket || (this.#have < this.#end && frame.type !== "delta" && frame.type !== "heartbeat");
    this.isCaughtUp = !isBehind;
    this.#say(isBehind ? { kind: "catching-up", have: this.#have + 1, of: this.#end + 1 } : { kind: "live" });
  }

  /** Takes the page of steps that comes next; gives whether there was one. */
  async #page(): Promise<boolean> {
    const place = this.#cursor !== undefined ? { cursor: this.#cursor } : this.#have >= 0 ? { since: this.#have } : {};
    const page = await client.peek().runs.steps(this.#id, { signal: this.#stop.signal, limit: POLL_LIMIT, ...place });
    if (this.#isStopped()) return false;
    this.#cursor = page.next_cursor;
    this.#heard = Date.now();
    if ("gap" in page) this.#took({ type: "gap", ...(page.gap as object) }, false);
    if (page.steps.length > 0) this.#took({ type: "steps_append", steps: page.steps, cursor: page.next_cursor }, false);
    return page.steps.length > 0;
  }

  /** Whether the run is over and nothing of it is missing, though the last connection did not say so when it ended. */
  async #isAllThere(): Promise<boolean> {
    if (!this.#isOver || this.#cursor === undefined) return false;
    try {
      const { steps } = await client.peek().runs.steps(this.#id, { cursor: this.#cursor, limit: 1, signal: this.#stop.signal });
      return steps.length === 0;
    } catch {
      return false;
    }
  }

  /** Asks for steps for a while; gives whether the run is over, or cannot be read. */
  async #poll(): Promise<boolean> {
    const { runs } = client.peek();
    for (let round = 0; round < POLLS && !this.#isStopped(); round += 1) {
      try {
        const run = await runs.retrieve(this.#id, { signal: this.#stop.signal });
        while (await this.#page());
        if (this.#isStopped()) return true;
        this.#took({ type: "run", run }, false);
        if (isOver(run.status)) {
          this.#say({ kind: "ended" });
          return true;
        }
        this.#say({ kind: "polling" });
      } catch (error) {
        if (this.#isStopped()) return true;
        // The stream's own way deals with it.
        if (!(error instanceof APIError) || wantsToken(error)) return false;
        if (isFinal(error)) {
          this.#say({ kind: "refused", code: error.code, message: error.message });
          return true;
        }
        return false;
      }
      await this.#pause(POLL_MS);
    }
    return false;
  }
}

const FINAL: ReadonlySet<string> = new Set(["invalid_message", "invalid_request", "forbidden", "unknown_run", "invalid_cursor", "not_found"]);

/** Whether trying again would be answered in the same way. */
function isFinal(error: unknown): error is APIError {
  if (!(error instanceof APIError)) return false;
  return FINAL.has(error.code) || (error.status >= 400 && error.status < 500 && error.status !== 408 && error.status !== 425 && error.status !== 429);
}
