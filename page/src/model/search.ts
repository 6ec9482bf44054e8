/** What a search looks through, and where it finds what it looks for. */

import type { Item, ToolItem } from "./item.js";
import { pretty } from "./read.js";

const known = new WeakMap<Item, { readonly rev: number; readonly text: string }>();

/** A place that was found. What a sub-agent's call gave back stands below what it did. */
export interface Found {
  readonly item: Item;
  readonly isTail: boolean;
}

/** All places that hold a text, in the order in which they are shown. */
export function search(items: readonly Item[], query: string): Found[] {
  const needle = query.toLowerCase();
  const out: Found[] = [];
  const walk = (items: readonly Item[]): void => {
    for (const item of items) {
      const holds = haystack(item).includes(needle);
      if (item.kind !== "tool" || item.children.length === 0) {
        if (holds) out.push({ item, isTail: false });
        continue;
      }
      if (holds && given(item).join("\n").toLowerCase().includes(needle)) out.push({ item, isTail: false });
      walk(item.children);
      if (holds && gave(item).join("\n").toLowerCase().includes(needle)) out.push({ item, isTail: true });
    }
  };
  walk(items);
  return out;
}

/** All text of an item, in small letters. It is made once for each state of the item. */
export function haystack(item: Item): string {
  const before = known.get(item);
  if (before?.rev === item.rev) return before.text;
  const text = words(item).join("\n").toLowerCase();
  known.set(item, { rev: item.rev, text });
  return text;
}

function words(item: Item): string[] {
  switch (item.kind) {
    case "init":
      return [item.model, item.cwd, ...item.facts.map(([, value]) => value)];
    case "text":
    case "thinking":
    case "user":
    case "gap":
    case "open":
      return [item.text];
    case "image":
      return [];
    case "tool":
      return [...given(item), ...gave(item)];
    case "note":
      return [item.title, item.text, item.detail ?? ""];
    case "report":
      return [item.title, item.text];
    case "result":
      return [item.text];
  }
}

function given(tool: ToolItem): string[] {
  const input = typeof tool.input === "object" && tool.input !== null ? Object.values(tool.input) : [tool.input];
  return [tool.name, ...input.map((value) => (typeof value === "string" ? value : pretty(value)))];
}

function gave({ output }: ToolItem): string[] {
  return output === undefined ? [] : [output.text, output.stdout ?? "", output.stderr ?? ""];
}
