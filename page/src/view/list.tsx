/** The list of runs. */

import { computed, effect, signal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { JSX } from "preact";

import { now } from "../live/clock.js";
import { isOver } from "../live/feed.js";
import { entries, type Entry, hasOlder, listState, loadOlder, see } from "../live/runs.js";
import { oneLine, visible } from "../model/text.js";
import { amount, duration, money, soFar } from "../model/time.js";
import { tokensOf } from "../model/usage.js";
import { Age, Dot, Icon, Status } from "./parts.js";
import { Plain } from "./plain.js";
import { addressOf, go, openRun } from "./route.js";
import { Virtual } from "./virtual.js";

const KINDS = ["all", "running", "completed", "failed", "other"] as const;
type Kind = (typeof KINDS)[number];

function kindOf(status: string): Kind {
  if (status === "completed") return "completed";
  if (status === "error") return "failed";
  return isOver(status) ? "other" : "running";
}

export const filterText = signal("");
const filterKind = signal<Kind>("all");
const chosen = signal<string | undefined>(undefined);
const target = signal<{ readonly key: string } | undefined>(undefined);

const matching = computed(() => {
  const words = filterText.value.toLowerCase().split(/\s+/).filter((word) => word !== "");
  if (words.length === 0) return entries.value;
  return entries.value.filter((entry) => {
    const said = [entry.id, entry.title, entry.status, entry.run.model, entry.run.agent_id, entry.run.summary, entry.run.error];
    const hay = said.filter((part) => typeof part === "string").join("\n").toLowerCase();
    return words.every((word) => hay.includes(word));
  });
});

const counts = computed(() => {
  const out: Record<Kind, number> = { all: matching.value.length, running: 0, completed: 0, failed: 0, other: 0 };
  for (const entry of matching.value) out[kindOf(entry.status)] += 1;
  return out;
});

export const listed = computed(() => (filterKind.value === "all" ? matching.value : matching.value.filter((entry) => kindOf(entry.status) === filterKind.value)));

/** Who filters wants to know of older ones too: they are fetched while there is a filter. */
const FILTERED_MAX = 20_000;
effect(() => {
  const isFiltered = filterText.value !== "" || filterKind.value !== "all";
  if (isFiltered && hasOlder.value && listed.value.length < 200 && entries.value.length < FILTERED_MAX) queueMicrotask(() => void loadOlder());
});

/** The row that the keys went to: its link takes the focus when it is drawn. */
let wantsFocus: string | undefined;

/** Goes so many rows on, or back. */
export function stepList(by: number): void {
  const rows = listed.peek();
  const at = rows.findIndex((entry) => entry.id === chosen.peek());
  const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + by))];
  if (next === undefined) return;
  chosen.value = next.id;
  target.value = { key: next.id };
  // At once, where it can be: the next key may be Enter, which is for the link that has the focus.
  const link = document.querySelector<HTMLElement>(`.list-row[data-key="${CSS.escape(next.id)}"] a`);
  if (link === null) wantsFocus = next.id;
  else link.focus({ preventScroll: true });
}

export function openChosen(): void {
  if (chosen.peek() !== undefined) go(chosen.peek());
}

/** Opens the run above or below the one that is open. */
export function stepOpen(by: number): void {
  const rows = listed.peek();
  const at = rows.findIndex((entry) => entry.id === openRun.peek());
  const next = rows[at + by];
  if (at < 0 || next === undefined) return;
  chosen.value = next.id;
  target.value = { key: next.id };
  go(next.id);
}

const WIDE = 52;
const SLIM = 56;

export function List({ isSlim }: { readonly isSlim: boolean }): JSX.Element {
  const rows = listed.value;
  const open = openRun.value;
  useEffect(() => {
    if (open !== undefined) target.value = { key: open };
  }, []);
  const height = isSlim ? SLIM : WIDE;
  const shown = useMemo(() => ({ first: 0, last: 40 }), []);
  useEffect(() => {
    see(listed.value.slice(shown.first, shown.last + 1));
  }, [entries.value, rows]);
  const state = listState.value;
  return (
    <div class={`list ${isSlim ? "slim" : ""}`}>
      <Filters isSlim={isSlim} />
      <ListStateLine />
      {rows.length === 0 && state.kind === "live" ? (
        <Nothing />
      ) : (
        <Virtual<Entry>
          rows={rows}
          keyOf={(entry) => entry.id}
          guess={() => height}
          version={rows}
          follows={false}
          target={target.value}
          onShown={(first, last) => {
            shown.first = first;
            shown.last = last;
            see(listed.peek().slice(first, last + 1));
            if (last > rows.length - 40) void loadOlder();
          }}
          scroller={{ class: "list-rows", role: "table", "aria-label": "Runs", "aria-rowcount": hasOlder.value ? -1 : rows.length + 1, tabIndex: 0 }}
          head={<Head />}
          body={{ role: "rowgroup" }}
          render={(entry, at) => <Line key={entry.id} entry={entry} at={at} isOpen={open === entry.id} isChosen={chosen.value === entry.id} />}
        />
      )}
    </div>
  );
}

const COLUMNS: readonly (readonly [name: string, label: string])[] = [
  ["c-status", "Status"],
  ["c-title", "Run"],
  ["c-model", "Model"],
  ["c-steps", "Steps"],
  ["c-tokens", "Tokens"],
  ["c-cost", "Cost"],
  ["c-duration", "Duration"],
  ["c-age", "Began"],
  ["c-active", "Last active"],
];

function Head(): JSX.Element {
  return (
    <div role="rowgroup" class="list-head">
      <div role="row" class="list-row" aria-rowindex={1}>
        {COLUMNS.map(([name, label]) => (
          <span key={name} role="columnheader" class={name}>
            {label}
          </span>
        ))}
      </div>
    </div>
  );
}

function Line({ entry, at, isOpen, isChosen }: { readonly entry: Entry; readonly at: number; readonly isOpen: boolean; readonly isChosen: boolean }): JSX.Element {
  const { run, status, startedAt, endedAt } = entry;
  const goesOn = !isOver(status);
  const tokens = tokensOf(run.usage);
  const took = run.duration_ms ?? (startedAt === undefined ? undefined : goesOn ? now.value - startedAt : endedAt === undefined ? undefined : endedAt - startedAt);
  const said = typeof run.error === "string" && run.error !== "" ? run.error : (run.summary ?? "");
  const title = entry.title === "" ? entry.id : entry.title;
  const link = useRef<HTMLAnchorElement>(null);
  useEffect(() => {
    if (!isChosen || wantsFocus !== entry.id) return;
    wantsFocus = undefined;
    link.current?.focus({ preventScroll: true });
  });
  const classes = ["list-row"];
  if (isOpen) classes.push("open");
  if (isChosen) classes.push("chosen");
  return (
    <div
      role="row"
      class={classes.join(" ")}
      data-key={entry.id}
      aria-rowindex={at + 2}
      onClick={(event) => {
        chosen.value = entry.id;
        const isLink = (event.target as Element).closest("a") !== null;
        if (!isLink && getSelection()?.isCollapsed !== false) go(entry.id);
      }}
    >
      <span role="cell" class="c-status">
        <Status status={status} />
      </span>
      <span role="cell" class="c-title">
        <a ref={link} href={addressOf(entry.id)} aria-current={isOpen ? "page" : undefined} onFocus={() => (chosen.value = entry.id)}>
          <Plain text={oneLine(title, 200)} />
        </a>
        <span class={`second ${status === "error" ? "failed" : ""}`}>
          {entry.title !== "" && <span class="id">{visible(entry.id)}</span>}
          {said !== "" && (
            <span class="end">
              <Plain text={oneLine(said, 200)} />
            </span>
          )}
        </span>
      </span>
      <span role="cell" class="c-model">
        {typeof run.model === "string" ? <Plain text={run.model.replace(/^claude-/, "").replace(/-\d{8}$/, "")} /> : "–"}
      </span>
      <span role="cell" class="c-steps">
        {run.last_step_index === null ? "–" : run.last_step_index + 1}
      </span>
      <span role="cell" class="c-tokens" title={tokens === undefined ? undefined : `${tokens.input} in, ${tokens.output} out, ${tokens.cacheRead} read from and ${tokens.cacheWrite} written to the cache`}>
        {tokens === undefined ? "–" : amount(tokens.input + tokens.output + tokens.cacheRead + tokens.cacheWrite)}
      </span>
      <span role="cell" class="c-cost">
        {run.cost_usd === null ? "–" : money(run.cost_usd)}
      </span>
      <span role="cell" class="c-duration">
        {took === undefined ? "–" : goesOn ? soFar(took) : duration(took)}
      </span>
      <span role="cell" class="c-age" title={startedAt === undefined ? undefined : new Date(startedAt).toLocaleString()}>
        <Age at={startedAt} />
      </span>
      <span role="cell" class="c-active">
        <Age at={entry.activeAt} />
      </span>
    </div>
  );
}

function Filters({ isSlim }: { readonly isSlim: boolean }): JSX.Element {
  const LABELS: Readonly<Record<Kind, string>> = { all: "All", running: "Running", completed: "Done", failed: "Failed", other: "Other" };
  const STATES: Readonly<Record<Kind, string | undefined>> = { all: undefined, running: "running", completed: "ok", failed: "failed", other: "stopped" };
  return (
    <div class="filters" role="search">
      <label class="search-box">
        <Icon name="search" />
        <span class="sr">Filter runs</span>
        <input
          id="filter"
          type="search"
          placeholder="Filter by text"
          autocomplete="off"
          spellcheck={false}
          value={filterText.value}
          onInput={(event) => (filterText.value = event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" || event.key === "ArrowDown") {
              event.preventDefault();
              event.currentTarget.blur();
              chosen.value = undefined;
              stepList(0);
            }
          }}
        />
        <kbd aria-hidden="true">/</kbd>
      </label>
      <div class="kinds" role="group" aria-label="Filter by status">
        {KINDS.map((kind) => (
          <button key={kind} type="button" aria-pressed={filterKind.value === kind} onClick={() => (filterKind.value = kind)} title={LABELS[kind]}>
            {STATES[kind] !== undefined && <Dot state={STATES[kind]} />}
            <span class={STATES[kind] === undefined ? "" : isSlim ? "sr" : "word"}>{LABELS[kind]}</span>
            <span class="n">{`${counts.value[kind]}${hasOlder.value ? "+" : ""}`}</span>
          </button>
        ))}
      </div>
    </div>
  );
}

function ListStateLine(): JSX.Element | null {
  const state = listState.value;
  if (state.kind === "waiting") {
    const left = Math.max(0, Math.ceil((state.until - now.value) / 1000));
    return (
      <p class="list-state warning" role="status">
        The list is not up to date: {visible(state.why)}. Trying again in {left} s.
      </p>
    );
  }
  if (state.kind === "refused") {
    return (
      <p class="list-state warning" role="status">
        This token may not list runs: {visible(state.message)}
      </p>
    );
  }
  if (state.kind === "loading") return <p class="list-state">Loading runs …</p>;
  return null;
}

function Nothing(): JSX.Element {
  const isFiltered = filterText.value !== "" || filterKind.value !== "all";
  if (isFiltered) {
    return (
      <div class="nothing">
        <p>{hasOlder.value ? "Looking through older runs …" : "No run matches this filter."}</p>
        <button
          type="button"
          onClick={() => {
            filterText.value = "";
            filterKind.value = "all";
          }}
        >
          Show all runs
        </button>
      </div>
    );
  }
  return (
    <div class="nothing">
      <h2>No runs yet</h2>
      <p>Send one in and it shows up here by itself:</p>
      <pre>claude -p 'fix the failing test' --output-format stream-json --verbose |{"\n"}  runcast ingest --run fix-1</pre>
    </div>
  );
}
