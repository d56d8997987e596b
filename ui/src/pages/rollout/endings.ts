// Why rollouts end, in words. Pure; docs/endings.md has the rules.
import type { RolloutResult } from "../../api/types";

type Cause = NonNullable<RolloutResult["cause"]>;

const CAUSES: Record<Cause, string> = {
  completed: "The agent came to its end.",
  endpoint_unreachable:
    "The endpoint could not be reached, or closed connections without an answer.",
  endpoint_error: "The endpoint kept answering with errors of its own (5xx).",
  rate_limited: "The endpoint kept answering that there are too many requests (429).",
  endpoint_aborted: "The engine kept breaking completions off.",
  answer_broken: "The endpoint's answers broke off, or were no answers.",
  endpoint_silent: "The endpoint sent nothing for too long.",
  endpoint_refused: "The endpoint refused the requests.",
  key_refused: "The endpoint refused the key (401 or 403). Check the API key.",
  not_found:
    "The endpoint has no such model or path (404). Check the model's name and the base URL.",
  nothing_answered: "The model answered no turn of the agent, or the agent never asked it.",
  agent_request_refused: "The agent failed after the endpoint refused its own request.",
  agent_hung_up: "The agent failed after it hung up on a model call.",
  agent_exited: "The agent exited with a failure.",
  agent_killed: "The agent was ended by a signal.",
  agent_time_used: "The agent's time was used up.",
  idle_agent: "The agent did not ask the model for too long.",
  budget_limit: "A limit of the budget was reached.",
  output_length: "The agent ended on a reply that was cut by its length.",
  malformed_calls: "The agent gave up over replies that it could not read.",
  context_overflow: "The conversation no longer fits the model's context.",
  task_does_not_fit: "The model's context is too small for the agent's first prompt.",
  setup_failed: "A file or setup command of the task failed.",
  verifier_failed: "The tests could not be placed, or without a policy there was no reward.",
  sandbox_failed: "The sandbox did not start, or broke.",
  engine_failed: "Rollcage itself failed, or was ended.",
  cancelled: "Somebody cancelled the rollout.",
};

/** Why it ended. */
export function ending(result: Pick<RolloutResult, "cause" | "ended">): string {
  const { cause, ended } = result;
  return (cause && CAUSES[cause]) ?? `It ended as ${(cause ?? ended).replaceAll("_", " ")}.`;
}

/** What the reward is worth. */
export function worth(
  result: Pick<RolloutResult, "graded" | "reward_valid" | "retryable" | "verify_results">,
): string {
  const { graded, reward_valid, retryable } = result;
  const again = retryable ? " It may end better when it is run again." : "";
  if (reward_valid) return "The reward says something about agent and model.";
  if (graded) return `The reward does not count: what ended it was not agent or model.${again}`;
  return `Nothing was graded, so there is no reward to count.${again}`;
}
