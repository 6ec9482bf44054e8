// The text of a part of a JSON text, as it stands: parsing would round numbers and drop repeated keys.

/** `[key, text of the value]` of each member of an object. */
export function members(text) {
  const found = [];
  let at = after(text, 0, "{");
  while (text[at] !== "}") {
    const key = skip(text, at);
    const name = JSON.parse(text.slice(at, key));
    const value = after(text, key, ":");
    const end = skip(text, value);
    found.push([name, text.slice(value, end)]);
    at = next(text, end);
  }
  return found;
}

/** The text of each item of an array. */
export function items(text) {
  const found = [];
  let at = after(text, 0, "[");
  while (text[at] !== "]") {
    const end = skip(text, at);
    found.push(text.slice(at, end));
    at = next(text, end);
  }
  return found;
}

export function member(text, name) {
  return members(text).find(([key]) => key === name)?.[1];
}

function blank(text, at) {
  while (text[at] === " " || text[at] === "\n" || text[at] === "\r" || text[at] === "\t") at++;
  return at;
}

function after(text, at, mark) {
  at = blank(text, at);
  if (text[at] !== mark) throw new SyntaxError(`no ${mark} at ${at} of ${text.slice(0, 80)}`);
  return blank(text, at + 1);
}

function next(text, at) {
  at = blank(text, at);
  return text[at] === "," ? blank(text, at + 1) : at;
}

function skip(text, at) {
  const bracket = /["{}[\]]/g;
  if (text[at] === '"') return skipString(text, at);
  if (text[at] !== "{" && text[at] !== "[") {
    const end = /[\s,:\]}]|$/g;
    end.lastIndex = at;
    return end.exec(text).index;
  }
  for (let depth = 0; ; ) {
    bracket.lastIndex = at;
    const found = bracket.exec(text);
    if (!found) throw new SyntaxError("the JSON text ends too early");
    at = found.index + 1;
    if (found[0] === '"') at = skipString(text, found.index);
    else depth += found[0] === "{" || found[0] === "[" ? 1 : -1;
    if (depth === 0) return at;
  }
}

function skipString(text, at) {
  for (;;) {
    const end = text.indexOf('"', at + 1);
    if (end < 0) throw new SyntaxError("the JSON text ends within a string");
    let slashes = 0;
    while (text[end - 1 - slashes] === "\\") slashes++;
    if (slashes % 2 === 0) return end + 1;
    at = end;
  }
}
