// A row for tests.
import type { RolloutRow } from "../src/api/types";

export function row(id: string, changes: Partial<RolloutRow> = {}): RolloutRow {
  return {
    rollout_id: id,
    status: "running",
    phase: "agent",
    ended: null,
    verdict: "open",
    reward: null,
    reward_valid: false,
    task_id: "Fix-It",
    group: "g1",
    labels: {},
    agent: "opencode",
    driver: "cli",
    model: "m",
    endpoint: "vllm",
    calls: 1,
    prompt_tokens: 10,
    completion_tokens: 2,
    trainable_tokens: 0,
    cost_usd: 0,
    wall_s: 1,
    started_at: 1000,
    error: null,
    rollout_type: null,
    capture_level: null,
    idle: false,
    ...changes,
  };
}
