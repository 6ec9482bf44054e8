/** The page: its frame, its keys, and what stands in it. */

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { JSX } from "preact";

import { announced } from "../live/announce.js";
import { isListShown, listState } from "../live/runs.js";
import { hasToken, logOut } from "../live/session.js";
import { filterText, List, openChosen, stepList, stepOpen } from "./list.js";
import { Login } from "./login.js";
import { IconButton } from "./parts.js";
import { go, openRun } from "./route.js";
import { current, RunView, searchOpen, toggleFacts } from "./run.js";

type Theme = "auto" | "light" | "dark";
const THEMES: readonly Theme[] = ["auto", "light", "dark"];
const STORED = "runcast.theme";

const theme = signal<Theme>(storedTheme());
const helpOpen = signal(false);
const listOpen = signal(true);
const WIDE = matchMedia("(min-width: 1180px)");
const isWide = signal(WIDE.matches);

function storedTheme(): Theme {
  try {
    const stored = localStorage.getItem(STORED);
    return THEMES.find((known) => known === stored) ?? "auto";
  } catch {
    return "auto";
  }
}

function nextTheme(): void {
  theme.value = THEMES[(THEMES.indexOf(theme.peek()) + 1) % THEMES.length] ?? "auto";
  try {
    localStorage.setItem(STORED, theme.peek());
  } catch {
    // It lasts as long as the page.
  }
}

export function startApp(): void {
  WIDE.addEventListener("change", () => (isWide.value = WIDE.matches));
  theme.subscribe((name) => {
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
  });
  document.addEventListener("keydown", onKey);
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement;
}

function onKey(event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (document.querySelector("dialog[open]") !== null) return;
  const run = current.peek();
  if (event.key === "Escape") {
    if (run !== undefined && searchOpen.peek()) searchOpen.value = false;
    else if (isTyping(event.target)) {
      if (filterText.peek() !== "") filterText.value = "";
      else (event.target as HTMLElement).blur();
    } else if (run !== undefined) go(undefined);
    else filterText.value = "";
    return;
  }
  if (isTyping(event.target)) return;
  const act = (run === undefined ? LIST_KEYS : RUN_KEYS)[event.key] ?? KEYS[event.key];
  if (act === undefined) return;
  // Enter is for the button or link that has the focus.
  if (event.key === "Enter" && event.target instanceof Element && event.target.closest("button, a") !== null) return;
  event.preventDefault();
  act();
}

const KEYS: Readonly<Record<string, () => void>> = {
  "?": () => (helpOpen.value = true),
  t: nextTheme,
};

const LIST_KEYS: Readonly<Record<string, () => void>> = {
  j: () => stepList(1),
  k: () => stepList(-1),
  ArrowDown: () => stepList(1),
  ArrowUp: () => stepList(-1),
  Enter: openChosen,
  o: openChosen,
  "/": () => document.getElementById("filter")?.focus(),
};

const RUN_KEYS: Readonly<Record<string, () => void>> = {
  j: () => current.peek()?.step(1),
  k: () => current.peek()?.step(-1),
  Enter: toggleSelected,
  o: toggleSelected,
  e: () => {
    const run = current.peek();
    run?.unfoldAll(!run.transcript.items.some((item) => run.isUnfolded(item)));
  },
  f: () => {
    const run = current.peek();
    if (run === undefined) return;
    if (run.follows.peek()) run.follows.value = false;
    else run.toEnd();
  },
  g: () => current.peek()?.toStart(),
  G: () => current.peek()?.toEnd(),
  n: () => current.peek()?.next(1),
  N: () => current.peek()?.next(-1),
  i: toggleFacts,
  "/": () => {
    searchOpen.value = true;
    document.getElementById("search")?.focus();
  },
  "[": () => stepOpen(-1),
  "]": () => stepOpen(1),
};

function toggleSelected(): void {
  const run = current.peek();
  const row = run?.rows().find(({ key }) => key === run.selected.peek());
  if (row !== undefined) run?.toggle(row.item);
}

export function App(): JSX.Element {
  const id = openRun.value;
  const wide = isWide.value;
  useEffect(() => {
    if (id === undefined) document.title = "Runs · runcast";
  }, [id]);
  const beside = wide && listOpen.value;
  useEffect(() => {
    isListShown.value = id === undefined || beside;
  }, [id, beside]);
  return (
    <div class={`page ${id === undefined ? "at-list" : "at-run"} ${beside ? "beside" : ""}`}>
      <header class="top">
        <a class="brand" href="#/">
          <svg viewBox="0 0 32 32" aria-hidden="true">
            <rect width="32" height="32" rx="8" />
            <path d="M8 11h9M8 16h16M8 21h12" />
            <circle cx="23" cy="11" r="2.6" />
          </svg>
          runcast
        </a>
        {(id === undefined || beside) && <ListLamp />}
        <span class="grow" />
        {id !== undefined && wide && (
          <IconButton icon="back" label={listOpen.value ? "Hide the list" : "Show the list"} pressed={listOpen.value} onClick={() => (listOpen.value = !listOpen.peek())} />
        )}
        <IconButton icon={theme.value === "dark" ? "moon" : theme.value === "light" ? "sun" : "auto"} label={`Colours: ${theme.value}`} keys="t" onClick={nextTheme} />
        <IconButton icon="help" label="Keys" keys="?" onClick={() => (helpOpen.value = true)} />
        {hasToken.value && (
          <button type="button" class="tool-button" onClick={logOut}>
            Log out
          </button>
        )}
      </header>
      {id === undefined ? (
        <main class="list-main" aria-label="Runs">
          <h1 class="sr">Runs</h1>
          <List isSlim={false} />
        </main>
      ) : (
        <>
          {beside && (
            <nav class="list-side" aria-label="Runs">
              <List isSlim={true} />
            </nav>
          )}
          <RunView key={id} id={id} isWide={beside} />
        </>
      )}
      <Login />
      <Help />
      <div class="sr" role="status" aria-live="polite">
        {announced.value}
      </div>
    </div>
  );
}

function ListLamp(): JSX.Element {
  const { kind } = listState.value;
  const words = { loading: "loading", live: "list is live", waiting: "no connection", "logged-out": "logged out", refused: "not allowed" }[kind];
  const tone = kind === "live" ? "live" : kind === "loading" ? "busy" : "lost";
  return (
    <span class={`connection ${tone}`} data-list={kind}>
      <span class="lamp" aria-hidden="true" />
      <span>{words}</span>
    </span>
  );
}

const HELP: readonly (readonly [keys: string, what: string])[] = [
  ["j  k", "next, previous run or message"],
  ["Enter  o", "open the run; unfold the message"],
  ["/", "filter runs; search in the run"],
  ["n  N", "next, previous place found"],
  ["f", "follow the end, or stop"],
  ["g  G", "to the start, to the end"],
  ["e", "unfold or fold everything"],
  ["i", "usage and facts"],
  ["[  ]", "previous, next run of the list"],
  ["t", "colours: auto, light, dark"],
  ["Esc", "close the search, clear the filter, back to the list"],
];

function Help(): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (helpOpen.value && dialog.current?.open === false) dialog.current.showModal();
    if (!helpOpen.value) dialog.current?.close();
  }, [helpOpen.value]);
  return (
    <dialog ref={dialog} class="help" aria-labelledby="help-title" onClose={() => (helpOpen.value = false)}>
      <h1 id="help-title">Keys</h1>
      <dl>
        {HELP.map(([keys, what]) => (
          <div key={keys}>
            <dt>
              {keys.split("  ").map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <button type="button" class="primary" onClick={() => (helpOpen.value = false)}>
        Close
      </button>
    </dialog>
  );
}
