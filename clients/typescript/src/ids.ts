const BYTES_MAX = 128;

/**
 * The id of a run or node, as it stands in a path: 1 to 128 bytes of UTF-8 without control characters.
 *
 * Throws a `TypeError` for anything else, before any request is made.
 */
export function pathOf(id: unknown, what: string): string {
  if (typeof id !== "string") throw new TypeError(`${what} must be a string`);
  if (id === "") throw new TypeError(`${what} must not be empty`);
   
  if (/[\u0000-\u001f\u007f-\u009f]/.test(id)) throw new TypeError(`${what} must have no control characters`);
  if (/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(id)) {
    throw new TypeError(`${what} must be well-formed Unicode`);
  }
  if (new TextEncoder().encode(id).length > BYTES_MAX) throw new TypeError(`${what} has at most ${BYTES_MAX} bytes`);
  // URLs take `.` and `..` away as parts of a path, escaped or not, so these two cannot be asked for.
  if (id === "." || id === "..") throw new TypeError(`${what} must not be "${id}"`);
  return encodeURIComponent(id);
}
