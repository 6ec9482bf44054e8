/** A record of `text/event-stream`; one without data only moves the cursor. */
export interface SseRecord {
  readonly event: string;
  /** `undefined` when the record had no `data`. */
  readonly data: string | undefined;
  /** The last id that the stream has set, by this record or an earlier one. */
  readonly lastId: string;
}

/** Reads `text/event-stream` from pieces of any size. What has not ended with a blank line is no record. */
export class SseReader {
  /** What the stream last asked to wait before a reconnect. */
  retryMs: number | undefined;
  readonly #charsMax: number;
  #rest = "";
  #afterCr = false;
  #event = "";
  #data: string[] = [];
  #size = 0;
  #id = "";

  constructor(charsMax: number) {
    this.#charsMax = charsMax;
  }

  *push(text: string): Generator<SseRecord> {
    if (text === "") return;
    // A CR has ended its line already; an LF right behind it belongs to it.
    let at = this.#afterCr && text.startsWith("\n") ? 1 : 0;
    this.#afterCr = false;
    for (;;) {
      const end = lineEnd(text, at);
      if (end < 0) break;
      const line = this.#rest + text.slice(at, end);
      this.#rest = "";
      const isCr = text[end] === "\r";
      at = end + (isCr && text[end + 1] === "\n" ? 2 : 1);
      this.#afterCr = isCr && at === text.length && text[end + 1] === undefined;
      const record = this.#take(line);
      if (record !== undefined) yield record;
    }
    this.#rest += text.slice(at);
    this.#limit(this.#rest.length + this.#size);
  }

  #take(line: string): SseRecord | undefined {
    if (line === "") {
      const record = { event: this.#event, data: this.#data.length === 0 ? undefined : this.#data.join("\n"), lastId: this.#id };
      this.#event = "";
      this.#data = [];
      this.#size = 0;
      return record;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "event") this.#event = value;
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    else if (field === "retry" && /^\d{1,9}$/.test(value)) this.retryMs = Number(value);
    else if (field === "data") {
      this.#data.push(value);
      this.#size += value.length;
      this.#limit(this.#size);
    }
    return undefined;
  }

  #limit(chars: number): void {
    if (chars > this.#charsMax) throw new RangeError(`a record has more than ${this.#charsMax} characters`);
  }
}

function lineEnd(text: string, from: number): number {
  for (let at = from; at < text.length; at++) {
    const code = text.charCodeAt(at);
    if (code === 10 || code === 13) return at;
  }
  return -1;
}
