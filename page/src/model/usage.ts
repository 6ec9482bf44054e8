/** What a run used, as its messages say while it runs and its results say in the end. */

import { list, type Members, members, number, text } from "./read.js";

export interface Tokens {
  input: number;
  output: number;
  cacheRead: number;
  cacheWrite: number;
}

export interface ModelUse extends Tokens {
  readonly model: string;
  cost: number | undefined;
}

export class Usage {
  /** The running total of the last result; `undefined` before there is one. */
  cost: number | undefined;
  turns: number | undefined;
  readonly #messages = new Map<string, { readonly model: string; readonly tokens: Tokens }>();
  #models: readonly ModelUse[] | undefined;
  #since = new Set<string>();

  /** Counts an assistant's message. Several lines may be of one message, and the last of them says most. */
  message(message: Members): void {
    const id = text(message.id);
    const usage = members(message.usage);
    if (id === "" || message.usage === null || message.usage === undefined || message.model === "<synthetic>") return;
    const before = this.#messages.get(id)?.tokens;
    const most = (name: string, known: number | undefined): number => Math.max(number(usage[name]) ?? 0, known ?? 0);
    this.#messages.set(id, {
      model: text(message.model),
      tokens: {
        input: most("input_tokens", before?.input),
        output: most("output_tokens", before?.output),
        cacheRead: most("cache_read_input_tokens", before?.cacheRead),
        cacheWrite: most("cache_creation_input_tokens", before?.cacheWrite),
      },
    });
    this.#since.add(id);
  }

  /** Takes the totals of a result, which hold all that was before it. */
  result(data: Members): void {
    const cost = number(data.total_cost_usd) ?? number(data.cost_usd) ?? number(data.total_cost);
    if (cost !== undefined) this.cost = Math.max(cost, this.cost ?? 0);
    const turns = number(data.num_turns);
    if (turns !== undefined && turns > 0) this.turns = (this.turns ?? 0) + turns;
    const models = Object.entries(members(data.modelUsage)).map(([model, about]): ModelUse => {
      const use = members(about);
      return {
        model,
        input: number(use.inputTokens) ?? 0,
        output: number(use.outputTokens) ?? 0,
        cacheRead: number(use.cacheReadInputTokens) ?? 0,
        cacheWrite: number(use.cacheCreationInputTokens) ?? 0,
        cost: number(use.costUSD),
      };
    });
    if (models.length === 0) return;
    this.#models = models;
    this.#since = new Set();
  }

  /** Per model: the totals of the last result, and the messages since then. */
  models(): readonly ModelUse[] {
    const out = new Map<string, ModelUse>();
    for (const use of this.#models ?? []) out.set(use.model, { ...use });
    for (const id of this.#since) {
      const counted = this.#messages.get(id);
      if (counted === undefined) continue;
      const { model, tokens } = counted;
      const use = out.get(model) ?? { model, input: 0, output: 0, cacheRead: 0, cacheWrite: 0, cost: undefined };
      use.input += tokens.input;
      use.output += tokens.output;
      use.cacheRead += tokens.cacheRead;
      use.cacheWrite += tokens.cacheWrite;
      out.set(model, use);
    }
    return [...out.values()];
  }

  total(): Tokens {
    const sum: Tokens = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 };
    for (const use of this.models()) {
      sum.input += use.input;
      sum.output += use.output;
      sum.cacheRead += use.cacheRead;
      sum.cacheWrite += use.cacheWrite;
    }
    return sum;
  }
}

/** Tokens of a run object's `usage`: all that went in and came out, without what was read from a cache. */
export function tokensOf(usage: unknown): Tokens | undefined {
  if (typeof usage !== "object" || usage === null || list(usage).length > 0) return undefined;
  const use = members(usage);
  const pick = (...names: readonly string[]): number => names.map((name) => number(use[name])).find((found) => found !== undefined) ?? 0;
  return {
    input: pick("input_tokens", "inputTokens"),
    output: pick("output_tokens", "outputTokens"),
    cacheRead: pick("cache_read_input_tokens", "cacheReadTokens", "cacheReadInputTokens"),
    cacheWrite: pick("cache_creation_input_tokens", "cacheWriteTokens", "cacheCreationInputTokens"),
  };
}
