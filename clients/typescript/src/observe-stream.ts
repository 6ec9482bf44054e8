import { APIError, errorObject, errorOf, isRecord, lost } from "./errors.js";
import { isTemporary, type Patience, type RequestOptions, retryAfterMs, type Transport } from "./transport.js";

/** A message of `ObserveRun`, in the JSON of sdk.v1; exactly one of its parts is there. */
export interface RunStreamMessage {
  /** The cursor behind this message. */
  readonly offset?: string;
  readonly sdkMessage?: { readonly type: string; readonly message: Readonly<Record<string, unknown>> };
  readonly result?: {
    readonly agentId: string;
    readonly runId: string;
    readonly status: string;
    readonly errorCode?: string;
    readonly result: Readonly<Record<string, unknown>>;
  };
  readonly done?: { readonly agentId: string; readonly runId: string };
  readonly interactionUpdate?: { readonly type: string; readonly update: Readonly<Record<string, unknown>> };
  readonly step?: { readonly type: string; readonly step: Readonly<Record<string, unknown>> };
}

export interface ObserveOptions extends RequestOptions {
  /** The `offset` of the last message that you have. */
  readonly afterOffset?: string | undefined;
  /** Whether the stream comes back by itself, with its offset: true. */
  readonly resume?: boolean;
}

const FLAG_COMPRESSED = 1;
const FLAG_END = 2;
const HEAD_BYTES = 5;
const MESSAGE_BYTES_MAX = 64 * 1024 * 1024;
const COME_BACK: ReadonlySet<string> = new Set(["unavailable", "resource_exhausted", "internal", "unknown", "aborted", "deadline_exceeded"]);

interface Message { readonly flags: number; readonly value: unknown }

/** A run over Connect (`sdk.v1.SdkAgentService/ObserveRun`): its messages, over as many calls as it takes. Read it once. */
export class ObserveStream implements AsyncIterable<RunStreamMessage> {
  readonly #transport: Transport;
  readonly #runId: string;
  readonly #options: ObserveOptions;
  readonly #abort = new AbortController();
  #offset: string | undefined;

  /** Made by `client.runs.observe`. */
  constructor(transport: Transport, runId: string, options: ObserveOptions) {
    this.#transport = transport;
    this.#runId = runId;
    this.#options = options;
    this.#offset = options.afterOffset;
    if (options.signal?.aborted === true) this.abort();
    else options.signal?.addEventListener("abort", () => this.abort(), { once: true });
  }

  /** The cursor behind which the stream goes on. */
  get offset(): string | undefined {
    return this.#offset;
  }

  /** Ends the call and the iteration; the run goes on. */
  abort(): void {
    this.#abort.abort();
  }

  #isAborted(): boolean {
    return this.#abort.signal.aborted;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<RunStreamMessage, void> {
    const patience = this.#transport.patience();
    while (!this.#isAborted()) {
      const call = new AbortController();
      const leave = (): void => call.abort();
      this.#abort.signal.addEventListener("abort", leave);
      let why: { readonly error: APIError; readonly waitMs?: number | undefined };
      try {
        const ended = yield* this.#call(call, patience);
        if (ended === undefined) return;
        why = ended;
      } finally {
        this.#abort.signal.removeEventListener("abort", leave);
        call.abort();
      }
      if (this.#isAborted()) return;
      if (this.#options.resume === false) throw why.error;
      await patience.wait(why.error, this.#abort.signal, why.waitMs);
    }
  }

  /** One call. Gives why another one is worth it, or nothing at the end; throws what is final. */
  async *#call(call: AbortController, patience: Patience): AsyncGenerator<RunStreamMessage, { error: APIError; waitMs?: number | undefined } | undefined> {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const pause = (): void => clearTimeout(timer);
    const heard = (): void => {
      pause();
      timer = setTimeout(() => call.abort(new Error(`the server was silent for ${this.#transport.silenceMs} ms`)), this.#transport.silenceMs);
    };
    let failed: unknown;
    try {
      heard();
      let answer: Response;
      try {
        answer = await this.#ask(call);
      } catch (error) {
        return { error: lost(error) };
      }
      if (isTemporary(answer.status)) return { error: await errorOf(answer), waitMs: retryAfterMs(answer) };
      if (!answer.ok) throw await errorOf(answer);
      patience.answered();
      const messages = messagesOf(answer, heard);
      for (;;) {
        let next: IteratorResult<Message, undefined>;
        try {
          next = await messages.next();
        } catch (error) {
          failed = error;
          break;
        }
        if (next.done === true) break;
        patience.answered();
        const { flags, value } = next.value;
        if ((flags & FLAG_END) !== 0) {
          if (!isRecord(value) || !isRecord(value.error)) return undefined;
          const { code, message, details } = errorObject(value.error, "unknown");
          const given = value.error.details;
          const error = new APIError(0, code, message, details ?? (Array.isArray(given) ? { details: given } : undefined));
          if (COME_BACK.has(code)) return { error };
          throw error;
        }
        // An empty message is a sign of life.
        if (!isRecord(value) || Object.keys(value).length === 0) continue;
        const message = value as RunStreamMessage;
        patience.progressed();
        if (message.offset !== undefined) this.#offset = message.offset;
        // A slow reader is no silent server.
        pause();
        yield message;
        heard();
      }
      if (failed instanceof APIError) throw failed;
      return { error: failed === undefined ? new APIError(0, "connection_lost", "the answer ended in the middle") : lost(failed) };
    } finally {
      pause();
    }
  }

  #ask(call: AbortController): Promise<Response> {
    const request = { runId: this.#runId, ...(this.#offset === undefined ? {} : { afterOffset: this.#offset }) };
    const payload = new TextEncoder().encode(JSON.stringify(request));
    const body = new Uint8Array(HEAD_BYTES + payload.length);
    new DataView(body.buffer).setUint32(1, payload.length);
    body.set(payload, HEAD_BYTES);
    const headers = { "content-type": "application/connect+json", "connect-protocol-version": "1", ...this.#options.headers };
    return this.#transport.open("/sdk.v1.SdkAgentService/ObserveRun", { method: "POST", body, signal: call.signal }, headers);
  }
}

/** Cuts a body into its messages; what is not whole at its end is none. */
async function* messagesOf(answer: Response, heard: () => void): AsyncGenerator<Message, undefined> {
  const reader = answer.body?.getReader();
  let pieces: Uint8Array[] = [];
  let has = 0;
  let needs = HEAD_BYTES;
  for (;;) {
    const piece = await reader?.read();
    if (piece === undefined || piece.done) return undefined;
    heard();
    pieces.push(piece.value);
    has += piece.value.length;
    if (has < needs) continue;
    let bytes = joined(pieces, has);
    for (;;) {
      if (bytes.length < HEAD_BYTES) {
        needs = HEAD_BYTES;
        break;
      }
      const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(1);
      const flags = bytes[0] ?? 0;
      if (length > MESSAGE_BYTES_MAX) throw new APIError(0, "message_too_long", `a message has more than ${MESSAGE_BYTES_MAX} bytes`);
      if ((flags & FLAG_COMPRESSED) !== 0) throw new APIError(0, "compressed", "a message is compressed, which was not asked for");
      needs = HEAD_BYTES + length;
      if (bytes.length < needs) break;
      yield { flags, value: parse(bytes.subarray(HEAD_BYTES, needs)) };
      bytes = bytes.subarray(needs);
    }
    pieces = [bytes];
    has = bytes.length;
  }
}

function joined(pieces: readonly Uint8Array[], length: number): Uint8Array {
  const [only] = pieces;
  if (pieces.length === 1 && only !== undefined) return only;
  const all = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}

function parse(bytes: Uint8Array): unknown {
  try {
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    throw new APIError(0, "not_json", "a message is no JSON");
  }
}
