// Why there is nothing to show of what the model did. Pure.
import type { Rollout } from "./use-rollout";

type Known = Pick<Rollout, "result" | "progress">;

/** `later` says what appears once there is a turn. */
export function noTurns({ result, progress }: Known, later: string): string {
  const endpoint = result?.endpoint.kind ?? progress?.endpoint;
  const agent = result?.agent.name ?? progress?.agent;
  // Agents such as `oracle`, which carry out a given solution.
  if (endpoint === "none") return `The agent ${agent} asks no model, so there are no turns.`;
  if (progress?.status === "queued") return `The rollout waits for a free slot. ${later}`;
  if (!result) return `The agent has not asked the model yet. ${later}`;
  if (result.mode === "black_box")
    return "What a black-box agent asks its model is not captured. The log has what it printed.";
  return "The agent never asked the model.";
}
