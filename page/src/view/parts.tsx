/** Small things that stand in many places. */

import { useState } from "preact/hooks";
import type { ComponentChildren, JSX } from "preact";

import { announce } from "../live/announce.js";
import { now } from "../live/clock.js";
import type { ToolState } from "../model/item.js";
import { age } from "../model/time.js";

const STATUS: Readonly<Record<string, readonly [tone: string, word: string]>> = {
  queued: ["queued", "queued"],
  running: ["running", "running"],
  completed: ["ok", "completed"],
  error: ["failed", "error"],
  cancelled: ["stopped", "cancelled"],
  stopped: ["stopped", "stopped"],
  expired: ["stopped", "expired"],
};

export function Status({ status }: { readonly status: string }): JSX.Element {
  const [tone, word] = STATUS[status] ?? ["running", status];
  return (
    <span class={`status ${tone}`}>
      <Dot state={tone} />
      {word}
    </span>
  );
}

/** A sign for a state, told apart by its shape and not only by its colour. */
export function Dot({ state }: { readonly state: string }): JSX.Element {
  return (
    <svg class={`dot ${state}`} viewBox="0 0 16 16" aria-hidden="true">
      {state === "running" && <circle cx="8" cy="8" r="4" />}
      {state === "queued" && <circle cx="8" cy="8" r="4.5" class="ring" />}
      {state === "ok" && <path d="M3.5 8.5l3 3 6-7" />}
      {state === "failed" && <path d="M4 4l8 8M12 4l-8 8" />}
      {state === "stopped" && <rect x="4.5" y="4.5" width="7" height="7" rx="1" />}
      {state === "unknown" && <path d="M4 8h8" />}
    </svg>
  );
}

export const TOOL_WORDS: Readonly<Record<ToolState, string>> = { running: "running", ok: "done", failed: "failed", unknown: "without an answer" };

/** How long ago something was. */
export function Age({ at, empty = "–" }: { readonly at: number | undefined; readonly empty?: string }): JSX.Element {
  if (at === undefined) return <>{empty}</>;
  return <time dateTime={new Date(at).toISOString()}>{age(now.value - at)}</time>;
}

const ICONS = {
  back: "M10 3L5 8l5 5",
  chevron: "M6 3l5 5-5 5",
  copy: "M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z",
  done: "M3 8.5l3.2 3L13 4.5",
  down: "M8 2.5v9M4 8l4 4 4-4M3 14h10",
  end: "M8 2v9M4 7.5l4 4 4-4M3.5 14h9",
  help: "M6 6a2 2 0 114 0c0 1.6-2 1.6-2 3.3M8 12.2v.1",
  info: "M8 7.2V12M8 4.3v.1M2 8a6 6 0 1012 0A6 6 0 102 8",
  moon: "M13 9.5A5.5 5.5 0 016.5 3 5.5 5.5 0 1013 9.5z",
  search: "M11.2 11.2L14 14M3 7.2a4.2 4.2 0 108.4 0 4.2 4.2 0 10-8.4 0",
  sun: "M8 5.2a2.8 2.8 0 110 5.6 2.8 2.8 0 010-5.6zM8 1.5v1.4M8 13.1v1.4M1.5 8h1.4M13.1 8h1.4M3.4 3.4l1 1M11.6 11.6l1 1M12.6 3.4l-1 1M4.4 11.6l-1 1",
  unfold: "M4.5 6L8 2.5 11.5 6M4.5 10L8 13.5 11.5 10",
  up: "M4 10l4-4 4 4",
  down1: "M4 6l4 4 4-4",
  close: "M4 4l8 8M12 4l-8 8",
  auto: "M8 2.5a5.5 5.5 0 010 11zM8 2.5a5.5 5.5 0 100 11",
} as const;

export function Icon({ name }: { readonly name: keyof typeof ICONS }): JSX.Element {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d={ICONS[name]} />
    </svg>
  );
}

export function IconButton(props: {
  readonly icon: keyof typeof ICONS;
  readonly label: string;
  readonly keys?: string;
  readonly pressed?: boolean;
  readonly disabled?: boolean;
  readonly children?: ComponentChildren;
  readonly onClick: () => void;
}): JSX.Element {
  const { icon, label, keys, pressed, disabled = false, children, onClick } = props;
  return (
    <button
      type="button"
      class={`tool-button ${children === undefined ? "square" : ""}`}
      title={keys === undefined ? label : `${label} (${keys})`}
      aria-label={children === undefined ? label : undefined}
      aria-pressed={pressed}
      disabled={disabled}
      onClick={onClick}
    >
      <Icon name={icon} />
      {children}
    </button>
  );
}

/** Copies a text to the clipboard. */
export function Copy({ text, label }: { readonly text: () => string; readonly label: string }): JSX.Element {
  const [isDone, setDone] = useState(false);
  const copy = async (event: Event): Promise<void> => {
    event.stopPropagation();
    try {
      await navigator.clipboard.writeText(text());
    } catch {
      // Where pages that did not come over TLS have no clipboard.
      const field = document.createElement("textarea");
      field.value = text();
      document.body.append(field);
      field.select();
      // eslint-disable-next-line @typescript-eslint/no-deprecated -- there is nothing else in that case.
      document.execCommand("copy");
      field.remove();
    }
    announce("copied");
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return (
    <button type="button" class="copy" title={label} aria-label={label} onClick={(event) => void copy(event)}>
      <Icon name={isDone ? "done" : "copy"} />
    </button>
  );
}
