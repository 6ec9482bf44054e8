import type { NodeEvent } from "./events.js";

/** One tool call, as a line of an activity feed. */
export interface ActivityStep {
  readonly call_id: string;
  readonly tool: string;
  /** What `describe` made of it. */
  readonly label: string;
  readonly status: "running" | "done" | "failed";
}

/** Names a tool call; `null` hides it. `summary` is the shape of the arguments, never a value. */
export type Describe = (tool: string, summary: string) => string | null;

const NAMES: Readonly<Record<string, string>> = {
  bash: "Running a command",
  bashoutput: "Reading a command's output",
  killshell: "Stopping a command",
  read: "Reading a file",
  write: "Writing a file",
  edit: "Editing a file",
  multiedit: "Editing a file",
  notebookedit: "Editing a notebook",
  ls: "Listing files",
  glob: "Looking for files",
  find: "Looking for files",
  grep: "Searching in files",
  webfetch: "Reading a web page",
  websearch: "Searching the web",
  task: "Working with a sub-agent",
  agent: "Working with a sub-agent",
  todowrite: "Planning",
};

/** Names the common tools, `server: tool` for those of an MCP server, and else the tool as it is called. */
// eslint-disable-next-line @typescript-eslint/no-unused-vars -- it can be called, and given, like any `Describe`.
export function describeToolDefault(tool: string, _summary?: string): string {
  const mcp = /^mcp__(.+?)__(.+)$/.exec(tool);
  if (mcp !== null) return `${mcp[1] ?? ""}: ${mcp[2] ?? ""}`;
  const key = tool.toLowerCase().replaceAll("_", "");
  return Object.hasOwn(NAMES, key) ? (NAMES[key] ?? tool) : tool;
}

/**
 * Turns tool-call events into snapshots for an activity feed: a new frozen list each time a step begins or ends. Steps
 * of an earlier list that have not changed are the same objects in the next one.
 */
export async function* followActivity(
  stream: AsyncIterable<NodeEvent>,
  options: { readonly describe?: Describe } = {},
): AsyncGenerator<readonly ActivityStep[], void> {
  const describe = options.describe ?? describeToolDefault;
  let steps: readonly ActivityStep[] = Object.freeze([]);
  const places = new Map<string, number>();
  for await (const event of stream) {
    if (event.type !== "node.tool_call.started" && event.type !== "node.tool_call.completed") continue;
    const { call_id, tool, summary } = event;
    const status = event.type === "node.tool_call.started" ? "running" : event.status === "ok" ? "done" : "failed";
    const at = places.get(call_id);
    // A call that ends here may have begun before the cursor of this stream.
    const label = at === undefined ? describe(tool, summary) : (steps[at]?.label ?? null);
    if (label === null) continue;
    const step: ActivityStep = Object.freeze({ call_id, tool, label, status });
    const next = [...steps];
    next[at ?? next.length] = step;
    places.set(call_id, at ?? steps.length);
    steps = Object.freeze(next);
    yield steps;
  }
}
