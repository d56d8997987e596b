// What the API says in single words, for people.
import { visible } from "../../../ui/unseen";
import type { GraphEdge } from "../../../api/types";
import { words } from "../../../format";

export interface Named {
  role: string;
  reason?: string | null;
  is_subagent: boolean;
}

/** The role as one word: a subagent's own work is named as such. */
export const roleName = (call: Named) =>
  call.role === "agent" && call.is_subagent ? "subagent" : call.role;

const REASONS: Record<string, string> = {
  beside: "A turn beside the work, such as a title; nothing goes on from it",
  summary: "A summary of a long conversation, from which the agent started over",
  asked_again: "The agent asked the same again and went on from the other reply",
  thrown_away: "The agent did not use this reply",
};

const ROLES: Record<string, string> = {
  agent: "The agent's own work",
  subagent: "The work of an agent that the agent started",
  auxiliary: "A turn beside the work",
  discarded: "A reply that nothing goes on from",
  failed: "The endpoint gave no completion",
  pending: "No answer yet",
};

export const reasonWords = (call: Named) =>
  (call.reason && REASONS[call.reason]) ?? ROLES[roleName(call)] ?? words(call.role);

const FLAWS: Record<string, string> = {
  invalid_token_id: "A token id is no 32-bit number.",
  invalid_logprob: "A logprob is null, no number, or -9999 (minus infinity).",
  positive_logprob: "A logprob is above 0.",
  no_prompt_ids: "The endpoint told no prompt token ids.",
  no_sampled_ids: "The endpoint told no ids of the sampled tokens.",
  no_logprobs: "The endpoint told no logprobs.",
  logprob_misalign: "Ids and logprobs do not belong together.",
  length_mismatch: "There are not as many ids as the endpoint counted.",
  no_usage:
    "Its stream ended without the usage that was asked for, so a lost token would not show.",
  truncated_turn: "The answer was cut, or ended without a finish reason.",
  capture_ingest_failed: "A part of the answer cannot be read.",
  no_tokens_in_dialect: "The endpoint's dialect carries no tokens.",
  aborted_turn: "The engine broke the completion off.",
  constrained_sampling:
    "It was sampled under a grammar or another rule, so its logprobs are not the policy's.",
  media_in_prompt: "There are images or audio in its prompt.",
  logprobs_not_sampled: "Its logprobs are not of the distribution that was sampled from.",
  empty_completion: "Nothing was sampled.",
  upstream_error: "The endpoint refused, broke off, or was never heard of again.",
  reduced_capture: "The endpoint refused some of what capture asks for.",
  reply_thrown_away: "The agent threw the reply away.",
};

/** Why a call's tokens are not exact. */
export function flawWords(code: string): string {
  const text = words(code);
  return FLAWS[code] ?? `${text[0]?.toUpperCase() ?? ""}${text.slice(1)}.`;
}

type Link = GraphEdge["link"];

export const LINKS: Record<Link, [name: string, about: string]> = {
  continues: [
    "continues",
    "The prompt starts with the other's prompt and completion, token by token",
  ],
  retokenised: ["retokenised", "Goes on by its messages, but not by its tokens"],
  changed: ["reply changed", "The agent changed the reply before it sent it back"],
  left_out: ["reply left out", "Goes on from the other's prompt, without its reply"],
  compacts: ["compacts", "Starts over after a summary of the other's conversation"],
  spawned: ["spawned", "The other's reply started this one's session: a subagent"],
};

const FINISH: Record<string, string> = {
  stop: "The model ended its turn",
  tool_calls: "The model called tools",
  length: "The token limit cut the completion",
  content_filter: "The endpoint withheld the rest",
  abort: "The engine broke the completion off",
};

export const finishWords = (reason: string) =>
  FINISH[reason] ?? `The endpoint said ${visible(reason)}`;
