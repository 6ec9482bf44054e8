// A server that does what runcast cannot be made to do: each test writes down its answers.
import { createServer } from "node:http";

const library = process.env.RUNCAST_CLIENT_DIST ?? new URL("../dist", import.meta.url).pathname;
export const { APIError, Client, describeToolDefault, followActivity, NodeStream } = await import(`${library}/index.js`);

/** `answer(request, response, requests so far)` is called for each request; a test's `t` ends the server. */
export async function stub(t, answer, upgrade) {
  const requests = [];
  const server = createServer(async (request, response) => {
    let body = Buffer.alloc(0);
    for await (const piece of request) body = Buffer.concat([body, piece]);
    const url = new URL(request.url, "http://stub");
    const asked = { method: request.method, path: url.pathname, after: url.searchParams.get("after"), url, headers: request.headers, body };
    requests.push(asked);
    asked.closed = new Promise((resolve) => response.on("close", resolve));
    await answer(asked, response, requests.length - 1);
  });
  if (upgrade) server.on("upgrade", upgrade);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const baseUrl = `http://127.0.0.1:${server.address().port}`;
  return { baseUrl, requests, server, client: (more) => new Client({ baseUrl, ...more }) };
}

export function json(response, status, value) {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
}

export function head(response) {
  return response.writeHead(200, { "content-type": "text/event-stream" });
}

export const record = (event, { id = event.sequence_number, eol = "\n" } = {}) =>
  `${id === undefined ? "" : `id: ${id}${eol}`}event: ${event.type}${eol}data: ${JSON.stringify({ ...event, type: undefined })}${eol}${eol}`;

export const delta = (number, text) => ({ type: "node.output_text.delta", node_id: "n", sequence_number: number, delta: text });
export const started = (number, call, tool) => ({ type: "node.tool_call.started", node_id: "n", sequence_number: number, call_id: call, tool, summary: "object with 1 field" });
export const completed = (number, call, tool, status) => ({ ...started(number, call, tool), type: "node.tool_call.completed", status });
export const outcome = { status: "completed", error_code: null, error_message: null, result: "ok", duration_ms: 5, usage: null, settled_at: null };
export const settled = (number) => ({ type: "node.settled", node_id: "n", sequence_number: number, outcome });
export const failure = (code, details) => ({ type: "error", error: { code, message: `it is ${code}`, ...(details && { details }) } });

/** What follows a cursor. */
export const after = (events, cursor) => events.filter((event) => event.sequence_number > Number(cursor ?? 0));

export async function all(iterable) {
  const items = [];
  for await (const item of iterable) items.push(item);
  return items;
}

/** What was handed out, and with which error it ended. */
export async function untilFailure(iterable) {
  const items = [];
  try {
    for await (const item of iterable) items.push(item);
  } catch (error) {
    return { items, error };
  }
  return { items, error: undefined };
}
