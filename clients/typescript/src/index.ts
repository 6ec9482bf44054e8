export { type ActivityStep, type Describe, describeToolDefault, followActivity } from "./activity.js";
export { Client, type ListOptions, type NodeParams, Nodes, Runs, type StepsOptions } from "./client.js";
export { APIError, type ErrorObject } from "./errors.js";
export type {
  ErrorEvent,
  Node,
  NodeEvent,
  NodeEventType,
  Outcome,
  OutputTextDeltaEvent,
  ReportEvent,
  SettledEvent,
  ToolCallCompletedEvent,
  ToolCallStartedEvent,
} from "./events.js";
export { type EventsOptions, NodeStream } from "./node-stream.js";
export { type ObserveOptions, ObserveStream, type RunStreamMessage } from "./observe-stream.js";
export {
  type DeltaFrame,
  type GapFrame,
  type HeartbeatFrame,
  type Run,
  type RunFrame,
  type RunFrames,
  RunStream,
  type SnapshotFrame,
  type Step,
  type StepsAppendFrame,
  type UnreadableFrame,
  type WatchOptions,
} from "./run-stream.js";
export type { ClientOptions, RequestOptions, WebSocketConstructor, WebSocketLike } from "./transport.js";
