/**
 * What the server refused, or why a stream could not go on.
 *
 * `status` is the HTTP status of the answer; it is 0 when there was none: in the middle of a stream, or without a
 * connection. `code` is for programs (`unknown_node`, `unauthorized`, `connection_lost`, …), `message` for people.
 */
export class APIError extends Error {
  override readonly name = "APIError";
  readonly status: number;
  readonly code: string;
  readonly details: Readonly<Record<string, unknown>> | undefined;

  constructor(status: number, code: string, message: string, details?: Readonly<Record<string, unknown>>) {
    super(message);
    this.status = status;
    this.code = code;
    this.details = details;
  }
}

/** The error object of the wire, as far as it is one. */
export interface ErrorObject {
  readonly code: string;
  readonly message: string;
  readonly details?: Readonly<Record<string, unknown>>;
}

export function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Reads `{code, message, details}`; whatever is missing gets a word of ours. */
export function errorObject(value: unknown, fallback: string): ErrorObject {
  const given = isRecord(value) ? value : {};
  const code = typeof given.code === "string" ? given.code : fallback;
  const message = typeof given.message === "string" ? given.message : `the server said ${code}`;
  const details = given.details;
  return isRecord(details) ? { code, message, details } : { code, message };
}

/** What an answer that is no success means. */
export async function errorOf(answer: Response): Promise<APIError> {
  const text = await answer.text().catch(() => "");
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    body = undefined;
  }
  const fallback = answer.status === 401 ? "unauthorized" : answer.status === 403 ? "forbidden" : `http_${answer.status}`;
  // REST has {"error": {…}}, Connect the members themselves.
  const error = isRecord(body) && isRecord(body.error) ? body.error : body;
  const message = `the server answered ${answer.status}`;
  const { code, message: said, details } = errorObject(isRecord(error) ? { message, ...error } : { message }, fallback);
  return new APIError(answer.status, code, said, details);
}

/** What went wrong with a connection, in a sentence. */
export function lost(cause: unknown, details?: Readonly<Record<string, unknown>>): APIError {
  let inner = cause;
  while (inner instanceof Error && inner.cause !== undefined) inner = inner.cause;
  const why = inner instanceof Error && inner.message !== "" ? `: ${inner.message}` : "";
  return new APIError(0, "connection_lost", `no connection to the server${why}`, details);
}
