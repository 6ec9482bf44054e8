/** One item of a transcript. */

import { Component, createRef } from "preact";
import { useState } from "preact/hooks";
import type { ComponentChildren, JSX } from "preact";

import { now } from "../live/clock.js";
import type { Row, RunModel } from "../live/model.js";
import { exitCode, subject, upshot } from "../model/describe.js";
import type { Item, Picture, ToolItem, ToolOutput } from "../model/item.js";
import { intended, members, pretty, todos } from "../model/read.js";
import { endFrom, oneLine, visible } from "../model/text.js";
import { bytes, duration, soFar } from "../model/time.js";
import { Copy, Dot, Icon, TOOL_WORDS } from "./parts.js";
import { Diff, Output, Plain, Prose } from "./plain.js";

interface Props {
  readonly model: RunModel;
  readonly row: Row;
  readonly rev: number;
  readonly at: number;
  readonly of: number;
  readonly isSelected: boolean;
  readonly isUnfolded: boolean;
  /** When the run began, from which times are counted. */
  readonly since: number | undefined;
}

/** Drawn anew only when its item has changed. */
export class RowView extends Component<Props> {
  readonly #element = createRef<HTMLElement>();

  override shouldComponentUpdate(next: Props): boolean {
    const before = this.props;
    return (
      next.rev !== before.rev ||
      next.row.item !== before.row.item ||
      next.row.depth !== before.row.depth ||
      next.isSelected !== before.isSelected ||
      next.isUnfolded !== before.isUnfolded ||
      next.at !== before.at ||
      next.of !== before.of ||
      next.since !== before.since
    );
  }

  override componentDidMount(): void {
    this.#focus();
  }

  override componentDidUpdate(): void {
    this.#focus();
  }

  #focus(): void {
    const { model, row, isSelected } = this.props;
    if (!isSelected || model.wantsFocus !== row.key) return;
    model.wantsFocus = undefined;
    this.#element.current?.focus({ preventScroll: true });
  }

  override render(): JSX.Element {
    const { model, row, at, of, isSelected, since } = this.props;
    const { item, depth, isTail } = row;
    const classes = ["row", `kind-${item.kind}`, `depth${Math.min(depth, 4)}`];
    if (isSelected) classes.push("selected");
    if (item.replaced) classes.push("replaced");
    if (isTail) classes.push("tail");
    return (
      <article
        ref={this.#element}
        class={classes.join(" ")}
        data-key={row.key}
        aria-posinset={at + 1}
        aria-setsize={of}
        aria-label={isTail ? "what the sub-agent gave back" : name(item)}
        tabIndex={-1}
        onClick={() => {
          if (model.selected.peek() !== row.key) model.selected.value = row.key;
        }}
      >
        <span class="when" title={moment(item)}>
          {stamp(item, since)}
        </span>
        <div class="what">
          {isTail && item.kind === "tool" ? <Body tool={item} rev={item.rev} part="output" /> : <What {...this.props} />}
          {item.replaced && <p class="aside">Replaced by a later message.</p>}
        </div>
      </article>
    );
  }
}

/** When it was, counted from the beginning of the run; where no times are known, which step it was. */
function stamp({ at, index }: Item, since: number | undefined): string {
  if (since === undefined) return index < 0 ? "" : `#${index}`;
  if (at === undefined) return "";
  const seconds = Math.max(0, Math.floor((at - since) / 1000));
  const [minutes, rest] = [Math.floor(seconds / 60), String(seconds % 60).padStart(2, "0")];
  return minutes < 60 ? `${minutes}:${rest}` : `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${rest}`;
}

function moment({ at, index }: Item): string | undefined {
  const parts = [index < 0 ? "" : `step ${index}`, at === undefined ? "" : new Date(at).toLocaleString()];
  return parts.filter((part) => part !== "").join(", ") || undefined;
}

/** What an item is called, for those who hear it. */
export function name(item: Item): string {
  switch (item.kind) {
    case "init":
      return "session";
    case "text":
      return item.isError ? "error" : "assistant";
    case "tool":
      return `${visible(toolName(item))} ${TOOL_WORDS[item.state]}: ${oneLine(subject(item), 120)}`;
    case "note":
      return visible(item.title);
    case "open":
      return "assistant, writing";
    case "gap":
      return "gap";
    default:
      return item.kind;
  }
}

function toolName(tool: ToolItem): string {
  return tool.name === "" ? "unknown call" : tool.name;
}

function What(props: Props): JSX.Element {
  const { model, row, isUnfolded } = props;
  const { item } = row;
  const toggle = (): void => model.toggle(item);
  switch (item.kind) {
    case "init":
      return (
        <Fold isOpen={isUnfolded} onToggle={toggle} label="session" title={<Plain text={oneLine([item.model, item.cwd].filter((part) => part !== "").join(" · "))} />}>
          <Facts facts={item.facts} />
        </Fold>
      );
    case "user":
      return (
        <div class="said user">
          <span class="who">{item.parent === undefined ? "User" : "Prompt"}</span>
          <Prose text={item.text} lines={item.parent === undefined ? 60 : 12} chars={6000} />
          <Copy text={() => item.text} label="Copy this message" />
        </div>
      );
    case "text":
      return (
        <div class={`said ${item.isError ? "error" : ""}`}>
          <Prose text={item.text} />
          <Copy text={() => item.text} label="Copy this message" />
        </div>
      );
    case "open":
      return (
        <div class="said open">
          <Writing text={item.text} />
          <span class="caret" aria-hidden="true" />
          <Copy text={() => item.text} label="Copy what is written so far" />
        </div>
      );
    case "thinking":
      return (
        <Fold isOpen={isUnfolded} onToggle={toggle} label="thinking" title={<Plain text={oneLine(item.text, 240)} />}>
          <div class="said">
            <Prose text={item.text} />
            <Copy text={() => item.text} label="Copy the thinking" />
          </div>
        </Fold>
      );
    case "image":
      return <Pictures pictures={[item.picture]} />;
    case "tool":
      return <Tool {...props} tool={item} onToggle={toggle} />;
    case "note":
      if (item.detail === undefined || item.detail === "") {
        return (
          <p class={`note ${item.tone}`}>
            <span class="label">
              <Plain text={item.title} />
            </span>{" "}
            <Plain text={item.text} />
          </p>
        );
      }
      return (
        <Fold isOpen={isUnfolded} onToggle={toggle} label={item.title} tone={item.tone} title={<Plain text={oneLine(item.text === "" ? item.detail : item.text)} />}>
          <Output text={item.detail} />
        </Fold>
      );
    case "report":
      return (
        <section class="report">
          <header>
            <span class="label">report</span> <strong>{visible(item.title)}</strong>
            <Copy text={() => item.text} label="Copy the report" />
          </header>
          <Prose text={item.text} />
        </section>
      );
    case "result":
      return (
        <section class={`result ${item.ok ? "ok" : "failed"}`}>
          <header>
            <Dot state={item.ok ? "ok" : "failed"} />
            <strong>{item.ok ? "Turn done" : "Turn failed"}</strong>
            {item.facts.map(([title, value]) => (
              <span key={title} class="fact">
                {title} <b>{visible(value)}</b>
              </span>
            ))}
          </header>
          {item.text.trim() !== "" && (
            <div class="said">
              <Prose text={item.text} />
              <Copy text={() => item.text} label="Copy the result" />
            </div>
          )}
        </section>
      );
    case "gap":
      return (
        <div class="gap" role="note">
          <strong>Gap</strong> <Plain text={item.text} />
        </div>
      );
  }
}

/** So much of a text is drawn anew with each piece that is written. */
const WRITING_CHARS = 20_000;

/** Text that is being written: its end, and all of it when that is asked for. */
function Writing({ text }: { readonly text: string }): JSX.Element {
  const [isWhole, setWhole] = useState(false);
  const from = isWhole ? 0 : endFrom(text, WRITING_CHARS);
  return (
    <>
      {from > 0 && (
        <button type="button" class="more earlier" onClick={() => setWhole(true)}>
          Show from the start: {bytes(from)} before this
        </button>
      )}
      <Prose text={from === 0 ? text : text.slice(from)} lines={Infinity} chars={Infinity} />
    </>
  );
}

function Fold(props: {
  readonly isOpen: boolean;
  readonly onToggle: () => void;
  readonly label: string;
  readonly title: ComponentChildren;
  readonly tone?: string;
  readonly children: ComponentChildren;
}): JSX.Element {
  const { isOpen, onToggle, label, title, tone = "quiet", children } = props;
  return (
    <div class={`fold ${tone}`}>
      <button type="button" class="fold-head" aria-expanded={isOpen} onClick={onToggle}>
        <Icon name="chevron" />
        <span class="label">
          <Plain text={label} />
        </span>
        {!isOpen && <span class="glance">{title}</span>}
      </button>
      {isOpen && <div class="fold-body">{children}</div>}
    </div>
  );
}

function Facts({ facts }: { readonly facts: readonly (readonly [string, string])[] }): JSX.Element {
  return (
    <dl class="facts">
      {facts.map(([title, value]) => (
        <div key={title}>
          <dt>{title}</dt>
          <dd>
            <Plain text={value.length > 2000 ? `${value.slice(0, 2000)}…` : value} />
          </dd>
        </div>
      ))}
    </dl>
  );
}

function Pictures({ pictures }: { readonly pictures: readonly Picture[] }): JSX.Element {
  return (
    <div class="pictures">
      {pictures.map((picture, at) => (
        <img key={at} src={`data:${picture.mediaType};base64,${picture.base64}`} alt="a picture of the run" loading="lazy" decoding="async" />
      ))}
    </div>
  );
}

/** A component is drawn anew when its properties differ: an item that changes goes with what tells its states apart. */
interface Changing {
  readonly tool: ToolItem;
  readonly rev: number;
}

function Tool({ tool, isUnfolded, onToggle }: Props & { readonly tool: ToolItem; readonly onToggle: () => void }): JSX.Element {
  const said = upshot(tool);
  const code = tool.state === "failed" ? exitCode(tool) : undefined;
  const isAgent = tool.children.length > 0;
  const about = isAgent && tool.state === "running" ? (tool.activity ?? lastActivity(tool)) : said;
  return (
    <div class={`tool ${tool.state} ${isUnfolded ? "unfolded" : ""}`}>
      <button type="button" class="tool-head" aria-expanded={isUnfolded} onClick={onToggle}>
        <Dot state={tool.state} />
        <span class="sr">{TOOL_WORDS[tool.state]}</span>
        <span class="tool-name">
          <Plain text={oneLine(toolName(tool), 60)} />
        </span>
        <span class="subject">
          <Plain text={oneLine(subject(tool), 400)} />
        </span>
        <span class="upshot">
          {isAgent && <span class="count">{tool.calls === 1 ? "1 call" : `${tool.calls} calls`}</span>}
          {code !== undefined && <span class="count">exit {code}</span>}
          {tool.output?.notes.map((note) => (
            <span key={note} class="count">
              {visible(note)}
            </span>
          ))}
          {about !== "" && (
            <span class="about">
              <Plain text={oneLine(about, 160)} />
            </span>
          )}
        </span>
        <span class="took">
          <Took tool={tool} rev={tool.rev} />
        </span>
      </button>
      {isUnfolded && <Body tool={tool} rev={tool.rev} part={isAgent ? "input" : "both"} />}
    </div>
  );
}

function lastActivity(tool: ToolItem): string {
  const last = tool.children.findLast((child) => child.kind === "tool");
  return last?.kind === "tool" ? `${last.name} ${subject(last)}` : "";
}

function Took({ tool }: Changing): JSX.Element {
  const { startedAt, endedAt, output } = tool;
  if (tool.state === "running") return <>{startedAt === undefined ? "" : soFar(now.value - startedAt)}</>;
  if (output?.durationMs !== undefined) return <>{duration(output.durationMs)}</>;
  // A run that was recorded at once has no times of its own.
  return <>{startedAt === undefined || endedAt === undefined || endedAt === startedAt ? "" : duration(endedAt - startedAt)}</>;
}

/** What a call was given, and what it gave. */
function Body({ tool, part }: Changing & { readonly part: "both" | "input" | "output" }): JSX.Element {
  const { output } = tool;
  return (
    <div class="tool-body">
      {part !== "output" && <Input tool={tool} rev={tool.rev} />}
      {part !== "input" && output !== undefined && <Given tool={tool} output={output} />}
      {part !== "input" && output === undefined && tool.state === "running" && <p class="aside">Still running: no output yet.</p>}
      {part !== "input" && output === undefined && tool.state === "unknown" && <p class="aside">The run ended before this call was answered.</p>}
    </div>
  );
}

/** The input, except for what its result says better. */
function Input({ tool }: Changing): JSX.Element | null {
  const input = members(tool.input);
  const hunks = tool.output?.hunks ?? intended(tool.name, tool.input);
  if (hunks !== undefined && tool.state !== "failed") return <Diff hunks={hunks} />;
  if (tool.name === "TodoWrite") return <TodoList list={todos(members(tool.input).todos)} />;
  if (tool.name === "Bash" && typeof input.command === "string") {
    const command = input.command;
    return (
      <div class="copyable">
        {typeof input.description === "string" && (
          <p class="aside">
            <Plain text={input.description} />
          </p>
        )}
        <Output text={`$ ${command}`} tone="command" />
        <Copy text={() => command} label="Copy the command" />
      </div>
    );
  }
  if (tool.children.length > 0 && typeof input.prompt === "string") return null;
  if (tool.input === undefined || tool.input === null || Object.keys(input).length === 0) return null;
  const json = pretty(tool.input);
  return (
    <div class="copyable">
      <Inputs input={input} />
      <Copy text={() => json} label="Copy the input" />
    </div>
  );
}

function Inputs({ input }: { readonly input: Readonly<Record<string, unknown>> }): JSX.Element {
  return (
    <dl class="facts">
      {Object.entries(input).map(([title, value]) => (
        <div key={title}>
          <dt>
            <Plain text={oneLine(title, 60)} />
          </dt>
          <dd>
            <Output text={typeof value === "string" ? value : pretty(value)} lines={12} />
          </dd>
        </div>
      ))}
    </dl>
  );
}

export function TodoList({ list }: { readonly list: readonly { readonly text: string; readonly status: string }[] }): JSX.Element {
  const STATES: Readonly<Record<string, string>> = { completed: "ok", in_progress: "running" };
  return (
    <ul class="todos">
      {list.map((todo, at) => (
        <li key={at} class={todo.status === "completed" ? "done" : todo.status === "in_progress" ? "now" : ""}>
          <Dot state={STATES[todo.status] ?? "queued"} />
          <span class="sr">{todo.status.replaceAll("_", " ")}: </span>
          <span>
            <Plain text={todo.text} />
          </span>
        </li>
      ))}
    </ul>
  );
}

function Given({ tool, output }: { readonly tool: ToolItem; readonly output: ToolOutput }): JSX.Element | null {
  if (tool.name === "TodoWrite" && tool.state === "ok") return null;
  if (output.hunks !== undefined && tool.state === "ok") return null;
  const all = output.text;
  const parts: JSX.Element[] = [];
  const [stdout, stderr] = [output.stdout ?? "", output.stderr ?? ""];
  if (tool.state === "ok" && (stdout.trim() !== "" || stderr.trim() !== "")) {
    const both = stderr.trim() !== "";
    if (stdout.trim() !== "") parts.push(both ? <Output key="out" text={stdout} label="stdout" /> : <Output key="out" text={stdout} />);
    if (both) parts.push(<Output key="err" text={stderr} label="stderr" tone="stderr" />);
  } else if (all.trim() !== "") parts.push(<Output key="all" text={all} {...(tool.state === "failed" ? { tone: "error" } : {})} />);
  else if (output.pictures.length === 0) parts.push(<p key="none" class="aside">No output.</p>);
  return (
    <div class="copyable">
      {parts}
      {output.pictures.length > 0 && <Pictures pictures={output.pictures} />}
      {all !== "" && <Copy text={() => (stdout !== "" || stderr !== "" ? [stdout, stderr].filter((part) => part !== "").join("\n") : all)} label="Copy the output" />}
    </div>
  );
}

/** How high a row may be, before it is measured. */
export function guess(row: Row, model: RunModel, width: number): number {
  const { item, isTail } = row;
  const perLine = Math.max(30, Math.min(100, width / 8));
  const lines = (said: string): number => Math.min(1000, said.length / perLine + 1);
  if (isTail) return 80;
  switch (item.kind) {
    case "text":
    case "open":
    case "report":
      return 20 + lines(item.text) * 22;
    case "user":
      return 40 + Math.min(60, lines(item.text)) * 22;
    case "result":
      return 60 + lines(item.text) * 22;
    case "tool":
      return model.isUnfolded(item) && item.children.length === 0 ? 240 : 32;
    case "image":
      return 240;
    default:
      return model.isUnfolded(item) ? 160 : 30;
  }
}

