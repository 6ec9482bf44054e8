/** Text of runs. Whatever it holds, it becomes text nodes. */

import { useState } from "preact/hooks";
import type { JSX } from "preact";

import type { Hunk } from "../model/diff.js";
import { pieces, sliceWhole, type Style } from "../model/text.js";
import { bytes } from "../model/time.js";

function classes(style: Style): string {
  const names = Object.keys(style).filter((name) => name !== "fg");
  return [...names, ...(style.fg === undefined ? [] : [`fg${style.fg}`])].map((name) => `t-${name}`).join(" ");
}

/** Text with what cannot be seen made visible; with colours, where a terminal would have had them. */
export function Plain({ text, ansi = false }: { readonly text: string; readonly ansi?: boolean }): JSX.Element {
  return (
    <>
      {pieces(text, ansi).map(({ text: piece, style, mark }, at) =>
        mark !== undefined ? (
          <span key={at} class="mark" title={mark}>
            {piece}
          </span>
        ) : style !== undefined ? (
          <span key={at} class={classes(style)}>
            {piece}
          </span>
        ) : (
          piece
        ),
      )}
    </>
  );
}

/** Long text is shown in parts: a first look, and each time more. */
const FIRST = { chars: 6000, lines: 40 };
const MORE = 8;

function cut(text: string, chars: number, lines: number): string {
  if (text.length <= chars && lines === Infinity) return text;
  let end = -1;
  for (let line = 0; line < lines; line += 1) {
    end = text.indexOf("\n", end + 1);
    if (end < 0 || end > chars) break;
  }
  const limit = end < 0 ? chars : Math.min(chars, end);
  return sliceWhole(text, limit);
}

/** How much of a text is shown, and the button for more. */
export function useCut(text: string, lines = FIRST.lines, chars = FIRST.chars): readonly [shown: string, more: JSX.Element | undefined] {
  const [times, setTimes] = useState(1);
  const shown = cut(text, chars * times, lines * times);
  if (shown.length >= text.length) return [text, undefined];
  const more = (
    <button type="button" class="more" onClick={() => setTimes(times * MORE)}>
      Show more: {bytes(text.length - shown.length)} left
    </button>
  );
  return [shown, more];
}

/** What a program wrote. */
export function Output({ text, label, tone, lines }: { readonly text: string; readonly label?: string; readonly tone?: string; readonly lines?: number }): JSX.Element {
  const trimmed = text.replace(/^\n+|\s+$/g, "");
  const [shown, more] = useCut(trimmed, lines);
  return (
    <div class={`output ${tone ?? ""}`}>
      {label !== undefined && <span class="label">{label}</span>}
      <pre dir="auto">
        <Plain text={shown} ansi />
      </pre>
      {more}
    </div>
  );
}

const HUNK_LINES = 60;

/** The changes of a file. */
export function Diff({ hunks }: { readonly hunks: readonly Hunk[] }): JSX.Element {
  const [limit, setLimit] = useState(HUNK_LINES);
  let left = limit;
  let total = 0;
  for (const hunk of hunks) total += hunk.lines.length;
  return (
    <div class="diff" role="group" aria-label="changes">
      {hunks.map((hunk, at) => {
        if (left <= 0) return null;
        const lines = hunk.lines.slice(0, left);
        left -= lines.length;
        let [old, fresh] = [hunk.oldStart, hunk.newStart];
        return (
          <div key={at} class="hunk">
            {lines.map((line, number) => {
              const numbers = [line.kind === "+" || old === 0 ? "" : old, line.kind === "-" || fresh === 0 ? "" : fresh];
              if (line.kind !== "+" && old > 0) old += 1;
              if (line.kind !== "-" && fresh > 0) fresh += 1;
              const name = line.kind === "+" ? "added" : line.kind === "-" ? "removed" : "same";
              return (
                <div key={number} class={`line ${name}`}>
                  <span class="no">{numbers[0]}</span>
                  <span class="no">{numbers[1]}</span>
                  <span class="sign">{line.kind}</span>
                  <code dir="auto">
                    <Plain text={sliceWhole(line.text, 2000)} />
                    {line.text.length > 2000 && <span class="mark">… {bytes(line.text.length - 2000)} more in this line</span>}
                  </code>
                </div>
              );
            })}
          </div>
        );
      })}
      {total > limit && (
        <button type="button" class="more" onClick={() => setLimit(limit * MORE)}>
          Show more: {total - limit} lines left
        </button>
      )}
    </div>
  );
}

type Block =
  | { readonly kind: "code" | "text" | "table"; readonly text: string }
  | { readonly kind: "head"; readonly text: string }
  | { readonly kind: "list"; readonly marker: string; readonly text: string; readonly indent: number };

/** As much of Markdown as helps to read; everything else stays as it was written. */
function blocks(text: string): Block[] {
  const out: Block[] = [];
  let open: { kind: "code" | "text" | "table"; lines: string[] } | undefined;
  const close = (): void => {
    if (open !== undefined && (open.kind === "code" || open.lines.some((line) => line.trim() !== ""))) {
      out.push({ kind: open.kind, text: open.lines.join("\n") });
    }
    open = undefined;
  };
  for (const line of text.split("\n")) {
    if (/^\s*(```|~~~)/.test(line)) {
      if (open?.kind === "code") close();
      else {
        close();
        open = { kind: "code", lines: [] };
      }
      continue;
    }
    if (open?.kind === "code") {
      open.lines.push(line);
      continue;
    }
    const head = /^#{1,6}\s+(.*)$/.exec(line);
    const item = /^(\s*)([-*•]|\d{1,3}[.)])\s+(.*)$/.exec(line);
    const kind = line.startsWith("|") ? "table" : "text";
    if (head !== null) {
      close();
      out.push({ kind: "head", text: head[1] ?? "" });
    } else if (item !== null) {
      close();
      const marker = item[2] ?? "";
      out.push({ kind: "list", marker: /\d/.test(marker) ? marker : "•", text: item[3] ?? "", indent: Math.min(4, Math.floor((item[1] ?? "").length / 2)) });
    } else if (line.trim() === "") {
      close();
    } else {
      if (open?.kind !== kind) {
        close();
        open = { kind, lines: [] };
      }
      open.lines.push(line);
    }
  }
  close();
  return out;
}

/** `code`, **strong** and *emphasis* in a line. */
function Inline({ text }: { readonly text: string }): JSX.Element {
  const parts = text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/);
  return (
    <>
      {parts.map((part, at) => {
        if (at % 2 === 0) return <Plain key={at} text={part} />;
        if (part.startsWith("`")) {
          return (
            <code key={at}>
              <Plain text={part.slice(1, -1)} />
            </code>
          );
        }
        return (
          <strong key={at}>
            <Plain text={part.slice(2, -2)} />
          </strong>
        );
      })}
    </>
  );
}

/** What somebody said is there to be read: most of it is shown whole. */
const SAID = { chars: 40_000, lines: 1000 };

/** What somebody said. */
export function Prose({ text, lines = SAID.lines, chars = SAID.chars }: { readonly text: string; readonly lines?: number; readonly chars?: number }): JSX.Element {
  const [shown, more] = useCut(text, lines, chars);
  return (
    <div class="prose" dir="auto">
      {blocks(shown).map((block, at) => {
        switch (block.kind) {
          case "code":
          case "table":
            return (
              <pre key={at}>
                <Plain text={block.text} />
              </pre>
            );
          case "head":
            return (
              <p key={at} class="head">
                <Inline text={block.text} />
              </p>
            );
          case "list":
            return (
              <div key={at} class={`item indent${block.indent}`}>
                <span class="bullet">{block.marker}</span>
                <span>
                  <Inline text={block.text} />
                </span>
              </div>
            );
          default:
            return (
              <p key={at}>
                <Inline text={block.text} />
              </p>
            );
        }
      })}
      {more}
    </div>
  );
}
