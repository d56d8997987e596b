import assert from "node:assert/strict";
import { test } from "node:test";
import type { GroupFigures } from "../src/api/types";
import {
  groupRows,
  heatTable,
  keyName,
  seriesTitle,
  signalOf,
  sortGroups,
  sortTasks,
} from "../src/pages/compare/figures";

function figures(key: Record<string, string>, rewards: number[], more: Partial<GroupFigures> = {}) {
  const bins = Array.from({ length: 10 }, () => 0);
  for (const reward of rewards) bins[Math.max(0, Math.min(9, Math.floor(reward * 10)))]! += 1;
  const made: GroupFigures = {
    key,
    rollouts: rewards.length,
    ended: rewards.length,
    valid: rewards.length,
    passed: rewards.filter((it) => it >= 0.999).length,
    partial: rewards.filter((it) => it > 0 && it < 0.999).length,
    failed: rewards.filter((it) => it <= 0).length,
    mean_reward: rewards.length ? rewards.reduce((a, b) => a + b) / rewards.length : null,
    rewards: bins,
    pass_at_k: [],
    tasks: 1,
    calls: 0,
    prompt_tokens: 0,
    completion_tokens: 0,
    trainable_tokens: 0,
    cost_usd: 0,
    mean_wall_s: null,
    latest_at: 0,
    ...more,
  };
  return made;
}

test("a series is named in the same order whatever the server's order is", () => {
  assert.equal(keyName({ model: "m", agent: "a" }), "a · m");
  assert.equal(keyName({ group: "" }), "no group");
});

test("groups without a value come last in both directions", () => {
  const groups = [
    figures({ agent: "none" }, []),
    figures({ agent: "good" }, [1, 1]),
    figures({ agent: "bad" }, [0, 0]),
  ];
  const names = (isDescending: boolean) =>
    sortGroups(groups, "pass", isDescending).map((group) => group.key.agent);
  assert.deepEqual(names(true), ["good", "bad", "none"]);
  assert.deepEqual(names(false), ["bad", "good", "none"]);
});

test("the table of success has a row for each task and its best column first", () => {
  const table = heatTable([
    figures({ task: "t1", agent: "a", model: "m" }, [0, 0]),
    figures({ task: "t1", agent: "b", model: "m" }, [1, 0]),
    figures({ task: "t2", agent: "b", model: "m" }, [1, 1]),
  ]);
  assert.deepEqual(
    table.columns.map((column) => column.name),
    ["b · m", "a · m"],
  );
  assert.deepEqual(table.columns[0]!.key, { agent: "b", model: "m" });
  const [t1, t2] = table.rows;
  assert.deepEqual([t1!.passed, t1!.valid, t1!.spread], [1, 4, 0.5]);
  assert.equal(t2!.cells[1], null);
  assert.deepEqual(
    sortTasks(table.rows, "hardest").map((row) => row.task),
    ["t1", "t2"],
  );
  assert.deepEqual(
    sortTasks(table.rows, "easiest").map((row) => row.task),
    ["t2", "t1"],
  );
});

test("equal rewards carry no signal", () => {
  assert.equal(signalOf(figures({}, [1, 1, 1])), "all_pass");
  assert.equal(signalOf(figures({}, [0, 0])), "all_fail");
  assert.equal(signalOf(figures({}, [0, 1])), "mixed");
  assert.equal(signalOf(figures({}, [0.95, 1])), "mixed");
  assert.equal(signalOf(figures({}, [0.51, 0.52])), "close");
  assert.equal(signalOf(figures({}, [1])), "few");
});

test("rollouts that were started alone are no group", () => {
  const rows = groupRows([figures({ group: "", task: "t" }, [1, 0]), figures({ group: "g" }, [1])]);
  assert.deepEqual(
    rows.map((row) => row.group.key.group),
    ["g"],
  );
});

test("a column says what its rows are", () => {
  assert.equal(seriesTitle("agent,model"), "Agent and model");
  assert.equal(seriesTitle("task"), "Task");
});
