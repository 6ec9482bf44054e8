/** A call in one line. */

import { counted } from "./diff.js";
import type { ToolItem } from "./item.js";
import { intended, list, members, text } from "./read.js";

/** What a call is about. */
export function subject(tool: ToolItem): string {
  const input = members(tool.input);
  const at = (name: string): string => text(input[name]);
  switch (tool.name) {
    case "Bash":
    case "PowerShell":
      return at("command");
    case "Read":
    case "Edit":
    case "MultiEdit":
    case "Write":
    case "NotebookEdit":
      return at("file_path") || at("notebook_path");
    case "Grep":
      return [at("pattern"), at("path") || at("glob")].filter((part) => part !== "").join("  in ");
    case "Glob":
      return [at("pattern"), at("path")].filter((part) => part !== "").join("  in ");
    case "Task":
    case "Agent":
      return [at("subagent_type"), at("description")].filter((part) => part !== "").join(": ");
    case "WebFetch":
      return at("url");
    case "WebSearch":
      return at("query");
    case "TodoWrite":
      return plan(tool);
    default: {
      const told = Object.values(input).find((value) => typeof value === "string" && value !== "");
      return text(told);
    }
  }
}

function plan(tool: ToolItem): string {
  const todos = list(members(tool.input).todos).map(members);
  const done = todos.filter((todo) => todo.status === "completed").length;
  const now = todos.find((todo) => todo.status === "in_progress");
  return [`${done} of ${todos.length} done`, now === undefined ? "" : text(now.activeForm) || text(now.content)]
    .filter((part) => part !== "")
    .join(" · ");
}

/** What came of it, in a few words; empty when there is nothing to say. */
export function upshot(tool: ToolItem): string {
  const { output } = tool;
  if (output === undefined) return "";
  if (tool.name === "TodoWrite" && tool.state === "ok") return "";
  if (tool.state === "failed") return complaint(output.text);
  if (tool.children.length > 0) return output.text.trimStart().split("\n", 1)[0]?.slice(0, 300) ?? "";
  const hunks = output.hunks ?? (tool.state === "ok" ? intended(tool.name, tool.input) : undefined);
  if (hunks !== undefined) {
    const { added, removed } = counted(hunks);
    return [added > 0 ? `+${added}` : "", removed > 0 ? `−${removed}` : ""].filter((part) => part !== "").join(" ") || "no change";
  }
  if (tool.name === "Read") return output.pictures.length > 0 ? "picture" : lines(output.text);
  if (tool.name === "Grep" || tool.name === "Glob") return lines(output.text);
  if (output.pictures.length > 0 && output.text === "") return "picture";
  return lastLine(output.stdout !== undefined && output.stdout.trim() !== "" ? output.stdout : output.text);
}

function lines(said: string): string {
  let count = 0;
  for (let at = 0; at >= 0 && at < said.length; ) {
    count += 1;
    const end = said.indexOf("\n", at);
    at = end < 0 ? said.length : end + 1;
  }
  return count === 1 ? "1 line" : `${count} lines`;
}

function lastLine(said: string): string {
  const end = said.trimEnd();
  return end.slice(end.lastIndexOf("\n") + 1).slice(0, 300);
}

const EXIT = /^exit code (\d+)$/i;
const COMPLAINS = /\b(error|failed|failure|fatal|panicked|denied|exception|not found|cannot|no such|timed out)\b/i;

/** The status with which a command failed, where its result says one. */
export function exitCode(tool: ToolItem): string | undefined {
  const said = tool.output?.text ?? "";
  return EXIT.exec(said.slice(0, Math.max(0, said.indexOf("\n"))).trim())?.[1];
}

/** The first line that says what is wrong; else the first that says something. */
function complaint(said: string): string {
  const lines = said
    .slice(0, 20_000)
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "" && !EXIT.test(line));
  return (lines.find((line) => COMPLAINS.test(line)) ?? lines[0] ?? "").slice(0, 300);
}
