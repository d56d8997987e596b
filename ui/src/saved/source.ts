// Answers of the API out of a saved file.
import { ApiError, type Source } from "../api/client";
import type { Token, TokenPage } from "../api/types";

/** A prompt as what is new in it. */
interface SavedPrompt {
  /** The earlier call whose prompt and sampled tokens it starts with. */
  before: number | null;
  /** How many ids of those. */
  shared: number;
  /** The others: id, and the call that it was sampled in. */
  tokens: [id: number, sampledIn: number | null][];
}

export interface Saved {
  version: 1;
  rollout_id: string;
  /** Unix seconds. */
  saved_at: number;
  /** Which program wrote it. */
  program: string;
  /** Answers by their address without host, prefix and `start`, `limit` and `trace`; pages are whole. */
  answers: Record<string, unknown>;
  /** Addresses whose answer is that of another. */
  same: Record<string, string>;
  /** Of every answer about a transcript. */
  conversations: unknown[];
  /** Each list of tools once: most calls of a rollout offer the same ones. */
  tool_lists: unknown[];
  /** By turn, which list of tools its detail has. */
  tools: (number | null)[];
  /** By turn. */
  prompts: (SavedPrompt | null)[];
}

/** The members that hold a page's items. */
const LISTS = ["turns", "tokens", "nodes", "entries", "files", "attempts"];

/** The key of an address in `answers`, and the page that is asked for. */
export function keyOf(href: string): { key: string; start: number; limit: number } {
  const url = new URL(href);
  const path = url.pathname.slice(url.pathname.indexOf("/v1/") + 1);
  const number = (name: string, other: number) => Number(url.searchParams.get(name) ?? other);
  const [start, limit] = [number("start", 0), number("limit", Infinity)];
  for (const name of ["start", "limit", "trace"]) url.searchParams.delete(name);
  url.searchParams.sort();
  const query = url.searchParams.toString();
  return { key: query ? `${path}?${query}` : path, start, limit };
}

/** A page out of a whole list; other answers as they are. */
export function sliced(answer: unknown, start: number, limit: number): unknown {
  if (typeof answer !== "object" || answer === null || !("total" in answer)) return answer;
  const name = LISTS.find((one) => Array.isArray((answer as Record<string, unknown>)[one]));
  if (!name) return answer;
  const all = (answer as Record<string, unknown[]>)[name]!;
  const page: Record<string, unknown> = {
    ...answer,
    [name]: all.slice(start, start + limit),
    start,
  };
  // Links belong to the page that has the call which they lead to.
  if (name === "nodes") {
    const { edges } = answer as unknown as { edges: { to: number }[] };
    const turns = new Set((page.nodes as { turn: number }[]).map(({ turn }) => turn));
    page.edges = edges.filter(({ to }) => turns.has(to));
  }
  return page;
}

/** A whole prompt, put together from the calls that it goes on from. */
export function promptOf(saved: Saved, turn: number): Token[] {
  const chain: { turn: number; prompt: SavedPrompt }[] = [];
  for (let at: number | null = turn; at !== null;) {
    const prompt: SavedPrompt | null | undefined = saved.prompts[at];
    if (!prompt) break;
    chain.push({ turn: at, prompt });
    // Only earlier calls, so that a damaged file cannot lead round in a circle.
    at = prompt.before !== null && prompt.before < at ? prompt.before : null;
  }
  let ids: Token[] = [];
  for (const { prompt } of chain.reverse()) {
    if (prompt.before !== null && prompt.shared > ids.length)
      ids = ids.concat(sampledOf(saved, prompt.before));
    ids = ids.slice(0, prompt.shared);
    for (const [id, sampledIn] of prompt.tokens) ids.push(promptToken(id, null, sampledIn));
  }
  return ids;
}

function sampledOf(saved: Saved, turn: number): Token[] {
  const key = `v1/rollouts/${saved.rollout_id}/turns/${turn}/tokens?part=completion`;
  const page = saved.answers[key] as TokenPage | undefined;
  return (page?.tokens ?? []).map((token) => promptToken(token.id, token.text, turn));
}

const promptToken = (
  id: number | null | undefined,
  text: string | null | undefined,
  sampledIn: number | null,
): Token => ({
  id: id ?? null,
  text: text ?? null,
  logprob: null,
  mask: 0,
  sampled_in: sampledIn,
  alternatives: [],
});

function answerOf(saved: Saved, key: string): unknown {
  const answer = saved.answers[saved.same[key] ?? key];
  if (typeof answer !== "object") return answer;
  if (/\/transcript(\?|$)/.test(key)) return { ...answer, conversations: saved.conversations };
  const turn = /\/turns\/(\d+)$/.exec(key);
  if (!turn) return answer;
  const list = saved.tools[Number(turn[1])];
  return { ...answer, tools: typeof list === "number" ? (saved.tool_lists[list] ?? null) : null };
}

export function savedSource(saved: Saved): Source {
  return {
    isSaved: true,
    async request(method, href) {
      const { key, start, limit } = keyOf(href);
      const prompt = /\/turns\/(\d+)\/tokens\?part=prompt$/.exec(key);
      if (method === "GET" && prompt) {
        const tokens = promptOf(saved, Number(prompt[1]));
        const page = {
          turn: Number(prompt[1]),
          part: "prompt",
          tokens,
          total: tokens.length,
          is_exact: true,
        };
        return sliced(page, start, limit);
      }
      const answer = method === "GET" ? answerOf(saved, key) : undefined;
      if (answer === undefined)
        throw new ApiError(
          404,
          "not_saved",
          "This is not in the saved file. The server that ran the rollout has it.",
        );
      return sliced(answer, start, limit);
    },
  };
}
