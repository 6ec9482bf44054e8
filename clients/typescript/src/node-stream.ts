import { APIError, errorObject, errorOf, isRecord, lost } from "./errors.js";
import type { ErrorEvent, Node, NodeEvent, NodeEventType, Outcome } from "./events.js";
import { SseReader } from "./sse.js";
import { aborted, isTemporary, type Patience, type RequestOptions, retryAfterMs, type Transport } from "./transport.js";

export interface EventsOptions extends RequestOptions {
  /** The `sequence_number` of the last event that you have; what follows it is sent. */
  readonly after?: number | undefined;
  /**
   * Whether the stream comes back by itself, with its cursor, when the connection is lost or the server sends it away:
   * true. With false every `error` event is handed on, and the end of the response is the end of the stream.
   */
  readonly resume?: boolean;
}

/** A record may have so many characters. */
const RECORD_CHARS_MAX = 64 * 1024 * 1024;
/** After these the same request is worth another try; the stream says nothing of them. */
const COME_BACK: ReadonlySet<string> = new Set(["stream_dropped", "draining", "over_capacity", "upstream_unavailable", "internal"]);

type Listener = (event: never) => void;

/** Why one response ended. */
type End =
  | { readonly kind: "settled" }
  | { readonly kind: "refused"; readonly error: APIError }
  | { readonly kind: "lost"; readonly error: APIError; readonly waitMs?: number | undefined };

/** Somebody who iterates: asks for one event at a time. */
class Iterating implements AsyncIterator<NodeEvent, undefined> {
  #take: ((result: IteratorResult<NodeEvent, undefined>) => void) | undefined;
  #fail: ((error: unknown) => void) | undefined;
  readonly #asks: (who: Iterating) => IteratorResult<NodeEvent, undefined> | undefined;
  readonly #leaves: (who: Iterating) => void;

  constructor(asks: (who: Iterating) => IteratorResult<NodeEvent, undefined> | undefined, leaves: (who: Iterating) => void) {
    this.#asks = asks;
    this.#leaves = leaves;
  }

  get isWaiting(): boolean {
    return this.#take !== undefined;
  }

  next(): Promise<IteratorResult<NodeEvent, undefined>> {
    return new Promise((resolve, reject) => {
      this.#take = resolve;
      this.#fail = reject;
      try {
        const at = this.#asks(this);
        if (at !== undefined) this.tell(at);
      } catch (error) {
        this.fail(error);
      }
    });
  }

  return(): Promise<IteratorResult<NodeEvent, undefined>> {
    this.#leaves(this);
    this.tell({ done: true, value: undefined });
    return Promise.resolve({ done: true, value: undefined });
  }

  tell(result: IteratorResult<NodeEvent, undefined>): void {
    const take = this.#take;
    this.#take = this.#fail = undefined;
    take?.(result);
  }

  fail(error: unknown): void {
    const fail = this.#fail;
    this.#take = this.#fail = undefined;
    fail?.(error);
  }
}

/**
 * The events of a node. It is an observer: whatever is done with it, the node works on.
 *
 * The connection is opened when somebody asks for events, by iterating, `on` or `finalOutcome`, and is closed when
 * nobody does any more; who asks again later gets what follows. An iteration takes one event at a time, and nothing is
 * read ahead of it; so do not wait for `finalOutcome()` inside of one.
 */
export class NodeStream implements AsyncIterable<NodeEvent> {
  readonly #transport: Transport;
  readonly #resume: boolean;
  readonly #headers: Readonly<Record<string, string>>;
  /** The path of the node, when it is known; it fails for an id that is none. */
  readonly #path: Promise<string>;
  readonly #askNode: () => Promise<Node>;
  #node: Promise<Node> | undefined;
  readonly #abort = new AbortController();

  #cursor: number | undefined;
  #outcome: Outcome | undefined;
  #failure: Error | undefined;
  /** The last error that was told as an event. */
  #said: APIError | undefined;
  #over = false;

  readonly #iterating = new Set<Iterating>();
  readonly #listeners = new Map<NodeEventType, Set<Listener>>();
  readonly #waiting = new Set<{ readonly resolve: (outcome: Outcome) => void; readonly reject: (error: Error) => void }>();
  #connection: AbortController | undefined;
  #reading = false;
  #wake: (() => void) | undefined;

  /** Made by `client.nodes`. */
  constructor(transport: Transport, path: Promise<string>, node: () => Promise<Node>, options: EventsOptions) {
    this.#transport = transport;
    this.#path = path;
    // Who asks is told; nobody has to.
    path.catch(() => undefined);
    this.#askNode = node;
    this.#resume = options.resume ?? true;
    this.#headers = options.headers ?? {};
    this.#cursor = options.after;
    const { signal } = options;
    if (signal?.aborted === true) this.abort();
    else signal?.addEventListener("abort", () => this.abort(), { once: true });
  }

  /** The node itself, asked for when this is first read. */
  get node(): Promise<Node> {
    if (this.#node === undefined) {
      this.#node = this.#askNode();
      this.#node.catch(() => undefined);
    }
    return this.#node;
  }

  /** The cursor: the `sequence_number` behind which the stream goes on. */
  get cursor(): number | undefined {
    return this.#cursor;
  }

  /** Calls `listener` with each event of a type, from now on. */
  on<T extends NodeEventType>(type: T, listener: (event: Extract<NodeEvent, { type: T }>) => void): this {
    const listeners = this.#listeners.get(type) ?? new Set();
    this.#listeners.set(type, listeners.add(listener));
    this.#begin();
    return this;
  }

  off<T extends NodeEventType>(type: T, listener: (event: Extract<NodeEvent, { type: T }>) => void): this {
    const listeners = this.#listeners.get(type);
    listeners?.delete(listener);
    if (listeners?.size === 0) this.#listeners.delete(type);
    this.#left();
    return this;
  }

  /** How the node ended, when it has; rejects when the stream cannot go on, or was aborted. */
  finalOutcome(): Promise<Outcome> {
    if (this.#outcome !== undefined) return Promise.resolve(this.#outcome);
    return new Promise((resolve, reject) => {
      if (this.#failure !== undefined) reject(this.#failure);
      else if (this.#over) reject(aborted());
      else {
        this.#waiting.add({ resolve, reject });
        this.#begin();
      }
    });
  }

  /** Ends the HTTP response, and every iteration; the node keeps running. */
  abort(): void {
    if (this.#over) return;
    this.#over = true;
    this.#abort.abort();
    this.#connection?.abort();
    for (const one of this.#iterating) one.tell({ done: true, value: undefined });
    for (const { reject } of this.#waiting) reject(aborted());
    this.#iterating.clear();
    this.#waiting.clear();
    this.#wake?.();
  }

  [Symbol.asyncIterator](): AsyncIterator<NodeEvent, undefined> {
    return new Iterating(
      (who) => {
        if (this.#failure !== undefined) throw this.#failure;
        if (this.#over) return { done: true, value: undefined };
        this.#iterating.add(who);
        this.#begin();
        this.#wake?.();
        return undefined;
      },
      (who) => {
        this.#iterating.delete(who);
        this.#wake?.();
        this.#left();
      },
    );
  }

  #isWanted(): boolean {
    return !this.#over && this.#iterating.size + this.#listeners.size + this.#waiting.size > 0;
  }

  /** Somebody asks for events. */
  #begin(): void {
    if (this.#reading || this.#over) return;
    this.#reading = true;
    // Not at once: who attaches several consumers in a row has all of them see the first event.
    void Promise.resolve().then(async () => {
      try {
        await this.#read();
      } catch (error) {
        this.#fail(error instanceof Error ? error : new Error(String(error)));
      }
      this.#reading = false;
      if (this.#isWanted()) this.#begin();
    });
  }

  /** Somebody asks no more. */
  #left(): void {
    if (!this.#isWanted()) this.#connection?.abort();
  }

  #fail(error: Error): void {
    if (this.#over) return;
    this.#over = true;
    this.#failure = error;
    // Who only listens hears of it too, unless the server's own record has said it already.
    if (error !== this.#said) {
      const { code, details } = error instanceof APIError ? error : { code: "invalid_node_id", details: undefined };
      const { message } = error;
      this.#call({ type: "error", error: details === undefined ? { code, message } : { code, message, details } });
    }
    for (const one of this.#iterating) one.fail(error);
    for (const { reject } of this.#waiting) reject(error);
    this.#iterating.clear();
    this.#waiting.clear();
  }

  #call(event: NodeEvent): void {
    for (const listener of [...(this.#listeners.get(event.type) ?? [])]) {
      try {
        (listener as (event: NodeEvent) => void)(event);
      } catch (error) {
        // A listener's failure is not the stream's: it is reported as any uncaught error.
        queueMicrotask(() => {
          throw error;
        });
      }
    }
  }

  /** Waits until all who iterate have asked for the next event. */
  async #room(): Promise<void> {
    while (this.#isWanted() && [...this.#iterating].some((one) => !one.isWaiting)) {
      await new Promise<void>((resolve) => (this.#wake = resolve));
      this.#wake = undefined;
    }
  }

  /** Hands an event to everybody; false when nobody wants it, and then it has not been taken. */
  async #tell(event: NodeEvent): Promise<boolean> {
    await this.#room();
    if (!this.#isWanted()) return false;
    if (event.type !== "error") this.#cursor = event.sequence_number;
    this.#call(event);
    for (const one of [...this.#iterating]) one.tell({ done: false, value: event });
    return true;
  }

  #settle(outcome: Outcome): void {
    this.#outcome = outcome;
    this.#over = true;
    for (const one of this.#iterating) one.tell({ done: true, value: undefined });
    for (const { resolve } of this.#waiting) resolve(outcome);
    this.#iterating.clear();
    this.#waiting.clear();
  }

  /** Reads until the node is settled or nobody asks any more, over as many responses as it takes. */
  async #read(): Promise<void> {
    const path = await this.#path;
    const patience = this.#transport.patience();
    while (this.#isWanted()) {
      const connection = new AbortController();
      this.#connection = connection;
      const end = await this.#response(path, connection, patience);
      if (!this.#isWanted()) return;
      switch (end.kind) {
        case "settled":
          return;
        case "refused":
          throw end.error;
        case "lost":
          if (!this.#resume) throw end.error;
          await patience.wait(end.error, connection.signal, end.waitMs);
      }
    }
  }

  async #response(path: string, connection: AbortController, patience: Patience): Promise<End> {
    const silence = new Silence(this.#transport.silenceMs, connection);
    try {
      const query = this.#cursor === undefined ? "" : `?after=${this.#cursor}`;
      const headers = { accept: "text/event-stream", ...this.#headers };
      const answer = await this.#transport.open(`${path}/events${query}`, { signal: connection.signal }, headers);
      if (isTemporary(answer.status)) return { kind: "lost", error: await errorOf(answer), waitMs: retryAfterMs(answer) };
      patience.answered();
      if (answer.status === 204) return await this.#ended(path);
      if (answer.status !== 200) return { kind: "refused", error: await errorOf(answer) };
      if (answer.headers.get("content-type")?.startsWith("text/event-stream") !== true) {
        const kind = answer.headers.get("content-type") ?? "nothing";
        return { kind: "refused", error: new APIError(200, "not_a_stream", `the server answered with ${kind}, not with text/event-stream`) };
      }
      return await this.#records(answer, silence, patience);
    } catch (error) {
      if (error instanceof RangeError) return { kind: "refused", error: new APIError(0, "record_too_long", error.message) };
      return { kind: "lost", error: lost(error) };
    } finally {
      silence.end();
      connection.abort();
    }
  }

  /** The cursor is at the end: nothing follows, so the outcome is asked for by itself. */
  async #ended(path: string): Promise<End> {
    try {
      const request = { headers: this.#headers, signal: this.#abort.signal };
      this.#settle((await this.#transport.json("GET", `${path}/outcome`, request)) as Outcome);
      return { kind: "settled" };
    } catch (error) {
      if (!(error instanceof APIError)) throw error;
      return { kind: error.status === 0 || isTemporary(error.status) ? "lost" : "refused", error };
    }
  }

  async #records(answer: Response, silence: Silence, patience: Patience): Promise<End> {
    const reader = new SseReader(RECORD_CHARS_MAX);
    const text = new TextDecoder();
    const bytes = answer.body?.getReader();
    let last: APIError | undefined;
    // A server that began anew counts from 1 again, and says so with a gap; without one, a repeat is a repeat.
    let mayGoBack = false;
    for (;;) {
      const piece = await bytes?.read();
      if (piece === undefined || piece.done) break;
      silence.heard();
      patience.answered();
      for (const record of reader.push(text.decode(piece.value, { stream: true }))) {
        if (record.data === undefined) {
          if (/^\d{1,16}$/.test(record.lastId)) this.#cursor = Number(record.lastId);
          continue;
        }
        const event = eventOf(record.event, record.data);
        if (event === undefined) continue;
        if (event.type === "error") {
          const { code, message, details } = event.error;
          const error = new APIError(0, code, message, details);
          if (this.#resume && COME_BACK.has(code)) return { kind: "lost", error, waitMs: reader.retryMs };
          silence.pause();
          if (await this.#tell(event)) this.#said = error;
          silence.heard();
          if (code === "unauthorized") return { kind: "refused", error };
          if (code === "stream_gap") mayGoBack = true;
          else last = error;
          continue;
        }
        if (!mayGoBack && this.#cursor !== undefined && event.sequence_number <= this.#cursor) continue;
        mayGoBack = false;
        // A slow reader is no silent server.
        silence.pause();
        if (!(await this.#tell(event))) return { kind: "lost", error: aborted() };
        silence.heard();
        patience.progressed();
        if (event.type === "node.settled") {
          this.#settle(event.outcome);
          return { kind: "settled" };
        }
      }
    }
    const error = last ?? new APIError(0, "connection_lost", "the response ended before the node was settled");
    return { kind: "lost", error, waitMs: reader.retryMs };
  }
}

/** `undefined` for what is no event of this contract: it is passed over, as unknown types are. */
function eventOf(type: string, data: string): NodeEvent | undefined {
  let value: unknown;
  try {
    value = JSON.parse(data);
  } catch {
    throw new APIError(0, "not_json", `a record ${type} is no JSON`);
  }
  if (!isRecord(value)) return undefined;
  if (type === "error") return { type: "error", error: errorObject(value.error, "internal") } satisfies ErrorEvent;
  if (typeof value.sequence_number !== "number") return undefined;
  return { ...value, type } as unknown as NodeEvent;
}

/** Cuts a connection that says nothing, not even that it lives. */
class Silence {
  readonly #ms: number;
  readonly #connection: AbortController;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(ms: number, connection: AbortController) {
    this.#ms = ms;
    this.#connection = connection;
    this.heard();
  }

  heard(): void {
    this.pause();
    this.#timer = setTimeout(() => this.#connection.abort(new Error(`the server was silent for ${this.#ms} ms`)), this.#ms);
  }

  pause(): void {
    clearTimeout(this.#timer);
  }

  end(): void {
    this.pause();
  }
}
