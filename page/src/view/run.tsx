/** One run, live. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ComponentChildren, JSX } from "preact";
import { type ReadonlySignal, signal } from "@preact/signals";

import { announce } from "../live/announce.js";
import { now } from "../live/clock.js";
import { download, save } from "../live/download.js";
import { type Connection, isOver } from "../live/feed.js";
import { type Row, RunModel } from "../live/model.js";
import { asked } from "../live/session.js";
import type { Item, ToolItem } from "../model/item.js";
import { members, todos } from "../model/read.js";
import { oneLine, visible } from "../model/text.js";
import { amount, duration, instant, money, soFar } from "../model/time.js";
import { type Tokens, tokensOf } from "../model/usage.js";
import { Copy, Dot, Icon, IconButton, Status } from "./parts.js";
import { Plain, Prose } from "./plain.js";
import { go } from "./route.js";
import { guess, RowView, TodoList } from "./row.js";
import { Timeline } from "./timeline.js";
import { Virtual } from "./virtual.js";

/** Has the component drawn anew with each value of a signal. */
function useSignalValue(signal: ReadonlySignal<unknown>): unknown {
  return signal.value;
}

/** The run that is open, for the keyboard. */
export const current = signal<RunModel | undefined>(undefined);
export const searchOpen = signal(false);
/** Beside the transcript where there is room, and over it when asked for where there is none. */
const factsOpen = signal(matchMedia("(min-width: 1021px)").matches);

export function RunView({ id, isWide }: { readonly id: string; readonly isWide: boolean }): JSX.Element {
  const model = useMemo(() => new RunModel(id), [id]);
  useEffect(() => {
    model.start();
    current.value = model;
    searchOpen.value = false;
    return () => {
      model.stop();
      if (current.peek() === model) current.value = undefined;
    };
  }, [model]);
  const run = model.run.value;
  useSignalValue(model.version);
  const title = runTitle(model);
  useEffect(() => {
    const sign = run === undefined ? "" : run.status === "completed" ? "✓ " : run.status === "error" ? "✕ " : isOver(run.status) ? "■ " : "● ";
    document.title = `${sign}${oneLine(title, 80)} · runcast`;
  }, [title, run?.status]);
  const connection = model.feed.connection.value;
  if (connection.kind === "refused" && !model.hasBegun.value) return <Refused id={id} connection={connection} />;
  return (
    <main class={`run ${factsOpen.value ? "" : "no-facts"}`} aria-label="Run">
      <header class="run-head">
        <div class="run-title">
          {!isWide && (
            <a class="back" href="#/" aria-label="All runs">
              <Icon name="back" />
            </a>
          )}
          {run !== undefined && <Status status={run.status} />}
          <h1>
            <Plain text={oneLine(title, 300)} />
          </h1>
          <ConnectionChip model={model} />
        </div>
        <div class="run-bar">
          <span class="run-id">
            <code>{visible(id)}</code>
            <Copy text={() => id} label="Copy the run's id" />
          </span>
          <Glance model={model} />
          <span class="grow" />
          <Tools model={model} />
        </div>
      </header>
      <Notice model={model} />
      <Outcome model={model} />
      <TranscriptView model={model} rows={model.rows()} since={beginning(model)} />
      {factsOpen.value && <FactsPanel model={model} />}
    </main>
  );
}

/** When the run began, for times to be counted from; `undefined` when it was recorded at once, so that they say nothing. */
function beginning({ run, transcript }: RunModel): number | undefined {
  const since = instant(run.value?.started_at) ?? transcript.items[0]?.at;
  const hasTimes = !isOver(run.value?.status) || since === undefined || (transcript.lastAt ?? since) - since > AT_ONCE_MS;
  return hasTimes ? since : undefined;
}

/** What took less was not done then, but written down. */
const AT_ONCE_MS = 2000;

function runTitle(model: RunModel): string {
  const run = model.run.value;
  const named = [run?.title, run?.name].find((name) => typeof name === "string" && name.trim() !== "") as string | undefined;
  return named ?? (model.transcript.title === "" ? model.id : model.transcript.title);
}

function Refused({ id, connection }: { readonly id: string; readonly connection: { readonly code: string; readonly message: string } }): JSX.Element {
  const WORDS: Readonly<Record<string, string>> = { unknown_run: "There is no such run.", forbidden: "This token is not good for this run." };
  return (
    <main class="run refused">
      <div class="nothing">
        <h1>{WORDS[connection.code] ?? "This run cannot be shown."}</h1>
        <p>
          <code>{visible(id)}</code>
        </p>
        <p class="dim">{visible(connection.message)}</p>
        <a href="#/">All runs</a>
      </div>
    </main>
  );
}

/** The state of the connection, in a few words that are true. */
function ConnectionChip({ model }: { readonly model: RunModel }): JSX.Element {
  const connection = model.feed.connection.value;
  const [tone, words] = says(connection);
  return (
    <span class={`connection ${tone}`} data-state={connection.kind}>
      <span class="lamp" aria-hidden="true" />
      <span>{words}</span>
    </span>
  );
}

function says(connection: Connection): readonly [tone: string, words: string] {
  switch (connection.kind) {
    case "connecting":
      return ["busy", connection.again ? "reconnecting" : "connecting"];
    case "catching-up":
      return ["busy", `catching up: ${connection.have} of ${connection.of}`];
    case "live":
      return ["live", "live"];
    case "waiting": {
      const left = Math.max(1, Math.ceil((connection.until - now.value) / 1000));
      return ["lost", `reconnecting in ${left} s`];
    }
    case "polling":
      return ["busy", "asking every 2 s"];
    case "ended":
      return ["ended", "ended"];
    case "logged-out":
      return ["lost", "login expired"];
    case "refused":
      return ["lost", "cut off"];
  }
}

/** Why there is no connection, where that says more than that there is none. */
function reason(why: string): string {
  const said = why.replace(/^no connection to the server: /, "");
  return said === "the socket was closed with 1006" ? "" : said;
}

/** What a reader must know of the connection, at more length. */
function Notice({ model }: { readonly model: RunModel }): JSX.Element | null {
  useSignalValue(model.version);
  const connection = model.feed.connection.value;
  const gaps = model.transcript.items.filter((item) => item.kind === "gap").length;
  const parts: JSX.Element[] = [];
  if (connection.kind === "waiting") {
    const { cursor } = connection;
    const why = reason(connection.why);
    parts.push(
      <div key="waiting" class="notice lost" role="status">
        <span>
          {navigator.onLine ? "No connection" : "This computer is offline"}
          {why === "" ? "" : `: ${oneLine(why, 160)}`}. What is shown ends with step {model.transcript.lastIndex};{" "}
          {cursor === undefined ? "the rest is fetched" : <span title={`cursor ${cursor}`}>it goes on from exactly there</span>}.
        </span>
        <button type="button" onClick={() => model.feed.retry()}>
          Try now
        </button>
      </div>,
    );
  }
  if (connection.kind === "logged-out") {
    parts.push(
      <div key="login" class="notice lost" role="status">
        <span>The login has expired. What is shown stays; log in and it goes on from exactly here.</span>
        <button type="button" onClick={() => (asked.value = "expired")}>
          Log in
        </button>
      </div>,
    );
  }
  if (connection.kind === "polling") {
    parts.push(
      <div key="polling" class="notice">
        No live stream can be had (a proxy may refuse WebSocket), so new steps are asked for every 2 s. Text appears message by message.
      </div>,
    );
  }
  if (connection.kind === "refused") {
    parts.push(
      <div key="refused" class="notice lost" role="status">
        The server does not go on: {visible(connection.message)}
      </div>,
    );
  }
  if (gaps > 0) {
    const first = model.transcript.items.find((item) => item.kind === "gap");
    parts.push(
      <div key="gap" class="notice lost">
        <span>{gaps === 1 ? "There is a gap" : `There are ${gaps} gaps`} in what is shown: steps that the server does not have.</span>
        <button type="button" onClick={() => first !== undefined && model.show(first, false)}>
          Show where
        </button>
      </div>,
    );
  }
  return parts.length === 0 ? null : <div class="notices">{parts}</div>;
}

function Glance({ model }: { readonly model: RunModel }): JSX.Element {
  useSignalValue(model.version);
  const { transcript } = model;
  const run = model.run.value;
  const failed = transcript.calls.filter((call) => call.state === "failed").length;
  const cost = run?.cost_usd ?? transcript.usage.cost;
  const parts: [string, string | number][] = [
    [transcript.steps === 1 ? "step" : "steps", transcript.steps],
    [`${transcript.calls.length === 1 ? "call" : "calls"}${failed > 0 ? `, ${failed} failed` : ""}`, transcript.calls.length],
  ];
  const took = elapsed(model);
  if (took !== undefined) parts.unshift(["", isOver(run?.status) ? duration(took) : soFar(took)]);
  if (cost !== undefined) parts.push(["", money(cost)]);
  return (
    <span class="glance-facts">
      {parts.map(([label, value]) => (
        <span key={label === "" ? String(value) : label}>
          {value} {label}
        </span>
      ))}
    </span>
  );
}

function elapsed(model: RunModel): number | undefined {
  const run = model.run.value;
  if (run === undefined) return undefined;
  if (run.duration_ms !== null) return run.duration_ms;
  const start = instant(run.started_at) ?? instant(run.created_at);
  if (start === undefined) return undefined;
  const end = instant(run.ended_at);
  return end !== undefined ? end - start : isOver(run.status) ? undefined : now.value - start;
}

function Tools({ model }: { readonly model: RunModel }): JSX.Element {
  useSignalValue(model.version);
  const [progress, setProgress] = useState<string | undefined>(undefined);
  const fetchAll = async (): Promise<void> => {
    setProgress("…");
    try {
      const blob = await download(model.id, (steps) => setProgress(String(steps)), new AbortController().signal);
      save(blob, `${model.id}.ndjson`);
      announce("downloaded");
      setProgress(undefined);
    } catch (error) {
      setProgress(undefined);
      announce(`the download failed: ${error instanceof Error ? error.message : String(error)}`);
    }
  };
  const anyOpen = model.transcript.items.some((item) => model.isUnfolded(item));
  return (
    <span class="tools" role="toolbar" aria-label="Run">
      <IconButton icon="end" label="Follow" keys="f" pressed={model.follows.value} onClick={() => (model.follows.peek() ? (model.follows.value = false) : model.toEnd())}>
        Follow
      </IconButton>
      <IconButton icon="search" label="Search in this run" keys="/" pressed={searchOpen.value} onClick={() => (searchOpen.value = !searchOpen.peek())} />
      <IconButton icon="unfold" label={anyOpen ? "Fold everything" : "Unfold everything"} keys="e" pressed={anyOpen} onClick={() => model.unfoldAll(!anyOpen)} />
      <IconButton icon="info" label="Usage and facts" keys="i" pressed={factsOpen.value} onClick={toggleFacts} />
      <IconButton icon="down" label="Download as NDJSON" disabled={progress !== undefined} onClick={() => void fetchAll()}>
        {progress ?? "NDJSON"}
      </IconButton>
    </span>
  );
}

export function toggleFacts(): void {
  factsOpen.value = !factsOpen.peek();
}

/** How the run ended. */
function Outcome({ model }: { readonly model: RunModel }): JSX.Element | null {
  useSignalValue(model.version);
  const run = model.run.value;
  const [isOpen, setOpen] = useState(false);
  if (run === undefined || !isOver(run.status)) return null;
  const tone = run.status === "completed" ? "ok" : run.status === "error" ? "failed" : "stopped";
  const said = typeof run.error === "string" && run.error !== "" ? run.error : (run.summary ?? model.transcript.result?.text ?? "");
  return (
    <section class={`outcome ${tone}`} aria-label="Outcome" data-status={run.status}>
      <Dot state={tone} />
      <strong>{run.status === "completed" ? "Completed" : run.status === "error" ? "Failed" : visible(run.status)}</strong>
      {said !== "" && !isOpen && (
        <button type="button" class="outcome-said" aria-expanded={false} onClick={() => setOpen(true)} title="Show all of it">
          <Plain text={oneLine(said, 400)} />
        </button>
      )}
      {isOpen && (
        <div class="outcome-all">
          <Prose text={said} />
          <button type="button" class="more" aria-expanded={true} onClick={() => setOpen(false)}>
            Show less
          </button>
        </div>
      )}
    </section>
  );
}

function TranscriptView({ model, rows, since }: { readonly model: RunModel; readonly rows: readonly Row[]; readonly since: number | undefined }): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  const [shown, setShown] = useState<readonly [number, number] | undefined>(undefined);
  const version = model.version.value;
  const follows = model.follows.value;
  const selected = model.selected.value;
  useHighlights(frame.current, model.search.value.query);
  const unread = model.unread.value;
  const width = frame.current?.clientWidth ?? 800;
  const connection = model.feed.connection.value;
  return (
    <section class="reading" ref={frame} aria-label="Transcript">
      <Timeline model={model} shown={shown} />
      {searchOpen.value && <SearchBar model={model} />}
      {rows.length === 0 && <p class="waiting-first">{connection.kind === "live" || connection.kind === "ended" ? "Nothing has been said in this run yet." : "Loading …"}</p>}
      <Virtual<Row>
        rows={rows}
        keyOf={(row) => row.key}
        guess={(row) => guess(row, model, width)}
        version={version}
        follows={follows}
        onFollow={(isAtEnd) => {
          model.follows.value = isAtEnd;
          if (isAtEnd) model.unread.value = 0;
        }}
        target={model.target.value}
        onShown={(first, last) => {
          const [from, to] = [rows[first]?.item.at, rows[last]?.item.at];
          if (from !== undefined && to !== undefined) setShown([from, to]);
        }}
        scroller={{ class: "transcript", tabIndex: 0, role: "region", "aria-label": "Messages" }}
        body={{ class: "transcript-body", role: "feed", "aria-busy": connection.kind === "catching-up" }}
        render={(row, at) => (
          <RowView
            key={row.key}
            model={model}
            row={row}
            rev={row.item.rev}
            at={at}
            of={rows.length}
            isSelected={selected === row.key}
            isUnfolded={model.isUnfolded(row.item)}
            since={since}
          />
        )}
      />
      {!follows && rows.length > 0 && (
        <button type="button" class="to-end" onClick={() => model.toEnd()}>
          <Icon name="end" /> {unread > 0 ? `${unread} new ${unread === 1 ? "step" : "steps"}` : "To the end"}
        </button>
      )}
    </section>
  );
}

function SearchBar({ model }: { readonly model: RunModel }): JSX.Element {
  const { query, found, at } = model.search.value;
  const input = useRef<HTMLInputElement>(null);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => {
    input.current?.focus();
    input.current?.select();
    return () => {
      clearTimeout(timer.current);
      model.look("");
    };
  }, [model]);
  return (
    <div class="search-bar" role="search">
      <label class="search-box">
        <Icon name="search" />
        <span class="sr">Search in this run</span>
        <input
          ref={input}
          id="search"
          type="search"
          placeholder="Search text, commands, output"
          autocomplete="off"
          spellcheck={false}
          onInput={(event) => {
            const { value } = event.currentTarget;
            clearTimeout(timer.current);
            timer.current = setTimeout(() => model.look(value), 120);
          }}
          onKeyDown={(event) => {
            if (event.key === "Enter") {
              event.preventDefault();
              model.next(event.shiftKey ? -1 : 1);
            }
          }}
        />
      </label>
      <span class="found" role="status">
        {query === "" ? "" : found.length === 0 ? "nothing found" : `${at + 1} of ${found.length}`}
      </span>
      <IconButton icon="up" label="The one before" keys="N" disabled={found.length === 0} onClick={() => model.next(-1)} />
      <IconButton icon="down1" label="The next one" keys="n" disabled={found.length === 0} onClick={() => model.next(1)} />
      <IconButton icon="close" label="Close the search" keys="Esc" onClick={() => (searchOpen.value = false)} />
    </div>
  );
}

const HIGHLIGHTS_MAX = 500;

/** Marks what is looked for where it can be seen, without touching the document. */
function useHighlights(frame: HTMLElement | null, query: string): void {
  useEffect(() => {
    if (!("highlights" in CSS) || frame === null || query === "") return;
    const needle = query.toLowerCase();
    const mark = (): void => {
      const found = new Highlight();
      const walker = document.createTreeWalker(frame.querySelector(".transcript-body") ?? frame, NodeFilter.SHOW_TEXT);
      for (let node = walker.nextNode(); node !== null && found.size < HIGHLIGHTS_MAX; node = walker.nextNode()) {
        const text = (node.textContent ?? "").toLowerCase();
        for (let at = text.indexOf(needle); at >= 0 && found.size < HIGHLIGHTS_MAX; at = text.indexOf(needle, at + needle.length)) {
          if (at + needle.length > (node.textContent ?? "").length) break;
          const range = new Range();
          range.setStart(node, at);
          range.setEnd(node, at + needle.length);
          found.add(range);
        }
      }
      CSS.highlights.set("found", found);
    };
    mark();
    let isDue = false;
    const observer = new MutationObserver(() => {
      if (isDue) return;
      isDue = true;
      requestAnimationFrame(() => {
        isDue = false;
        mark();
      });
    });
    observer.observe(frame, { subtree: true, childList: true, characterData: true });
    return () => {
      observer.disconnect();
      CSS.highlights.delete("found");
    };
  }, [frame, query]);
}

function FactsPanel({ model }: { readonly model: RunModel }): JSX.Element {
  useSignalValue(model.version);
  const { transcript } = model;
  const run = model.run.value;
  const { calls, usage } = transcript;
  const total = usage.total();
  const reported = tokensOf(run?.usage);
  const models = usage.models();
  const cost = run?.cost_usd ?? usage.cost;
  const failed = calls.filter((call) => call.state === "failed");
  const running = calls.filter((call) => call.state === "running");
  const agents = calls.filter((call) => call.children.length > 0);
  const reports = transcript.items.filter((item) => item.kind === "report");
  const tokens = models.length > 0 ? total : reported;
  const tokenCount = (count: (of: Tokens) => number): string => (tokens === undefined ? "–" : amount(count(tokens)));
  return (
    <aside class="facts-panel" aria-label="Usage and facts">
      <section>
        <h2>Usage</h2>
        <dl class="numbers">
          <Number label="Cost" value={cost === undefined ? (isOver(run?.status) ? "–" : "at the end") : money(cost)} />
          <Number label="Turns" value={usage.turns ?? "–"} />
          <Number label="Input" value={tokenCount((of) => of.input)} />
          <Number label="Output" value={tokenCount((of) => of.output)} />
          <Number label="Cache read" value={tokenCount((of) => of.cacheRead)} />
          <Number label="Cache write" value={tokenCount((of) => of.cacheWrite)} />
        </dl>
        {models.length > 0 && (
          <table class="models">
            <thead>
              <tr>
                <th scope="col">Model</th>
                <th scope="col">Tokens</th>
                <th scope="col">Cost</th>
              </tr>
            </thead>
            <tbody>
              {models.map((use) => (
                <tr key={use.model}>
                  <td>
                    <Plain text={oneLine(use.model === "" ? "unknown" : use.model, 60)} />
                  </td>
                  <td>{amount(use.input + use.output + use.cacheRead + use.cacheWrite)}</td>
                  <td>{use.cost === undefined ? "–" : money(use.cost)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
      </section>
      <section>
        <h2>Calls</h2>
        <p class="dim">
          {calls.length} in all, {failed.length} failed{running.length > 0 ? `, ${running.length} running` : ""}
        </p>
        <Jumps model={model} items={failed.slice(-5)} />
        {failed.length > 5 && <p class="dim">and {failed.length - 5} earlier failures</p>}
      </section>
      {agents.length > 0 && (
        <section>
          <h2>Sub-agents</h2>
          <Jumps model={model} items={agents} />
        </section>
      )}
      {reports.length > 0 && (
        <section>
          <h2>Reports</h2>
          <Jumps model={model} items={reports} />
        </section>
      )}
      <section>
        <h2>Times</h2>
        <dl class="numbers">
          <Number label="Began" value={clock(run?.started_at ?? run?.created_at)} />
          <Number label="Ended" value={clock(run?.ended_at)} />
        </dl>
      </section>
      {transcript.todos !== undefined && (
        <section>
          <h2>Plan</h2>
          <TodoList list={todos(members(transcript.todos.input).todos)} />
        </section>
      )}
    </aside>
  );
}

function Jumps({ model, items }: { readonly model: RunModel; readonly items: readonly Item[] }): JSX.Element | null {
  if (items.length === 0) return null;
  const label = (item: Item): string => (item.kind === "report" ? item.title || item.text : item.kind === "tool" ? describe(item) : "");
  return (
    <ul class="jumps">
      {items.map((item) => (
        <li key={item.key}>
          <button type="button" onClick={() => model.show(item, true)}>
            <Dot state={item.kind === "tool" ? item.state : "ok"} />
            <span>
              <Plain text={oneLine(label(item), 70)} />
            </span>
          </button>
        </li>
      ))}
    </ul>
  );
}

function describe(tool: ToolItem): string {
  const input = members(tool.input);
  const about = [input.description, input.command, input.file_path, input.pattern].find((value) => typeof value === "string");
  return `${tool.name}${typeof about === "string" ? ` ${about}` : ""}`;
}

function Number({ label, value }: { readonly label: string; readonly value: ComponentChildren }): JSX.Element {
  return (
    <div>
      <dt>{label}</dt>
      <dd>{value}</dd>
    </div>
  );
}

function clock(value: unknown): string {
  const at = instant(value);
  if (at === undefined) return "–";
  const date = new Date(at);
  const time = date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const isToday = date.toDateString() === new Date(now.value).toDateString();
  return isToday ? time : `${date.toLocaleDateString(undefined, { month: "short", day: "numeric" })}, ${time}`;
}

export function closeRun(): void {
  go(undefined);
}
