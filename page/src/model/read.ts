/** Reads members of messages that may have any shape. */

import { fromPatch, between, type Hunk } from "./diff.js";
import type { Picture, Todo, ToolOutput } from "./item.js";

export type Members = Readonly<Record<string, unknown>>;

export function isMembers(value: unknown): value is Members {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function members(value: unknown): Members {
  return isMembers(value) ? value : {};
}

export function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

export function list(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? (value as readonly unknown[]) : [];
}

export function number(value: unknown): number | undefined {
  return typeof value === "number" && Number.isFinite(value) ? value : undefined;
}

/** JSON as one reads it. What has no JSON is said in a word. */
export function pretty(value: unknown): string {
  if (value === undefined) return "";
  try {
    return JSON.stringify(value, null, 2);
  } catch {
    return "(nested too deeply to be shown)";
  }
}

const PICTURES = /^image\/(png|jpeg|gif|webp)$/;

/** The picture of a block, when it is one that can be shown without harm. */
export function picture(block: Members): Picture | undefined {
  const source = members(block.source);
  const mediaType = text(source.media_type);
  const base64 = text(source.data);
  return PICTURES.test(mediaType) && base64 !== "" ? { mediaType, base64 } : undefined;
}

/** What a `tool_result` holds, whatever its shape, and its twin `tool_use_result`. */
export function output(content: unknown, twin: unknown): ToolOutput {
  const texts: string[] = [];
  const pictures: Picture[] = [];
  for (const block of typeof content === "string" ? [content] : list(content)) {
    if (typeof block === "string") texts.push(block);
    else if (isMembers(block)) {
      const shown = block.type === "image" ? picture(block) : undefined;
      if (shown !== undefined) pictures.push(shown);
      else if (typeof block.text === "string") texts.push(block.text);
      else if (typeof block.tool_name === "string") texts.push(block.tool_name);
      else texts.push(pretty(block));
    } else if (block !== null) texts.push(pretty(block));
  }
  if (isMembers(content)) texts.push(pretty(content));
  const more = members(twin);
  if (texts.length === 0 && pictures.length === 0 && typeof twin === "string") texts.push(twin);
  const notes: string[] = [];
  if (more.interrupted === true) notes.push("interrupted");
  if (number(more.timedOutAfterMs) !== undefined) notes.push("timed out");
  if (typeof more.backgroundTaskId === "string" || more.status === "async_launched") notes.push("goes on in the background");
  if (typeof more.returnCodeInterpretation === "string") notes.push(more.returnCodeInterpretation);
  if (typeof more.persistedOutputPath === "string") notes.push("shortened by the agent");
  if (more.userModified === true) notes.push("changed by the user");
  return {
    text: texts.join("\n"),
    pictures,
    stdout: typeof more.stdout === "string" ? more.stdout : undefined,
    stderr: typeof more.stderr === "string" ? more.stderr : undefined,
    hunks: changes(more),
    todos: Array.isArray(more.newTodos) ? todos(more.newTodos) : undefined,
    notes,
    durationMs: number(more.totalDurationMs) ?? number(more.durationMs),
  };
}

/** The changes that a finished Edit or Write says. */
function changes(twin: Members): readonly Hunk[] | undefined {
  const patch = fromPatch(twin.structuredPatch);
  if (patch !== undefined) return patch;
  if (twin.type === "create" && typeof twin.content === "string") return between("", twin.content, 1);
  return undefined;
}

/** The changes that an Edit or Write asks for. */
export function intended(name: string, input: unknown): readonly Hunk[] | undefined {
  const given = members(input);
  if (name === "Edit" && typeof given.old_string === "string" && typeof given.new_string === "string") {
    return between(given.old_string, given.new_string);
  }
  if (name === "MultiEdit" && Array.isArray(given.edits)) {
    return list(given.edits).flatMap((edit) => between(text(members(edit).old_string), text(members(edit).new_string)));
  }
  if (name === "Write" && typeof given.content === "string") return between("", given.content, 1);
  return undefined;
}

export function todos(value: unknown): readonly Todo[] {
  return list(value).map((todo) => ({ text: text(members(todo).content), status: text(members(todo).status) }));
}
