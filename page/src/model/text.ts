/**
 * Text that somebody else wrote, made fit to be looked at: what a reader would not see, or what would change what stands
 * beside it, is shown as a mark. Nothing here makes markup; a piece becomes a text node.
 */

/** How a terminal would have shown a piece. Colours are the 16 of old; finer ones become the nearest of these. */
export interface Style {
  readonly fg?: number;
  readonly bold?: true;
  readonly dim?: true;
  readonly italic?: true;
  readonly underline?: true;
  readonly inverse?: true;
  readonly strike?: true;
}

export interface Piece {
  readonly text: string;
  readonly style?: Style;
  /** It stands for a character, or an escape, that cannot be seen; this says for which. */
  readonly mark?: string;
}

const BIDI: Readonly<Record<number, readonly [short: string, long: string]>> = {
  0x061c: ["ALM", "Arabic letter mark"],
  0x200e: ["LRM", "left-to-right mark"],
  0x200f: ["RLM", "right-to-left mark"],
  0x202a: ["LRE", "left-to-right embedding"],
  0x202b: ["RLE", "right-to-left embedding"],
  0x202c: ["PDF", "pop directional formatting"],
  0x202d: ["LRO", "left-to-right override"],
  0x202e: ["RLO", "right-to-left override"],
  0x2066: ["LRI", "left-to-right isolate"],
  0x2067: ["RLI", "right-to-left isolate"],
  0x2068: ["FSI", "first strong isolate"],
  0x2069: ["PDI", "pop directional isolate"],
  0x200b: ["ZWSP", "zero width space"],
  0x2028: ["LS", "line separator"],
  0x2029: ["PS", "paragraph separator"],
  0x2060: ["WJ", "word joiner"],
  0xfeff: ["BOM", "byte order mark"],
};

// Escapes of terminals: colours first, then strings (titles, links), then other sequences; then single characters.
const SPECIAL = new RegExp(
  "\\u001b\\[[0-9;:]*m" +
    "|\\u001b[\\]PX^_][^\\u0007\\u001b]{0,4096}(?:\\u0007|\\u001b\\\\)?" +
    "|\\u001b\\[[0-?]*[ -/]*[@-~]" +
    "|\\u001b[ -/]*[0-~]" +
    "|\\r\\n" +
    "|[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060\\u2066-\\u2069\\ufeff]" +
    "|[\\u{e0000}-\\u{e0fff}]" +
    "|[\\ud800-\\udfff]",
  "gu",
);

/** Cuts text into pieces. `ansi`: colours are obeyed; otherwise they are shown like every other escape. */
export function pieces(text: string, ansi = false): Piece[] {
  const out: Piece[] = [];
  let style: Style | undefined;
  let from = 0;
  const plain = (to: number): void => {
    if (to > from) out.push(style === undefined ? { text: text.slice(from, to) } : { text: text.slice(from, to), style });
  };
  for (const match of text.matchAll(SPECIAL)) {
    const found = match[0];
    plain(match.index);
    from = match.index + found.length;
    if (found === "\r\n") out.push({ text: "\n" });
    else if (ansi && found.startsWith("\u001b[") && found.endsWith("m")) style = restyled(style, found.slice(2, -1));
    else out.push(mark(found));
  }
  plain(text.length);
  return out;
}

/** The same as one string, for attributes, titles and names. */
export function visible(text: string): string {
  if (text.search(SPECIAL) < 0) return text;
  return pieces(text)
    .map((piece) => piece.text)
    .join("");
}

/** One line of at most so many characters. */
export function oneLine(text: string, max = 200): string {
  const cut = text.length > max * 4 ? text.slice(0, max * 4) : text;
  const line = visible(cut.trim()).replace(/\s+/g, " ");
  return line.length > max || cut.length < text.length ? `${sliceWhole(line, max)}…` : line;
}

/** The first `end` characters, without half of one. */
export function sliceWhole(text: string, end: number): string {
  if (text.length <= end) return text;
  const last = text.charCodeAt(end - 1);
  return text.slice(0, last >= 0xd800 && last <= 0xdbff ? end - 1 : end);
}

/** Where the last characters of a text begin, about so many, at the beginning of a line if there is one. It does not move with each character that is added. */
export function endFrom(text: string, about: number): number {
  if (text.length <= about) return 0;
  const from = Math.floor((text.length - about / 2) / (about / 2)) * (about / 2);
  const line = text.indexOf("\n", from);
  const at = line >= 0 && line < from + about / 4 ? line + 1 : from;
  return startsWhole(text, at) ? at : at - 1;
}

function startsWhole(text: string, at: number): boolean {
  const code = text.charCodeAt(at);
  return !(code >= 0xdc00 && code <= 0xdfff);
}

function mark(found: string): Piece {
  const code = found.codePointAt(0) ?? 0;
  if (code === 0x1b) {
    const rest = sliceWhole(found.slice(1), 60);
    const inner = pieces(rest)
      .map((piece) => piece.text)
      .join("");
    return { text: `␛${inner}`, mark: "terminal escape" };
  }
  const known = BIDI[code];
  if (known !== undefined) return { text: `⟨${known[0]}⟩`, mark: known[1] };
  if (code < 0x20) return { text: String.fromCodePoint(0x2400 + code), mark: `control character ${hex(code)}` };
  if (code === 0x7f) return { text: "␡", mark: "control character 7F" };
  if (code >= 0xd800 && code <= 0xdfff) return { text: "\ufffd", mark: `half of a character, ${hex(code)}` };
  return { text: `⟨U+${hex(code)}⟩`, mark: code >= 0xe0000 ? "invisible tag character" : `control character ${hex(code)}` };
}

function hex(code: number): string {
  return code.toString(16).toUpperCase().padStart(2, "0");
}

/** What `ESC [ codes m` makes of a style. */
function restyled(before: Style | undefined, codes: string): Style | undefined {
  let style: { -readonly [Key in keyof Style]: Style[Key] } = { ...before };
  const list = codes.split(/[;:]/).map((code) => (code === "" ? 0 : Number(code)));
  for (let at = 0; at < list.length; at += 1) {
    const code = list[at] ?? 0;
    if (code === 0) style = {};
    else if (code === 1) style.bold = true;
    else if (code === 2) style.dim = true;
    else if (code === 3) style.italic = true;
    else if (code === 4) style.underline = true;
    else if (code === 7) style.inverse = true;
    else if (code === 9) style.strike = true;
    else if (code === 22) {
      delete style.bold;
      delete style.dim;
    } else if (code === 23) delete style.italic;
    else if (code === 24) delete style.underline;
    else if (code === 27) delete style.inverse;
    else if (code === 29) delete style.strike;
    else if (code >= 30 && code <= 37) style.fg = code - 30;
    else if (code >= 90 && code <= 97) style.fg = code - 90 + 8;
    else if (code === 39) delete style.fg;
    else if (code === 38 || code === 48) {
      const [colour, used] = extended(list, at + 1);
      if (code === 38 && colour !== undefined) style.fg = colour;
      at += used;
    }
    // Others, concealed text among them, are passed over: what was written can be read.
  }
  return Object.keys(style).length === 0 ? undefined : style;
}

/** A colour of 256 or of 16 million as one of 16, and how many codes it took. */
function extended(list: readonly number[], at: number): readonly [number | undefined, number] {
  if (list[at] === 5) {
    const index = list[at + 1] ?? 0;
    if (index < 16) return [index, 2];
    if (index >= 232) return [grey((index - 232) * 10 + 8), 2];
    const cube = index - 16;
    const level = (value: number): number => (value === 0 ? 0 : value * 40 + 55);
    return [nearest(level(Math.floor(cube / 36)), level(Math.floor(cube / 6) % 6), level(cube % 6)), 2];
  }
  if (list[at] === 2) return [nearest(list[at + 1] ?? 0, list[at + 2] ?? 0, list[at + 3] ?? 0), 4];
  return [undefined, 0];
}

function grey(value: number): number {
  return value < 64 ? 0 : value < 140 ? 8 : value < 210 ? 7 : 15;
}

function nearest(red: number, green: number, blue: number): number {
  const most = Math.max(red, green, blue);
  const least = Math.min(red, green, blue);
  if (most - least < 40) return grey(most);
  const half = (most + least) / 2;
  const base = (red > half ? 1 : 0) + (green > half ? 2 : 0) + (blue > half ? 4 : 0);
  return most > 200 ? base + 8 : base;
}
