/** A run as a file: the messages as they were recorded, letter for letter, one a line. */

import { APIError } from "runcast-client";

import { dataOfSteps } from "../model/raw.js";
import { base, headers, wantsToken } from "./session.js";

const LIMIT = 500;
const TRIES_MAX = 8;

/** Asks for all steps, page by page; `told` hears how many there are so far. */
export async function download(id: string, told: (steps: number) => void, signal: AbortSignal): Promise<Blob> {
  const parts: string[] = [];
  let cursor: string | undefined;
  let count = 0;
  for (;;) {
    const query = new URLSearchParams({ limit: String(LIMIT), ...(cursor === undefined ? {} : { cursor }) });
    const text = await page(`${base}v1/agents/runs/${encodeURIComponent(id)}/steps?${query.toString()}`, signal);
    const { steps, next } = dataOfSteps(text);
    if (steps.length === 0 || next === undefined) break;
    count += steps.length;
    parts.push(steps.join("\n"), "\n");
    cursor = next;
    told(count);
  }
  return new Blob(parts, { type: "application/x-ndjson" });
}

async function page(url: string, signal: AbortSignal): Promise<string> {
  for (let tries = 1; ; tries += 1) {
    const answer = await fetch(url, { headers: headers(), cache: "no-store", signal });
    if (answer.ok) return await answer.text();
    const error = new APIError(answer.status, answer.status === 401 ? "unauthorized" : `http_${answer.status}`, `the server answered ${answer.status}`);
    wantsToken(error);
    if ((answer.status !== 503 && answer.status !== 429) || tries === TRIES_MAX) throw error;
    const seconds = Number(answer.headers.get("retry-after") ?? "1");
    await new Promise((resolve) => setTimeout(resolve, Math.min(Math.max(seconds, 0.2), 10) * 1000));
  }
}

/** Gives a file to whoever looks at the page. */
export function save(blob: Blob, name: string): void {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = name.replace(/[^\w.-]+/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
