/** What a transcript consists of. */

import type { Hunk } from "./diff.js";

interface Base {
  /** Its own among the items of a run, and the same for as long as it is there. */
  readonly key: string;
  /** When it was recorded, in milliseconds; `undefined` when that is not known. */
  readonly at: number | undefined;
  /** The step that it is of; -1 for what is no step. */
  readonly index: number;
  /** The call of the sub-agent that it belongs to. */
  readonly parent: ToolItem | undefined;
  /** Grows with each change, so that a view knows whether it is up to date. */
  rev: number;
  /** Another message says that it stands in place of this one. */
  replaced: boolean;
}

/** The agent's session: which model, where, with what. */
export interface InitItem extends Base {
  readonly kind: "init";
  readonly model: string;
  readonly cwd: string;
  readonly facts: readonly (readonly [name: string, value: string])[];
}

export interface TextItem extends Base {
  readonly kind: "text" | "thinking" | "user";
  readonly text: string;
  /** It is the error of an API rather than an answer. */
  readonly isError: boolean;
}

export interface Picture {
  readonly mediaType: string;
  readonly base64: string;
}

export interface ImageItem extends Base {
  readonly kind: "image";
  readonly picture: Picture;
}

export type ToolState = "running" | "ok" | "failed" | "unknown";

export interface ToolOutput {
  /** What the model was given. */
  readonly text: string;
  readonly pictures: readonly Picture[];
  readonly stdout: string | undefined;
  readonly stderr: string | undefined;
  /** The changes of a file, where the tool says them. */
  readonly hunks: readonly Hunk[] | undefined;
  readonly todos: readonly Todo[] | undefined;
  /** Further facts: interrupted, timed out, in the background … */
  readonly notes: readonly string[];
  /** As the agent measured it. */
  readonly durationMs: number | undefined;
}

export interface Todo {
  readonly text: string;
  readonly status: string;
}

export interface ToolItem extends Base {
  readonly kind: "tool";
  readonly callId: string;
  name: string;
  input: unknown;
  state: ToolState;
  startedAt: number | undefined;
  endedAt: number | undefined;
  output: ToolOutput | undefined;
  /** What a sub-agent did. */
  readonly children: Item[];
  /** All calls below it, at any depth. */
  calls: number;
  /** What the sub-agent says that it is doing. */
  activity: string | undefined;
  /** The sub-agent was at work when this was first seen, so it is shown unfolded. */
  beganLive: boolean;
}

/** What the agent's program says beside the conversation. */
export interface NoteItem extends Base {
  readonly kind: "note";
  tone: "quiet" | "info" | "warning" | "error";
  readonly title: string;
  text: string;
  /** More, to be unfolded. */
  detail: string | undefined;
}

export interface ReportItem extends Base {
  readonly kind: "report";
  readonly title: string;
  readonly text: string;
}

/** The end of a turn. */
export interface ResultItem extends Base {
  readonly kind: "result";
  readonly ok: boolean;
  readonly text: string;
  readonly facts: readonly (readonly [name: string, value: string])[];
}

/** Something that is missing. */
export interface GapItem extends Base {
  readonly kind: "gap";
  readonly text: string;
}

/** Text that is being written. */
export interface OpenItem extends Base {
  readonly kind: "open";
  text: string;
}

export type Item =
  | InitItem
  | TextItem
  | ImageItem
  | ToolItem
  | NoteItem
  | ReportItem
  | ResultItem
  | GapItem
  | OpenItem;
