// What was spent, beside what could be. Pure.
import type { RolloutResult, Task } from "../../api/types";

export interface BudgetLine {
  name: string;
  used: number;
  /** Null where there is none. */
  limit: number | null;
  unit: "s" | "usd" | "count";
}

export function budgetLines(
  { budget, timings }: Pick<RolloutResult, "budget" | "timings">,
  task: Pick<Task, "budget"> | null,
): BudgetLine[] {
  const limits = task?.budget;
  const { spent } = budget;
  // Waiting for an endpoint that is out of order does not count.
  const agentS = Math.max(0, timings.agent_s - timings.outage_s);
  return [
    { name: "Agent's time", used: agentS, limit: budget.agent_timeout_s || null, unit: "s" },
    { name: "Model calls", used: spent.calls, limit: limits?.calls ?? null, unit: "count" },
    {
      name: "Prompt tokens",
      used: spent.prompt_tokens,
      limit: limits?.prompt_tokens ?? null,
      unit: "count",
    },
    {
      name: "Sampled tokens",
      used: spent.completion_tokens,
      limit: limits?.completion_tokens ?? null,
      unit: "count",
    },
    ...(spent.usd > 0 || limits?.usd
      ? [{ name: "Cost", used: spent.usd, limit: limits?.usd ?? null, unit: "usd" as const }]
      : []),
  ];
}
