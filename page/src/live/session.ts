/** Who is looking: the server, the token, and whether one is asked for. */

import { computed, signal } from "@preact/signals";
import { APIError, Client } from "runcast-client";

/** Where the page itself lies: the routes are beside it, also behind a proxy that puts both under a path. */
export const base = new URL(".", document.baseURI).href;

const STORED = "runcast.token";

/** The token is kept in memory, and in the tab's own storage when that is asked for; never in a URL. */
const token = signal<string | undefined>(stored());

/** Whether a token is wanted: there was none, or the one there was is not taken any more. */
export const asked = signal<"no" | "first" | "expired">("no");

/** Grows with each login, for those who wait for one. */
export const logins = signal(0);

export const client = computed(() => new Client(token.value === undefined ? { baseUrl: base } : { baseUrl: base, token: token.value }));

export const hasToken = computed(() => token.value !== undefined);

function stored(): string | undefined {
  try {
    return sessionStorage.getItem(STORED) ?? undefined;
  } catch {
    return undefined;
  }
}

function store(value: string | undefined): void {
  try {
    if (value === undefined) sessionStorage.removeItem(STORED);
    else sessionStorage.setItem(STORED, value);
  } catch {
    // A browser that stores nothing keeps it in memory.
  }
}

export function headers(): Record<string, string> {
  return token.value === undefined ? {} : { authorization: `Bearer ${token.value}` };
}

/** Tries a token; throws what the server says against it. */
export async function logIn(text: string, keep: boolean): Promise<void> {
  await new Client({ baseUrl: base, token: text }).runs.list({ limit: 1 });
  token.value = text;
  store(keep ? text : undefined);
  asked.value = "no";
  logins.value += 1;
}

export function logOut(): void {
  token.value = undefined;
  store(undefined);
  asked.value = "first";
}

/** Whether an error says that a token is wanted; then one is asked for. */
export function wantsToken(error: unknown): boolean {
  const wanted = error instanceof APIError && (error.status === 401 || error.code === "unauthorized");
  if (wanted && asked.value === "no") asked.value = token.value === undefined ? "first" : "expired";
  return wanted;
}
