import { APIError, isRecord, lost } from "./errors.js";
import { aborted, isTemporary, type RequestOptions, type Transport, type WebSocketConstructor, type WebSocketLike } from "./transport.js";

/** A run. Members that are not known are null; there may be more. */
export interface Run {
  readonly id: string;
  readonly status: string;
  readonly created_at: string | null;
  readonly started_at: string | null;
  readonly ended_at: string | null;
  readonly error: unknown;
  readonly summary: string | null;
  readonly usage: unknown;
  readonly cost_usd: number | null;
  readonly duration_ms: number | null;
  readonly last_step_index: number | null;
  readonly [more: string]: unknown;
}

/** One recorded message of the agent. */
export interface Step {
  readonly id: string;
  readonly run_id: string;
  readonly step_index: number;
  readonly created_at: string | null;
  /** The message as it was recorded. */
  readonly data: Readonly<Record<string, unknown>>;
  /** It came after steps with a larger index. */
  readonly late?: true;
}

export interface SnapshotFrame {
  readonly type: "snapshot";
  readonly run: Run;
  readonly steps: readonly Step[];
  readonly cursor?: string;
}

export interface StepsAppendFrame {
  readonly type: "steps_append";
  readonly steps: readonly Step[];
  readonly cursor?: string;
}

/** The run as it is now. It comes again whenever the stream was resumed. */
export interface RunFrame {
  readonly type: "run";
  readonly run: Run;
  readonly cursor?: string;
}

/**
 * Live text of the message that is being written: it replaces what was there from its `start`-th character on (counted
 * in Unicode scalar values). The message itself comes as a step.
 */
export interface DeltaFrame {
  readonly type: "delta";
  readonly text: string;
  readonly start: number;
}

/** Steps are not kept any more, or the cursor lay beyond the end. */
export interface GapFrame {
  readonly type: "gap";
  readonly earliest_step_index?: number | null;
  readonly latest_step_index?: number | null;
  readonly reason?: string;
  readonly cursor?: string;
}

/** A record of the upstream that could not be read. */
export interface UnreadableFrame {
  readonly type: "unreadable";
  readonly line?: number;
  readonly step_index?: number;
  readonly bytes: number;
  readonly reason: string;
  readonly head: string;
  readonly cursor?: string;
}

export interface HeartbeatFrame {
  readonly type: "heartbeat";
  readonly ts: string;
  readonly last_step_index: number | null;
  readonly upstream: string;
}

/** Frames of other types are passed over. */
export type RunFrames = SnapshotFrame | StepsAppendFrame | RunFrame | DeltaFrame | GapFrame | UnreadableFrame | HeartbeatFrame;

const TYPES: ReadonlySet<unknown> = new Set<RunFrames["type"]>(["snapshot", "steps_append", "run", "delta", "gap", "unreadable", "heartbeat"]);

export interface WatchOptions extends RequestOptions {
  /** The `cursor` of a frame that you have: exact. */
  readonly cursor?: string | undefined;
  /** The `step_index` of the last step that you have; -1 is from the first step on, without a snapshot. */
  readonly since?: number | undefined;
  /** Whether live text is sent too. */
  readonly deltas?: boolean;
  /** Whether the stream comes back by itself, with its cursor: true. */
  readonly resume?: boolean;
}

/** Frames that wait for their reader may have so many characters; then the socket is closed, and opened again when they are read. */
const WAITING_CHARS_MAX = 8 * 1024 * 1024;
/** So many ids of steps are kept where a server has no cursors, to tell repeats. */
const IDS_MAX = 10_000;
/** After so many refused upgrades in a row of a run that is served over REST, or refused tickets, there is no stream. */
const REFUSED_MAX = 3;
const DRAIN_SPREAD_MS = 2_000;

const UNAUTHORIZED = 4401;

/** What the contract says of the ways in which a server ends a stream for good. */
const FINAL: Readonly<Record<number, readonly [code: string, message: string]>> = {
  1003: ["streaming_unsupported", "this run cannot be streamed"],
  1008: ["invalid_message", "the server did not understand this client"],
  4400: ["invalid_request", "the server did not understand this client"],
  [UNAUTHORIZED]: ["unauthorized", "the token is missing, wrong or expired"],
  4403: ["forbidden", "this token is not good for this run"],
  4404: ["unknown_run", "there is no such run"],
};

interface Closed { readonly code: number; readonly reason: string; readonly opened: boolean }

/** A run over WebSocket: its frames, one after another, over as many connections as it takes. Read it once. */
export class RunStream implements AsyncIterable<RunFrames> {
  readonly #transport: Transport;
  readonly #path: string;
  readonly #options: WatchOptions;
  readonly #abort = new AbortController();
  readonly #ids = new Set<string>();
  #cursor: string | undefined;
  #since: number | undefined;
  #run: Run | undefined;

  /** Made by `client.runs.watch`. */
  constructor(transport: Transport, path: string, options: WatchOptions) {
    this.#transport = transport;
    this.#path = path;
    this.#options = options;
    this.#cursor = options.cursor;
    this.#since = options.since;
    if (options.signal?.aborted === true) this.abort();
    else options.signal?.addEventListener("abort", () => this.abort(), { once: true });
  }

  /** The exact cursor behind which the stream goes on, once a frame had one. */
  get cursor(): string | undefined {
    return this.#cursor;
  }

  /** The highest `step_index` that was seen. */
  get since(): number | undefined {
    return this.#since;
  }

  /** The run as the last frame that had it said. */
  get run(): Run | undefined {
    return this.#run;
  }

  /** Ends the connection and the iteration; the run goes on. */
  abort(): void {
    this.#abort.abort();
  }

  #isAborted(): boolean {
    return this.#abort.signal.aborted;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<RunFrames, void> {
    const patience = this.#transport.patience();
    let refused = 0;
    let refusedTickets = 0;
    while (!this.#isAborted()) {
      const socket = await this.#open();
      let why: APIError;
      let waitMs: number | undefined;
      if (socket instanceof APIError) why = socket;
      else {
        try {
          for (;;) {
            const text = await socket.next();
            if (text === undefined) break;
            const frame = this.#frame(text);
            // The server lives, whatever it says.
            patience.answered();
            refusedTickets = 0;
            if (frame === undefined) continue;
            if (frame.type !== "heartbeat") patience.progressed();
            this.#took(frame);
            yield frame;
          }
        } finally {
          socket.close();
        }
        if (this.#isAborted()) return;
        if (socket.isFull) continue;
        const { code, reason, opened } = socket.closed ?? { code: 1006, reason: "", opened: false };
        if (code === 1000) return;
        const final = FINAL[code];
        // A ticket is no longer good at a server that was started since; whether the token is, the next ticket tells.
        const isTicket = code === UNAUTHORIZED && socket.hasTicket && (refusedTickets += 1) < REFUSED_MAX;
        if (final !== undefined && !isTicket) throw new APIError(0, final[0], reason === "" ? final[1] : reason);
        if (opened) {
          patience.answered();
          refused = 0;
        } else if (await this.#isServed()) {
          refused += 1;
          if (refused >= REFUSED_MAX) throw new APIError(0, "streaming_unsupported", "the server has the run, but refuses to stream it");
        }
        why = lost(new Error(reason === "" ? `the socket was closed with ${code}` : reason), { close_code: code });
        waitMs = code === 1001 ? Math.random() * DRAIN_SPREAD_MS : undefined;
      }
      if (this.#options.resume === false) throw why;
      await patience.wait(why, this.#abort.signal, waitMs);
    }
  }

  /**
   * A browser does not tell with which status an upgrade was refused, so the same is asked for over REST: what is
   * refused there for good ends the stream. Gives whether there was an answer.
   */
  async #isServed(): Promise<boolean> {
    try {
      await this.#transport.json("GET", this.#path, this.#request());
      if (this.#place.size > 0) await this.#transport.json("GET", `${this.#path}/steps?${this.#place.toString()}&limit=1`, this.#request());
      return true;
    } catch (error) {
      if (error instanceof APIError && error.status !== 0 && !isTemporary(error.status)) throw error;
      return false;
    }
  }

  /** Where the stream goes on. */
  get #place(): URLSearchParams {
    if (this.#cursor !== undefined) return new URLSearchParams({ cursor: this.#cursor });
    return new URLSearchParams(this.#since === undefined ? {} : { since: String(this.#since) });
  }

  #request(): RequestOptions {
    const { headers } = this.#options;
    return { signal: this.#abort.signal, ...(headers === undefined ? {} : { headers }) };
  }

  async #open(): Promise<Socket | APIError> {
    const { options } = this.#transport;
    const query = this.#place;
    if (this.#options.deltas === true) query.set("deltas", "1");
    const headers = this.#transport.headers(this.#options.headers);
    const needs = Object.keys(headers).length > 0;
    const tickets = options.tickets ?? (needs && "document" in globalThis);
    if (tickets) {
      try {
        const answer = await this.#transport.json("GET", `${this.#path}/stream-ticket`, this.#request());
        query.set("ticket", isRecord(answer) ? String(answer.ticket) : "");
      } catch (error) {
        if (!(error instanceof APIError) || (error.status !== 0 && !isTemporary(error.status))) throw error;
        return this.#isAborted() ? aborted() : error;
      }
    }
    const text = query.toString();
    const url = this.#transport.url(`${this.#path}/stream${text === "" ? "" : `?${text}`}`).replace(/^http/, "ws");
    const Implementation = options.WebSocket ?? (globalThis as { WebSocket?: WebSocketConstructor }).WebSocket;
    if (Implementation === undefined) {
      throw new TypeError("there is no WebSocket here: give one as `WebSocket`, for instance of the npm package ws, or use Node 22");
    }
    const more = needs && !tickets ? [{ headers }] : [];
    return new Socket(new Implementation(url, ...more) as WebSocketLike, this.#abort.signal, this.#transport.silenceMs, tickets);
  }

  /** What a message holds that is new. */
  #frame(text: string): RunFrames | undefined {
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch {
      throw new APIError(0, "not_json", "a frame is no JSON");
    }
    if (!isRecord(value) || !TYPES.has(value.type)) return undefined;
    const frame = value as unknown as RunFrames;
    // With `since`, steps that came late may be sent again.
    if (!("steps" in frame) || this.#cursor !== undefined || this.#ids.size === 0) return frame;
    const steps = frame.steps.filter(({ id }) => !this.#ids.has(id));
    return { ...frame, steps };
  }

  #took(frame: RunFrames): void {
    if ("run" in frame) this.#run = frame.run;
    if ("steps" in frame) {
      for (const { id, step_index } of frame.steps) {
        this.#since = Math.max(this.#since ?? -1, step_index);
        this.#ids.add(id);
        if (this.#ids.size > IDS_MAX) for (const oldest of this.#ids) {
          this.#ids.delete(oldest);
          break;
        }
      }
    }
    if ("cursor" in frame && typeof frame.cursor === "string") this.#cursor = frame.cursor;
  }
}

/** One connection, whose messages wait here. */
class Socket {
  closed: Closed | undefined;
  /** It was closed by us, because too much waited. What was not taken comes again. */
  isFull = false;
  /** It was opened with a ticket. */
  readonly hasTicket: boolean;
  readonly #socket: WebSocketLike;
  readonly #waiting: string[] = [];
  readonly #leave: () => void;
  readonly #signal: AbortSignal;
  #chars = 0;
  #isOver = false;
  #wake: (() => void) | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(socket: WebSocketLike, signal: AbortSignal, silenceMs: number, hasTicket: boolean) {
    this.hasTicket = hasTicket;
    this.#socket = socket;
    this.#signal = signal;
    let opened = false;
    const heard = (): void => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#end({ code: 1006, reason: `the server was silent for ${silenceMs} ms`, opened }), silenceMs);
    };
    heard();
    socket.onopen = () => {
      opened = true;
      heard();
    };
    socket.onmessage = ({ data }) => {
      if (this.#isOver || this.isFull) return;
      heard();
      const text = typeof data === "string" ? data : "";
      this.#waiting.push(text);
      this.#chars += text.length;
      if (this.#chars > WAITING_CHARS_MAX && this.#waiting.length > 1) {
        this.isFull = true;
        this.#end({ code: 1000, reason: "", opened });
      }
      this.#wake?.();
    };
    socket.onerror = () => undefined;
    socket.onclose = ({ code, reason }) => this.#end({ code, reason, opened });
    this.#leave = () => {
      this.#waiting.length = 0;
      this.#end({ code: 1006, reason: "aborted", opened });
    };
    signal.addEventListener("abort", this.#leave);
    if (signal.aborted) this.#leave();
  }

  /** The next message; `undefined` when none follows. */
  async next(): Promise<string | undefined> {
    for (;;) {
      const text = this.#waiting.shift();
      if (text !== undefined) {
        this.#chars -= text.length;
        return text;
      }
      if (this.#isOver) return undefined;
      await new Promise<void>((resolve) => (this.#wake = resolve));
      this.#wake = undefined;
    }
  }

  close(): void {
    this.#end({ code: 1006, reason: "", opened: true });
  }

  #end(closed: Closed): void {
    if (!this.#isOver) {
      this.#isOver = true;
      this.closed = closed;
      clearTimeout(this.#timer);
      this.#signal.removeEventListener("abort", this.#leave);
      this.#socket.onmessage = null;
      this.#socket.close();
    }
    this.#wake?.();
  }
}

