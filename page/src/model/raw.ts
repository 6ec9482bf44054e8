/**
 * The `data` of steps as the server wrote it: reading it as JavaScript would change it (numbers beyond 2^53, `1.0`,
 * repeated keys). Only its extent is looked for.
 */

/** The texts of all `data` members of a page of steps, and the cursor of the next page. */
export function dataOfSteps(page: string): { readonly steps: string[]; readonly next: string | undefined } {
  const steps: string[] = [];
  let next: string | undefined;
  eachMember(page, skipSpace(page, 0), (key, from, to) => {
    if (key === "steps") {
      eachElement(page, from, (start) => {
        let data: string | undefined;
        const end = eachMember(page, start, (name, first, last) => {
          if (name === "data") data = page.slice(first, last);
        });
        if (data !== undefined) steps.push(data);
        return end;
      });
    } else if (key === "next_cursor") next = JSON.parse(page.slice(from, to)) as string | undefined;
  });
  return { steps, next };
}

/** Calls for each member of the object that begins at `at`; gives where the object ends. */
function eachMember(text: string, at: number, call: (key: string, from: number, to: number) => void): number {
  if (text[at] !== "{") throw new SyntaxError(`an object was to begin at ${at}`);
  at = skipSpace(text, at + 1);
  while (text[at] !== "}") {
    const keyEnd = endOfString(text, at);
    const from = skipSpace(text, skipSpace(text, keyEnd) + 1);
    const to = endOfValue(text, from);
    call(JSON.parse(text.slice(at, keyEnd)) as string, from, to);
    at = skipSpace(text, to);
    if (text[at] === ",") at = skipSpace(text, at + 1);
  }
  return at + 1;
}

/** Calls for each element of the array that begins at `at`; the call gives where the element ends. */
function eachElement(text: string, at: number, call: (from: number) => number): void {
  at = skipSpace(text, at + 1);
  while (text[at] !== "]") {
    at = skipSpace(text, call(at));
    if (text[at] === ",") at = skipSpace(text, at + 1);
  }
}

function skipSpace(text: string, at: number): number {
  while (at < text.length && " \t\r\n".includes(text.charAt(at))) at += 1;
  return at;
}

function endOfString(text: string, at: number): number {
  if (text[at] !== '"') throw new SyntaxError(`a string was to begin at ${at}`);
  for (let here = at + 1; ; ) {
    const quote = text.indexOf('"', here);
    if (quote < 0) throw new SyntaxError("a string has no end");
    let slashes = quote;
    while (text[slashes - 1] === "\\") slashes -= 1;
    // The opening quote is no backslash, so this stays inside.
    if ((quote - slashes) % 2 === 0) return quote + 1;
    here = quote + 1;
  }
}

/** Without recursion: messages may be nested as deeply as they like. */
function endOfValue(text: string, at: number): number {
  let depth = 0;
  for (;;) {
    const letter = text[at];
    if (letter === undefined) throw new SyntaxError("a value has no end");
    if (letter === '"') at = endOfString(text, at);
    else if (letter === "{" || letter === "[") {
      depth += 1;
      at += 1;
      continue;
    } else if (letter === "}" || letter === "]") {
      depth -= 1;
      at += 1;
    } else if (letter === "," || letter === ":" || " \t\r\n".includes(letter)) {
      at += 1;
      continue;
    } else while (at < text.length && !',]} \t\r\n'.includes(text.charAt(at))) at += 1;
    if (depth === 0) return at;
  }
}
