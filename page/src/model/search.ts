/** What a search looks through. */

import type { Item } from "./item.js";
import { pretty } from "./read.js";

const known = new WeakMap<Item, { readonly rev: number; readonly text: string }>();

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
    case "tool": {
      const { output } = item;
      const input = typeof item.input === "object" && item.input !== null ? Object.values(item.input) : [item.input];
      const given = input.map((value) => (typeof value === "string" ? value : pretty(value)));
      return [item.name, ...given, output?.text ?? "", output?.stdout ?? "", output?.stderr ?? ""];
    }
    case "note":
      return [item.title, item.text, item.detail ?? ""];
    case "report":
      return [item.title, item.text];
    case "result":
      return [item.text];
  }
}
