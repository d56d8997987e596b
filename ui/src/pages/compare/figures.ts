// Figures over many rollouts, put into the order in which charts and tables show them. Pure functions.
import type { GroupFigures } from "../../api/types";

/** What rollouts are put together by, as `by` of `GET /v1/figures` has it, with its name. */
export const SERIES: [string, string][] = [
  ["agent,model", "agent and model"],
  ["agent", "agent"],
  ["model", "model"],
  ["task", "task"],
  ["group", "group"],
];

/** What one row, line or chart stands for, as the head of a column. */
export function seriesTitle(by: string): string {
  const name = SERIES.find(([value]) => value === by)?.[1] ?? by;
  return name.slice(0, 1).toUpperCase() + name.slice(1);
}

const ORDER = ["task", "group", "agent", "model"];

/** `agent · model`, in a fixed order of dimensions. */
export function keyName(key: Record<string, string>): string {
  const names = ORDER.filter((name) => name in key).map((name) => key[name] || `no ${name}`);
  return names.join(" · ");
}

/** The share of valid rollouts that passed; null where none is valid. */
export function passShare(figures: GroupFigures): number | null {
  return figures.valid > 0 ? figures.passed / figures.valid : null;
}

export type SortColumn =
  | "name"
  | "rollouts"
  | "pass"
  | "reward"
  | "calls"
  | "prompt"
  | "completion"
  | "trainable"
  | "cost"
  | "wall";

/** What a column of the table of use has for a group: totals, and the mean for one rollout beside them. */
export const COLUMN_VALUES: Record<
  Exclude<SortColumn, "name">,
  (group: GroupFigures) => number | null
> = {
  rollouts: (group) => group.rollouts,
  pass: passShare,
  reward: (group) => group.mean_reward,
  calls: (group) => group.calls,
  prompt: (group) => group.prompt_tokens,
  completion: (group) => group.completion_tokens,
  trainable: (group) => group.trainable_tokens,
  cost: (group) => group.cost_usd || null,
  wall: (group) => group.mean_wall_s,
};

/** Sorted by a column; groups without a value come last in both directions. */
export function sortGroups(
  groups: GroupFigures[],
  column: SortColumn,
  isDescending: boolean,
): GroupFigures[] {
  const sign = isDescending ? -1 : 1;
  const byName = (a: GroupFigures, b: GroupFigures) =>
    keyName(a.key).localeCompare(keyName(b.key), "en", { numeric: true });
  if (column === "name") return groups.toSorted((a, b) => sign * byName(a, b));
  const value = COLUMN_VALUES[column];
  return groups.toSorted((a, b) => {
    const [left, right] = [value(a), value(b)];
    if (left === null || right === null) {
      return Number(left === null) - Number(right === null) || byName(a, b);
    }
    return sign * (left - right) || byName(a, b);
  });
}

export interface HeatColumn {
  name: string;
  key: Record<string, string>;
}

export interface HeatRow {
  task: string;
  cells: (GroupFigures | null)[];
  valid: number;
  passed: number;
  /** The best column's share of passes less the worst one's. */
  spread: number;
}

export interface HeatTable {
  columns: HeatColumn[];
  rows: HeatRow[];
}

/** Rows are tasks, columns what the other dimensions have, the best columns first. */
export function heatTable(groups: GroupFigures[]): HeatTable {
  const columns = new Map<string, HeatColumn & { valid: number; passed: number }>();
  const tasks = new Map<string, Map<string, GroupFigures>>();
  for (const group of groups) {
    const { task = "", ...key } = group.key;
    const name = keyName(key);
    const column = columns.get(name) ?? { name, key, valid: 0, passed: 0 };
    column.valid += group.valid;
    column.passed += group.passed;
    columns.set(name, column);
    const cells = tasks.get(task) ?? new Map<string, GroupFigures>();
    cells.set(name, group);
    tasks.set(task, cells);
  }
  const share = (of: { valid: number; passed: number }) =>
    of.valid > 0 ? of.passed / of.valid : -1;
  const sorted = [...columns.values()].sort(
    (a, b) => share(b) - share(a) || a.name.localeCompare(b.name, "en", { numeric: true }),
  );
  const rows = [...tasks].map(([task, found]) => {
    const cells = sorted.map((column) => found.get(column.name) ?? null);
    const shares = cells.map((cell) => cell && passShare(cell)).filter((it) => it !== null);
    return {
      task,
      cells,
      valid: cells.reduce((sum, cell) => sum + (cell?.valid ?? 0), 0),
      passed: cells.reduce((sum, cell) => sum + (cell?.passed ?? 0), 0),
      spread: shares.length > 1 ? Math.max(...shares) - Math.min(...shares) : 0,
    };
  });
  return { columns: sorted.map(({ name, key }) => ({ name, key })), rows };
}

export type HeatOrder = "name" | "hardest" | "easiest" | "spread";

export function sortTasks(rows: HeatRow[], order: HeatOrder): HeatRow[] {
  const byName = (a: HeatRow, b: HeatRow) => a.task.localeCompare(b.task, "en", { numeric: true });
  const share = (row: HeatRow) => (row.valid > 0 ? row.passed / row.valid : null);
  const byShare = (sign: number) => (a: HeatRow, b: HeatRow) => {
    const [left, right] = [share(a), share(b)];
    if (left === null || right === null) return Number(left === null) - Number(right === null);
    return sign * (left - right);
  };
  const compare: Record<HeatOrder, (a: HeatRow, b: HeatRow) => number> = {
    name: () => 0,
    hardest: byShare(1),
    easiest: byShare(-1),
    spread: (a, b) => b.spread - a.spread,
  };
  return rows.toSorted((a, b) => compare[order](a, b) || byName(a, b));
}

/** What a group of tries at one task tells a trainer that compares them with each other. */
export type Signal = "mixed" | "all_pass" | "all_fail" | "close" | "few";

export const SIGNALS: Record<Signal, { name: string; about: string }> = {
  mixed: { name: "mixed", about: "Rewards differ: tries can be told apart." },
  all_pass: { name: "all pass", about: "Every try passed: no advantage, nothing to learn from." },
  all_fail: { name: "all fail", about: "Every try failed: no advantage, nothing to learn from." },
  close: { name: "close", about: "No pass, no fail, and all rewards within one tenth." },
  few: { name: "too few", about: "Fewer than two valid rewards: nothing to compare." },
};

export function signalOf(group: GroupFigures): Signal {
  if (group.valid < 2) return "few";
  if (group.passed === group.valid) return "all_pass";
  if (group.failed === group.valid) return "all_fail";
  const isOneTenth = group.rewards.filter((count) => count > 0).length === 1;
  return isOneTenth && group.partial === group.valid ? "close" : "mixed";
}

/** Groups that were asked for together; a rollout of its own is none. */
export function groupRows(groups: GroupFigures[]): { group: GroupFigures; signal: Signal }[] {
  const named = groups.filter((group) => group.key.group);
  return named.map((group) => ({ group, signal: signalOf(group) }));
}
