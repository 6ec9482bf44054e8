/** Changes of a file, line by line. */

export interface DiffLine {
  readonly kind: " " | "+" | "-";
  readonly text: string;
}

export interface Hunk {
  /** The first line before and after, counted from 1; 0 where it is not known. */
  readonly oldStart: number;
  readonly newStart: number;
  readonly lines: readonly DiffLine[];
}

const CONTEXT = 3;
/** Comparing takes as many cells; beyond that all of the old goes and all of the new comes. */
const CELLS_MAX = 1_000_000;

/** Reads `structuredPatch`; `undefined` when it is none. */
export function fromPatch(patch: unknown): Hunk[] | undefined {
  if (!Array.isArray(patch) || patch.length === 0) return undefined;
  const hunks: Hunk[] = [];
  for (const hunk of patch as readonly unknown[]) {
    if (typeof hunk !== "object" || hunk === null) return undefined;
    const { oldStart, newStart, lines } = hunk as Record<string, unknown>;
    if (!Array.isArray(lines)) return undefined;
    const read = (lines as readonly unknown[]).filter((line) => typeof line === "string").map(patchLine);
    hunks.push({ oldStart: whole(oldStart), newStart: whole(newStart), lines: read });
  }
  return hunks;
}

function patchLine(line: string): DiffLine {
  const kind = line[0];
  return kind === "+" || kind === "-" ? { kind, text: line.slice(1) } : { kind: " ", text: kind === " " ? line.slice(1) : line };
}

function whole(value: unknown): number {
  return typeof value === "number" && Number.isSafeInteger(value) && value > 0 ? value : 0;
}

/** What makes `after` of `before`. `at`: where both begin in their file; 0 when that is not known. */
export function between(before: string, after: string, at = 0): Hunk[] {
  const [old, fresh] = [split(before), split(after)];
  let head = 0;
  while (head < old.length && head < fresh.length && old[head] === fresh[head]) head += 1;
  let tail = 0;
  while (tail < old.length - head && tail < fresh.length - head && old[old.length - 1 - tail] === fresh[fresh.length - 1 - tail]) tail += 1;
  const middle = script(old.slice(head, old.length - tail), fresh.slice(head, fresh.length - tail));
  const same = (lines: readonly string[]): DiffLine[] => lines.map((text) => ({ kind: " ", text }));
  return hunks([...same(old.slice(0, head)), ...middle, ...same(old.slice(old.length - tail))], at);
}

function split(text: string): string[] {
  if (text === "") return [];
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  return lines;
}

/** The shortest script, by the table of longest common subsequences. */
function script(old: readonly string[], fresh: readonly string[]): DiffLine[] {
  const [rows, columns] = [old.length, fresh.length];
  const gone = (text: string): DiffLine => ({ kind: "-", text });
  const come = (text: string): DiffLine => ({ kind: "+", text });
  if (rows * columns > CELLS_MAX || rows === 0 || columns === 0) return [...old.map(gone), ...fresh.map(come)];
  const width = columns + 1;
  const table = new Uint32Array((rows + 1) * width);
  for (let row = rows - 1; row >= 0; row -= 1) {
    for (let column = columns - 1; column >= 0; column -= 1) {
      table[row * width + column] =
        old[row] === fresh[column]
          ? (table[(row + 1) * width + column + 1] ?? 0) + 1
          : Math.max(table[(row + 1) * width + column] ?? 0, table[row * width + column + 1] ?? 0);
    }
  }
  const out: DiffLine[] = [];
  let [row, column] = [0, 0];
  while (row < rows || column < columns) {
    const [was, is] = [old[row], fresh[column]];
    if (was !== undefined && is !== undefined && was === is) {
      out.push({ kind: " ", text: was });
      row += 1;
      column += 1;
    } else if (was !== undefined && (is === undefined || (table[(row + 1) * width + column] ?? 0) >= (table[row * width + column + 1] ?? 0))) {
      out.push(gone(was));
      row += 1;
    } else if (is !== undefined) {
      out.push(come(is));
      column += 1;
    }
  }
  return out;
}

/** Changes with the lines around them; what lies further away is left out. */
function hunks(lines: readonly DiffLine[], at: number): Hunk[] {
  const out: Hunk[] = [];
  let [oldLine, newLine] = [at, at];
  let open: { oldStart: number; newStart: number; lines: DiffLine[] } | undefined;
  let quiet = 0;
  const before: DiffLine[] = [];
  for (const line of lines) {
    if (line.kind === " ") {
      quiet += 1;
      if (open !== undefined) {
        open.lines.push(line);
        if (quiet > CONTEXT * 2) {
          // What was kept in case another change follows begins the next hunk, if one follows.
          before.splice(0, before.length, ...open.lines.splice(open.lines.length - quiet + CONTEXT).slice(-CONTEXT));
          out.push(open);
          open = undefined;
        }
      } else {
        before.push(line);
        if (before.length > CONTEXT) before.shift();
      }
    } else {
      quiet = 0;
      if (open === undefined) {
        const start = (here: number): number => (at === 0 ? 0 : here - before.length);
        open = { oldStart: start(oldLine), newStart: start(newLine), lines: [...before] };
        before.length = 0;
      }
      open.lines.push(line);
    }
    if (line.kind !== "+") oldLine += 1;
    if (line.kind !== "-") newLine += 1;
  }
  if (open !== undefined) {
    if (quiet > CONTEXT) open.lines.splice(open.lines.length - quiet + CONTEXT);
    out.push(open);
  }
  return out;
}

/** How many lines came and went. */
export function counted(hunks: readonly Hunk[]): { readonly added: number; readonly removed: number } {
  let [added, removed] = [0, 0];
  for (const hunk of hunks) {
    for (const line of hunk.lines) {
      if (line.kind === "+") added += 1;
      else if (line.kind === "-") removed += 1;
    }
  }
  return { added, removed };
}
