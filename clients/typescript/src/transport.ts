import { APIError, errorOf, lost } from "./errors.js";

/** How the server is reached. */
export interface ClientOptions {
  /** Where it is, as `https://runs.example`; a path in it is kept. */
  readonly baseUrl: string;
  /** A bearer token, where the server asks for one. */
  readonly token?: string;
  /** More headers for every request. */
  readonly headers?: Readonly<Record<string, string>>;
  /** Another `fetch` than the global one. */
  readonly fetch?: typeof globalThis.fetch;
  /** Another `WebSocket` than the global one; Node 20 has none, and the npm package `ws` is one. */
  readonly WebSocket?: WebSocketConstructor;
  /**
   * Whether a WebSocket is opened with a ticket instead of the token. A browser cannot send headers with it, so there
   * it is the default when a token or headers are given.
   */
  readonly tickets?: boolean;
  /** Streams are given up after so long without any answer of the server: 600,000 (10 minutes). */
  readonly giveUpAfterMs?: number;
  /** A stream that is silent for so long, signs of life included, is opened anew: 60,000. */
  readonly silenceMs?: number;
}

/** As much of a WebSocket as is used here. */
export interface WebSocketLike {
  onopen: ((event: never) => void) | null;
  onmessage: ((event: { readonly data: unknown }) => void) | null;
  onerror: ((event: never) => void) | null;
  onclose: ((event: { readonly code: number; readonly reason: string }) => void) | null;
  close(code?: number, reason?: string): void;
}

// eslint-disable-next-line @typescript-eslint/no-explicit-any -- each maker's class has other parameters.
export type WebSocketConstructor = new (url: string, ...more: any[]) => any;

/** What a single call may add. */
export interface RequestOptions {
  readonly headers?: Readonly<Record<string, string>>;
  /** Ends the request or stream, as `abort()` does. */
  readonly signal?: AbortSignal;
}

const GIVE_UP_AFTER_MS = 600_000;
const SILENCE_MS = 60_000;
/** A server that has never answered is given up after so long: its address may be wrong. */
const FIRST_ANSWER_MS = 10_000;
const WAIT_MIN_MS = 200;
const WAIT_MAX_MS = 10_000;

/** Makes requests, and knows when to stop trying. */
export class Transport {
  readonly options: ClientOptions;
  readonly silenceMs: number;
  readonly #base: string;
  readonly #fetch: typeof globalThis.fetch;

  constructor(options: ClientOptions) {
    let base: URL;
    try {
      base = new URL(options.baseUrl);
    } catch {
      throw new TypeError(`baseUrl is no URL: ${options.baseUrl}`);
    }
    if (base.protocol !== "http:" && base.protocol !== "https:") {
      throw new TypeError(`baseUrl must begin with http:// or https://: ${options.baseUrl}`);
    }
    base.search = "";
    base.hash = "";
    this.options = options;
    this.silenceMs = options.silenceMs ?? SILENCE_MS;
    this.#base = base.href.replace(/\/+$/, "");
    // Called as a bare function: browsers refuse a `fetch` that has another `this`.
    const given = options.fetch ?? globalThis.fetch;
    this.#fetch = (input, init) => given(input, init);
  }

  url(path: string): string {
    return `${this.#base}${path}`;
  }

  headers(more?: Readonly<Record<string, string>>): Record<string, string> {
    const { token, headers } = this.options;
    return { ...(token === undefined ? {} : { authorization: `Bearer ${token}` }), ...headers, ...more };
  }

  /** One request, for a stream's head: the answer as it is, whatever its status. */
  open(path: string, init: RequestInit, headers?: Readonly<Record<string, string>>): Promise<Response> {
    // Without a cache: a stream that was stored is no stream.
    return this.#fetch(this.url(path), { ...init, cache: "no-store", headers: this.headers(headers) });
  }

  /** One request, answered with JSON. Any other answer is an `APIError`. */
  async json(method: string, path: string, request: RequestOptions = {}, body?: unknown): Promise<unknown> {
    const headers = { accept: "application/json", ...(body === undefined ? {} : { "content-type": "application/json" }), ...request.headers };
    const init: RequestInit = { method };
    if (body !== undefined) init.body = JSON.stringify(body);
    if (request.signal !== undefined) init.signal = request.signal;
    let answer: Response;
    try {
      answer = await this.open(path, init, headers);
    } catch (error) {
      throw request.signal?.aborted === true ? aborted() : lost(error);
    }
    if (!answer.ok) throw await errorOf(answer);
    let text: string;
    try {
      text = await answer.text();
    } catch (error) {
      // It was cut.
      throw request.signal?.aborted === true ? aborted() : lost(error);
    }
    try {
      return JSON.parse(text) as unknown;
    } catch {
      throw new APIError(answer.status, "not_json", "the server's answer is no JSON");
    }
  }

  patience(): Patience {
    return new Patience(this.options.giveUpAfterMs ?? GIVE_UP_AFTER_MS);
  }
}

export function aborted(): APIError {
  return new APIError(0, "aborted", "the stream was aborted by its reader");
}

/** How long to wait before the next try, and when there is none. */
export class Patience {
  readonly #giveUpAfterMs: number;
  #wait = WAIT_MIN_MS;
  #since = now();
  #answered = false;

  constructor(giveUpAfterMs: number) {
    this.#giveUpAfterMs = giveUpAfterMs;
  }

  /** The server has answered: it is there, and waits begin anew. */
  answered(): void {
    this.#answered = true;
    this.#since = now();
  }

  /** The stream has made progress. */
  progressed(): void {
    this.answered();
    this.#wait = WAIT_MIN_MS;
  }

  /** Waits, each time longer, or as long as the server asked for; throws `error` when it has been tried for long enough. */
  async wait(error: APIError, signal: AbortSignal, askedMs?: number): Promise<void> {
    const limit = this.#answered ? this.#giveUpAfterMs : Math.min(FIRST_ANSWER_MS, this.#giveUpAfterMs);
    if (now() - this.#since >= limit) throw error;
    const ms = Math.max(askedMs ?? 0, this.#wait * (0.5 + Math.random() / 2));
    this.#wait = Math.min(this.#wait * 2, WAIT_MAX_MS);
    await sleep(Math.min(ms, Math.max(limit, WAIT_MIN_MS)), signal);
  }
}

function now(): number {
  return performance.now();
}

/** Ends early, without an error, when `signal` is aborted. */
export function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) {
      resolve();
      return;
    }
    const done = (): void => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done);
  });
}

/** What `retry-after` asks for, in milliseconds. */
export function retryAfterMs(answer: Response): number | undefined {
  const seconds = Number(answer.headers.get("retry-after") ?? Number.NaN);
  return Number.isFinite(seconds) && seconds >= 0 ? Math.min(seconds * 1000, 60_000) : undefined;
}

/** Whether the same request may be answered otherwise a little later. */
export function isTemporary(status: number): boolean {
  return status === 408 || status === 425 || status === 429 || (status >= 500 && status !== 501);
}
