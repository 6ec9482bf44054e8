/**
 * The fold of a run's frames into what is shown. It never asks for order or completeness: results may come before their
 * calls, lines of a sub-agent before the call that began it, and anything may have any shape.
 */

import type { RunFrames, Step } from "runcast-client";

import type { GapItem, ImageItem, InitItem, Item, NoteItem, OpenItem, ReportItem, ResultItem, TextItem, ToolItem } from "./item.js";
import { isMembers, list, type Members, members, number, output, picture, pretty, text } from "./read.js";
import { bytes, duration, instant, money } from "./time.js";
import { Usage } from "./usage.js";

/** A place in the fold: what all items of a step have in common. */
interface Place {
  readonly at: number | undefined;
  readonly index: number;
  readonly uuid: string;
  readonly parent: ToolItem | undefined;
}

/** Open text keeps so many characters of its start: more comes with its message. */
const OPEN_MAX = 10_000_000;

/** What every message has, and nobody wants to read. */
const ENVELOPE: ReadonlySet<string> = new Set(["type", "subtype", "uuid", "session_id"]);

/** How many Unicode scalar values a text has. */
function scalars(text: string): number {
  let count = 0;
  for (let at = 0; at < text.length; at += (text.codePointAt(at) ?? 0) > 0xffff ? 2 : 1) count += 1;
  return count;
}

export class Transcript {
  /** The main thread, in the order in which it came. */
  readonly items: Item[] = [];
  readonly usage = new Usage();
  /** All calls in the order of their starts, those of sub-agents too. */
  readonly calls: ToolItem[] = [];
  /** Steps so far. */
  steps = 0;
  /** The highest index of a step. */
  lastIndex = -1;
  /** When the last step was recorded. */
  lastAt: number | undefined;
  /** The first thing that was said, or asked for. */
  title = "";
  /** The last plan that the agent wrote down. */
  todos: ToolItem | undefined;
  /** What the last turn ended with. */
  result: ResultItem | undefined;
  /** Grows with each change. */
  rev = 0;
  /** Whether what comes now is news rather than history. */
  isLive = false;

  readonly #seen = new Set<string>();
  readonly #tools = new Map<string, ToolItem>();
  readonly #byUuid = new Map<string, Item[]>();
  readonly #hooks = new Map<string, NoteItem>();
  readonly #open: OpenItem;
  #titleRank = 0;
  #openChars = 0;
  #made = 0;

  constructor() {
    this.#open = { kind: "open", key: "open", at: undefined, index: -1, parent: undefined, rev: 0, replaced: false, text: "" };
  }

  /** The text that is being written; `undefined` when there is none. */
  get open(): OpenItem | undefined {
    return this.#open.text === "" ? undefined : this.#open;
  }

  tool(callId: string): ToolItem | undefined {
    return this.#tools.get(callId);
  }

  /** Takes a frame; the run of a frame is the caller's. */
  take(frame: RunFrames): void {
    this.rev += 1;
    switch (frame.type) {
      case "snapshot":
      case "steps_append":
        for (const step of frame.steps) this.step(step);
        break;
      case "delta":
        this.#delta(frame.text, frame.start);
        break;
      case "gap":
        this.#gap(frame.earliest_step_index, frame.latest_step_index, frame.reason);
        break;
      case "unreadable":
        this.#add<NoteItem>(this.#nowhere(), {
          kind: "note",
          tone: "warning",
          title: "unreadable line",
          text: `${bytes(frame.bytes)} that are no message: ${frame.reason}`,
          detail: frame.head,
        });
        break;
      case "run":
      case "heartbeat":
        break;
    }
  }

  /** The run is over: nothing is being written any more, and no call goes on. */
  settle(): void {
    this.rev += 1;
    this.#closeOpen();
    for (const call of this.calls) {
      if (call.state !== "running") continue;
      call.state = "unknown";
      call.rev += 1;
    }
  }

  /** Takes a step, once. */
  step(step: Step): void {
    if (this.#seen.has(step.id)) return;
    this.#seen.add(step.id);
    this.rev += 1;
    this.steps += 1;
    this.lastIndex = Math.max(this.lastIndex, step.step_index);
    const data = members(step.data);
    const at = instant(data.timestamp) ?? instant(step.created_at);
    if (at !== undefined) this.lastAt = Math.max(this.lastAt ?? at, at);
    const place: Place = { at, index: step.step_index, uuid: text(data.uuid), parent: this.#parent(data.parent_tool_use_id, step, at) };
    for (const gone of list(data.supersedes)) this.#replace(text(gone));
    for (const gone of list(data.retracted_message_uuids)) this.#replace(text(gone));
    switch (data.type) {
      case "assistant":
        this.#assistant(data, place);
        break;
      case "user":
        this.#user(data, place);
        break;
      case "system":
        this.#system(data, place);
        break;
      case "result":
        this.#result(data, place);
        break;
      case "rate_limit_event":
        this.#rateLimit(members(data.rate_limit_info), place);
        break;
      case "tool_use_summary":
        this.#note(place, "quiet", "summary", text(data.summary));
        break;
      case "prompt_suggestion":
        this.#note(place, "quiet", "suggestion", text(data.suggestion));
        break;
      default:
        this.#note(place, "quiet", text(data.type) || "unknown", "", pretty(step.data));
    }
  }

  #place(step: Step, at: number | undefined): Place {
    return { at, index: step.step_index, uuid: "", parent: undefined };
  }

  #nowhere(): Place {
    return { at: undefined, index: -1, uuid: "", parent: undefined };
  }

  #parent(id: unknown, step: Step, at: number | undefined): ToolItem | undefined {
    return typeof id === "string" && id !== "" ? (this.#tools.get(id) ?? this.#start(id, "", undefined, this.#place(step, at))) : undefined;
  }

  #add<Kind extends Item>(place: Place, item: Omit<Kind, "key" | "at" | "index" | "parent" | "rev" | "replaced">): Kind {
    this.#made += 1;
    const { at, index, parent } = place;
    const added = { ...item, key: `i${this.#made}`, at, index, parent, rev: 0, replaced: false } as unknown as Kind;
    if (parent === undefined) this.items.push(added);
    else {
      if (parent.children.length === 0) parent.beganLive = this.isLive;
      parent.children.push(added);
      for (let above: ToolItem | undefined = parent; above !== undefined; above = above.parent) above.rev += 1;
    }
    if (place.uuid !== "") {
      const known = this.#byUuid.get(place.uuid);
      if (known === undefined) this.#byUuid.set(place.uuid, [added]);
      else known.push(added);
    }
    return added;
  }

  #note(place: Place, tone: NoteItem["tone"], title: string, said: string, detail?: string): NoteItem {
    return this.#add<NoteItem>(place, { kind: "note", tone, title, text: said, detail });
  }

  #replace(uuid: string): void {
    for (const item of this.#byUuid.get(uuid) ?? []) {
      item.replaced = true;
      item.rev += 1;
    }
  }

  #delta(more: string, start: number): void {
    const open = this.#open;
    if (start < this.#openChars) {
      // Counted in Unicode scalar values, and kept in UTF-16.
      let unit = 0;
      for (let count = 0; count < start && unit < open.text.length; count += 1) unit += (open.text.codePointAt(unit) ?? 0) > 0xffff ? 2 : 1;
      open.text = open.text.slice(0, unit);
      this.#openChars = start;
    }
    if (open.text.length > OPEN_MAX) return;
    open.text += more;
    this.#openChars += scalars(more);
    open.rev += 1;
  }

  #closeOpen(): void {
    this.#open.text = "";
    this.#openChars = 0;
    this.#open.rev += 1;
  }

  #gap(earliest: number | null | undefined, latest: number | null | undefined, reason: string | undefined): void {
    this.#closeOpen();
    // What follows may be of another life of the run, whose steps have ids of their own, or the same ones again.
    this.#seen.clear();
    const [from, to] = [this.lastIndex + 1, typeof earliest === "number" ? earliest - 1 : undefined];
    const missing =
      to !== undefined && to >= from
        ? `Steps ${from} to ${to} are missing.`
        : typeof latest === "number" && latest < this.lastIndex
          ? `The server has steps up to ${latest}, and this page has seen ${this.lastIndex}.`
          : "Some steps are missing here.";
    this.#add<GapItem>(this.#nowhere(), { kind: "gap", text: reason === undefined || reason === "" ? missing : `${missing} (${reason})` });
  }

  #say(place: Place, kind: TextItem["kind"], said: string, isError = false): void {
    if (said.trim() === "") return;
    this.#add<TextItem>(place, { kind, text: said, isError });
    if (place.parent !== undefined || kind === "thinking") return;
    const rank = kind === "user" ? 2 : 1;
    if (rank > this.#titleRank && (this.title === "" || this.steps < 20)) {
      this.title = said.trim().slice(0, 400).replace(/[`*#]+/g, "");
      this.#titleRank = rank;
    }
  }

  #assistant(data: Members, place: Place): void {
    const message = members(data.message);
    this.usage.message(message);
    const isError = typeof data.error === "string" || data.is_api_error_message === true;
    let closes = false;
    for (const block of list(message.content)) {
      if (!isMembers(block)) continue;
      const type = text(block.type);
      if (type === "text") {
        closes = true;
        this.#say(place, "text", text(block.text), isError);
      } else if (type === "thinking") this.#say(place, "thinking", text(block.thinking));
      else if (type === "redacted_thinking") this.#note(place, "quiet", "thinking", "kept secret by the model's maker");
      else if (type === "tool_use" || type === "server_tool_use" || type === "mcp_tool_use") {
        this.#start(text(block.id), text(block.name) || "unknown", block.input, place);
      } else if (typeof block.tool_use_id === "string") this.#finish(block, undefined, place);
      else this.#note(place, "quiet", type || "unknown", "", pretty(block));
    }
    if (closes && place.parent === undefined) this.#closeOpen();
    if (data.aborted === true) this.#note(place, "warning", "aborted", "The message above was broken off.");
  }

  #user(data: Members, place: Place): void {
    const { content } = members(data.message);
    if (typeof content === "string") {
      this.#userText(data, content, place);
      return;
    }
    for (const block of list(content)) {
      if (typeof block === "string") this.#userText(data, block, place);
      if (!isMembers(block)) continue;
      if (typeof block.tool_use_id === "string") this.#finish(block, data.tool_use_result, place);
      else if (block.type === "text") this.#userText(data, text(block.text), place);
      else {
        const shown = picture(block);
        if (shown === undefined) this.#note(place, "quiet", text(block.type) || "unknown", "", pretty(block));
        else this.#add<ImageItem>(place, { kind: "image", picture: shown });
      }
    }
  }

  #userText(data: Members, said: string, place: Place): void {
    if (data.isSynthetic === true) this.#note(place, "quiet", "written by the agent's program", "", said);
    else this.#say(place, "user", said);
  }

  #start(callId: string, name: string, input: unknown, place: Place): ToolItem {
    const known = this.#tools.get(callId);
    if (known !== undefined) {
      // Its result, or its sub-agent, was seen first.
      if (name !== "") known.name = name;
      if (input !== undefined) known.input = input;
      known.startedAt = known.startedAt === undefined ? place.at : Math.min(known.startedAt, place.at ?? known.startedAt);
      known.rev += 1;
      return known;
    }
    const tool = this.#add<ToolItem>(place, {
      kind: "tool",
      callId,
      name,
      input,
      state: "running",
      startedAt: place.at,
      endedAt: undefined,
      output: undefined,
      children: [],
      calls: 0,
      activity: undefined,
      beganLive: false,
    });
    this.#tools.set(callId, tool);
    this.calls.push(tool);
    for (let above = place.parent; above !== undefined; above = above.parent) above.calls += 1;
    if (name === "TodoWrite") this.todos = tool;
    return tool;
  }

  #finish(block: Members, twin: unknown, place: Place): void {
    const callId = text(block.tool_use_id);
    const tool = this.#tools.get(callId) ?? this.#start(callId, "", undefined, place);
    const content = members(block.content);
    tool.output = output(block.content, twin);
    tool.state = block.is_error === true || text(content.type).endsWith("_error") ? "failed" : "ok";
    tool.endedAt = place.at;
    tool.activity = undefined;
    for (let above: ToolItem | undefined = tool; above !== undefined; above = above.parent) above.rev += 1;
  }

  #system(data: Members, place: Place): void {
    const subtype = text(data.subtype);
    const call = typeof data.tool_use_id === "string" ? this.#tools.get(data.tool_use_id) : undefined;
    switch (subtype) {
      case "init":
        this.#init(data, place);
        return;
      case "report":
        this.#add<ReportItem>(place, { kind: "report", title: text(data.title), text: text(data.text) });
        return;
      case "task_started":
      case "task_progress":
        if (call === undefined) this.#note(place, "quiet", "task", text(data.description));
        else if (call.state === "running") {
          call.activity = text(data.description) || call.activity;
          call.rev += 1;
        }
        return;
      case "task_notification": {
        // The call itself says how it ended.
        if (call !== undefined && data.status === "completed") return;
        const status = text(data.status);
        const tone = status === "failed" ? "error" : status === "stopped" ? "warning" : "info";
        this.#note(place, tone, `task ${status}`.trim(), [text(data.summary), text(data.reason)].filter((part) => part !== "").join(": "));
        return;
      }
      case "api_retry": {
        const status = number(data.error_status);
        const why = [text(data.error) || "error", status === undefined ? "" : `HTTP ${status}`].filter((part) => part !== "").join(", ");
        const wait = number(data.retry_delay_ms);
        const attempt = `attempt ${number(data.attempt) ?? "?"} of ${number(data.max_retries) ?? "?"}`;
        this.#note(place, "warning", "API retry", `${why}; ${attempt}${wait === undefined ? "" : ` in ${duration(wait)}`}`);
        return;
      }
      case "api_error":
        this.#note(place, "error", "API error", text(members(data.error).message), pretty(data.error));
        return;
      case "compact_boundary": {
        const about = members(data.compact_metadata);
        const before = number(about.pre_tokens);
        const how = about.trigger === "manual" ? "by hand" : "by itself";
        this.#note(place, "info", "context compacted", `${how}${before === undefined ? "" : `, from ${before.toLocaleString("en")} tokens`}`);
        return;
      }
      case "permission_denied":
        this.#note(place, "warning", `${text(data.tool_name) || "tool"} denied`, text(data.message) || text(data.decision_reason));
        return;
      case "hook_response": {
        const failed = data.outcome === "error" || data.outcome === "blocked" || (number(data.exit_code) ?? 0) !== 0;
        const said = [text(data.stdout), text(data.stderr)].filter((part) => part !== "").join("\n") || text(data.output);
        const begun = this.#hooks.get(text(data.hook_id));
        const tone = failed ? "warning" : "quiet";
        if (begun === undefined) this.#note(place, tone, `hook ${text(data.hook_name)}`, text(data.outcome), said || undefined);
        else {
          begun.tone = tone;
          begun.text = text(data.outcome);
          begun.detail = said || undefined;
          begun.rev += 1;
        }
        return;
      }
      case "hook_started":
        this.#hooks.set(text(data.hook_id), this.#note(place, "quiet", `hook ${text(data.hook_name)}`, "started"));
        return;
      case "informational":
      case "notification":
      case "local_command_output":
      case "model_refusal_fallback":
      case "model_refusal_no_fallback":
      case "model_fallback":
      case "model_consent_fallback":
        this.#note(place, data.level === "warning" ? "warning" : "info", subtype.replaceAll("_", " "), text(data.content) || text(data.text));
        return;
      default: {
        const rest = Object.entries(data).filter(([name]) => !ENVELOPE.has(name));
        const detail = rest.length > 0 ? pretty(Object.fromEntries(rest)) : undefined;
        this.#note(place, "quiet", (subtype || "system").replaceAll("_", " "), text(data.summary), detail);
      }
    }
  }

  #init(data: Members, place: Place): void {
    const names = (value: unknown): string => {
      const found = list(value).map((entry) => (typeof entry === "string" ? entry : text(members(entry).name)));
      return found.filter((name) => name !== "").join(", ");
    };
    const facts: readonly (readonly [string, string])[] = [
      ["session id", text(data.session_id)],
      ["permissions", text(data.permissionMode)],
      ["version", text(data.claude_code_version)],
      ["tools", names(data.tools)],
      ["MCP servers", names(data.mcp_servers)],
      ["agents", names(data.agents)],
      ["skills", names(data.skills)],
      ["plugins", names(data.plugins)],
    ];
    const known = facts.filter(([, value]) => value !== "");
    this.#add<InitItem>(place, { kind: "init", model: text(data.model), cwd: text(data.cwd), facts: known });
  }

  #rateLimit(about: Members, place: Place): void {
    const status = text(about.status) || "unknown";
    const used = number(about.utilization);
    const words = [text(about.rateLimitType).replaceAll("_", " "), used === undefined ? "" : `${Math.round(used * 100)} % used`];
    const tone = status === "rejected" ? "error" : status === "allowed" ? "quiet" : "warning";
    this.#note(place, tone, `rate limit ${status.replaceAll("_", " ")}`, words.filter((word) => word !== "").join(", "));
  }

  #result(data: Members, place: Place): void {
    this.usage.result(data);
    const ok = data.is_error !== true && (data.subtype === "success" || data.subtype === undefined);
    const said = typeof data.result === "string" ? data.result : list(data.errors).map(text).join("\n");
    const facts: [string, string][] = [];
    const took = number(data.duration_ms);
    if (took !== undefined) facts.push(["took", duration(took)]);
    const turns = number(data.num_turns);
    if (turns !== undefined) facts.push(["turns", String(turns)]);
    const cost = number(data.total_cost_usd);
    if (cost !== undefined) facts.push(["cost", money(cost)]);
    const denials = list(data.permission_denials).length;
    if (denials > 0) facts.push(["denied", String(denials)]);
    if (!ok && typeof data.subtype === "string" && data.subtype !== "success") facts.push(["why", data.subtype.replaceAll("_", " ")]);
    // What was said last needs not be said again.
    const last = this.items.findLast((item) => item.kind === "text" && !item.isError);
    const repeated = last?.kind === "text" && last.text.trim() === said.trim();
    this.#closeOpen();
    const item = this.#add<ResultItem>(place, { kind: "result", ok, text: repeated ? "" : said, facts });
    if (this.result === undefined || (number(data.num_turns) ?? 0) > 0 || (number(data.duration_ms) ?? 0) > 0) this.result = item;
  }
}
