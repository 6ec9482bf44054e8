import type { ErrorObject } from "./errors.js";

/** What every event of a node has; only `error` has neither. */
interface OfNode {
  readonly node_id: string;
  /** Increases within a node. It is the cursor: `after` takes it. */
  readonly sequence_number: number;
}

/** A piece of the assistant's text, as it is produced: all of them, one after another, are the text. */
export interface OutputTextDeltaEvent extends OfNode {
  readonly type: "node.output_text.delta";
  readonly delta: string;
}

export interface ToolCallStartedEvent extends OfNode {
  readonly type: "node.tool_call.started";
  readonly call_id: string;
  readonly tool: string;
  /** The shape of the arguments, as `object with 2 fields`; never a value. */
  readonly summary: string;
}

export interface ToolCallCompletedEvent extends OfNode {
  readonly type: "node.tool_call.completed";
  readonly call_id: string;
  readonly tool: string;
  readonly status: "ok" | "error";
  readonly summary: string;
  readonly duration_ms?: number;
}

export interface ReportEvent extends OfNode {
  readonly type: "node.report";
  readonly report: string;
  readonly title?: string;
}

/** The terminal event. */
export interface SettledEvent extends OfNode {
  readonly type: "node.settled";
  readonly outcome: Outcome;
}

/** Not an event of the node, and it moves no cursor: `stream_gap`, or why the stream ends. */
export interface ErrorEvent {
  readonly type: "error";
  readonly error: ErrorObject;
}

export type NodeEvent =
  | OutputTextDeltaEvent
  | ToolCallStartedEvent
  | ToolCallCompletedEvent
  | ReportEvent
  | SettledEvent
  | ErrorEvent;

export type NodeEventType = NodeEvent["type"];

/** How a node ended. */
export interface Outcome {
  readonly status: "completed" | "failed" | "cancelled" | "expired";
  readonly error_code: string | null;
  readonly error_message: string | null;
  readonly result: unknown;
  readonly duration_ms: number | null;
  readonly usage: unknown;
  readonly settled_at: string | null;
}

export interface Node {
  readonly id: string;
  readonly state: "live" | "dormant" | "settled";
  readonly created_at: string | null;
  readonly updated_at: string | null;
}
