/** Times and amounts in few characters. */

/** `3 s`, `4 min 05 s`, `1 h 07 min`. */
export function duration(ms: number): string {
  if (!Number.isFinite(ms) || ms < 0) return "–";
  if (ms < 950) return `${Math.round(ms)} ms`;
  if (ms < 59_500) return `${ms < 9_950 ? (ms / 1000).toFixed(1) : Math.round(ms / 1000)} s`;
  const seconds = Math.round(ms / 1000);
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${two(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${two(minutes % 60)} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** The same for what still goes on: in whole seconds. */
export function soFar(ms: number): string {
  return ms < 60_000 ? `${Math.max(0, Math.floor(ms / 1000))} s` : duration(Math.floor(ms / 1000) * 1000);
}

/** How long ago, without parts that nobody reads: `now`, `12 s`, `4 min`, `3 h`, `2 d`. */
export function age(ms: number): string {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 2) return "now";
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}

function two(value: number): string {
  return String(value).padStart(2, "0");
}

/** `950`, `12.3k`, `4.56M`. */
export function amount(value: number): string {
  if (value < 1000) return String(Math.round(value));
  if (value < 999_500) return `${trim(value / 1000)}k`;
  return `${trim(value / 1_000_000)}M`;
}

function trim(value: number): string {
  return value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : String(Math.round(value));
}

export function bytes(value: number): string {
  return value < 1024 ? `${value} B` : value < 1024 * 1024 ? `${Math.round(value / 1024)} KB` : `${(value / 1024 / 1024).toFixed(1)} MB`;
}

export function money(value: number): string {
  return value < 0.995 ? `$${value.toFixed(3)}` : `$${value.toFixed(2)}`;
}

/** Milliseconds of an RFC 3339 time; `undefined` for anything else. */
export function instant(value: unknown): number | undefined {
  if (typeof value !== "string") return undefined;
  const ms = Date.parse(value);
  return Number.isNaN(ms) ? undefined : ms;
}
