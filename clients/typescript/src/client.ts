import { APIError, isRecord } from "./errors.js";
import type { Node, Outcome } from "./events.js";
import { pathOf } from "./ids.js";
import { type EventsOptions, NodeStream } from "./node-stream.js";
import { type ObserveOptions, ObserveStream } from "./observe-stream.js";
import { type Run, RunStream, type Step, type WatchOptions } from "./run-stream.js";
import { type ClientOptions, type RequestOptions, Transport } from "./transport.js";

/** What a new node is to do. What else the daemon behind the server takes is passed on. */
export interface NodeParams {
  readonly prompt: string;
  readonly cwd?: string;
  readonly [more: string]: unknown;
}

/** Nodes: runs as server-sent events. */
export class Nodes {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Makes a node and watches it. The node is asked for at once, and only once. */
  stream(params: NodeParams, options: EventsOptions = {}): NodeStream {
    const node = this.create(params, options);
    return new NodeStream(this.#transport, node.then(({ id }) => this.#path(id)), () => node, options);
  }

  /**
   * Watches a node. An id that is none rejects `node`, `finalOutcome()` and an iteration with a `TypeError`, and nothing
   * is requested. Watching never revives a node.
   */
  events(id: string, options: EventsOptions = {}): NodeStream {
    return new NodeStream(this.#transport, this.#checked(id, options.after), () => this.retrieve(id, options), options);
  }

  async create(params: NodeParams, options: RequestOptions = {}): Promise<Node> {
    const answer = await this.#transport.json("POST", "/v1/nodes", options, params);
    if (!isRecord(answer) || typeof answer.id !== "string") throw new APIError(200, "no_node", "the server's answer has no node");
    return answer as unknown as Node;
  }

  async retrieve(id: string, options: RequestOptions = {}): Promise<Node> {
    return (await this.#transport.json("GET", this.#path(id), options)) as Node;
  }

  /** How the node ended; an `APIError` with the code `not_settled` when it has not. */
  async outcome(id: string, options: RequestOptions = {}): Promise<Outcome> {
    return (await this.#transport.json("GET", `${this.#path(id)}/outcome`, options)) as Outcome;
  }

  /** Has a dormant node work again. */
  async revive(id: string, options: RequestOptions = {}): Promise<unknown> {
    return await this.#transport.json("POST", `${this.#path(id)}/revive`, options);
  }

  #path(id: string): string {
    return `/v1/nodes/${pathOf(id, "a node id")}`;
  }

  // eslint-disable-next-line @typescript-eslint/require-await -- what is thrown here is to reject.
  async #checked(id: string, after: number | undefined): Promise<string> {
    if (after !== undefined && (!Number.isSafeInteger(after) || after < 0)) throw new TypeError("after must be a whole number from 0 up");
    return this.#path(id);
  }
}

export interface ListOptions extends RequestOptions {
  readonly limit?: number;
  /** `next_cursor` of the page before. */
  readonly cursor?: string;
  readonly status?: string;
}

export interface StepsOptions extends RequestOptions {
  readonly limit?: number;
  readonly cursor?: string;
  readonly since?: number;
}

/** Runs: over REST, WebSocket and Connect. */
export class Runs {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** The runs, newest first. */
  async list(options: ListOptions = {}): Promise<{ readonly runs: readonly Run[]; readonly next_cursor: string | null }> {
    const { limit, cursor, status } = options;
    return (await this.#transport.json("GET", `/v1/agents/runs${query({ limit, cursor, status })}`, options)) as never;
  }

  async retrieve(id: string, options: RequestOptions = {}): Promise<Run> {
    return (await this.#transport.json("GET", this.#path(id), options)) as Run;
  }

  /** One page of a run's steps. */
  async steps(id: string, options: StepsOptions = {}): Promise<{ readonly steps: readonly Step[]; readonly next_since: number | null; readonly next_cursor: string }> {
    const { limit, cursor, since } = options;
    return (await this.#transport.json("GET", `${this.#path(id)}/steps${query({ limit, cursor, since })}`, options)) as never;
  }

  /** Watches a run over WebSocket. Throws a `TypeError` for an id that is none. */
  watch(id: string, options: WatchOptions = {}): RunStream {
    const { since } = options;
    if (since !== undefined && (!Number.isSafeInteger(since) || since < -1)) throw new TypeError("since must be a whole number from -1 up");
    return new RunStream(this.#transport, this.#path(id), options);
  }

  /** Watches a run over Connect (`ObserveRun` of sdk.v1). Throws a `TypeError` for an id that is none. */
  observe(id: string, options: ObserveOptions = {}): ObserveStream {
    this.#path(id);
    return new ObserveStream(this.#transport, id, options);
  }

  #path(id: string): string {
    return `/v1/agents/runs/${pathOf(id, "a run id")}`;
  }
}

function query(members: Readonly<Record<string, string | number | undefined>>): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(members)) if (value !== undefined) query.set(name, String(value));
  const text = query.toString();
  return text === "" ? "" : `?${text}`;
}

/** A server that speaks the contracts of runcast. */
export class Client {
  readonly nodes: Nodes;
  readonly runs: Runs;

  constructor(options: ClientOptions) {
    const transport = new Transport(options);
    this.nodes = new Nodes(transport);
    this.runs = new Runs(transport);
  }
}
