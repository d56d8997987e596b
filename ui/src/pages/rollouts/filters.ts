// Which rollouts are listed, and in which order. All of it is in the address.
import type { RolloutRow } from "../../api/types";

export const FILTER_NAMES = [
  "q",
  "status",
  "verdict",
  "ended",
  "task",
  "agent",
  "model",
  "group",
  "label",
  "since",
] as const;
export type FilterName = (typeof FILTER_NAMES)[number];
export type Filters = Partial<Record<FilterName, string>>;

export const SORTS = [
  "started_at",
  "reward",
  "wall_s",
  "calls",
  "tokens",
  "cost",
  "task",
  "agent",
  "model",
] as const;
export type Sort = (typeof SORTS)[number];

export interface Order {
  /** Null for the newest first. */
  sort: Sort | null;
  isAscending: boolean;
}

export const NEWEST_FIRST: Order = { sort: null, isAscending: false };

const SORT_VALUES: Record<Sort, (row: RolloutRow) => unknown> = {
  started_at: (row) => row.started_at,
  reward: (row) => row.reward,
  wall_s: (row) => row.wall_s,
  calls: (row) => row.calls,
  tokens: (row) => row.prompt_tokens + row.completion_tokens,
  cost: (row) => row.cost_usd,
  task: (row) => row.task_id,
  agent: (row) => row.agent,
  model: (row) => row.model,
};

/** Whether a row that has changed may stand at another place now. */
export const hasMoved = ({ sort }: Order, old: RolloutRow, row: RolloutRow): boolean =>
  sort !== null && SORT_VALUES[sort](old) !== SORT_VALUES[sort](row);

export function filtersOf(query: URLSearchParams): Filters {
  const filters: Filters = {};
  for (const name of FILTER_NAMES) {
    const value = query.get(name);
    if (value) filters[name] = value;
  }
  return filters;
}

export function orderOf(query: URLSearchParams): Order {
  const sort = SORTS.find((name) => name === query.get("sort")) ?? null;
  const isAscending = query.get("order") === "asc";
  return sort === "started_at" && !isAscending ? NEWEST_FIRST : { sort, isAscending };
}

/** What a click on a column's name leads to: first the larger or the earlier in the alphabet, then the other way, then none. */
export function nextOrder(order: Order, clicked: Sort): { sort: string; order: string } {
  const isText = clicked === "task" || clicked === "agent" || clicked === "model";
  if (clicked === "started_at")
    return order.sort === null ? { sort: clicked, order: "asc" } : { sort: "", order: "" };
  if (order.sort !== clicked) return { sort: clicked, order: isText ? "asc" : "desc" };
  if (order.isAscending === isText) return { sort: clicked, order: isText ? "desc" : "asc" };
  return { sort: "", order: "" };
}

const SPANS: Record<string, number> = { m: 60, h: 3600, d: 86_400 };

/** Unix seconds of `24h`, `7d` and the like; other times are the server's to read. */
export function sinceOf(text: string, now: number): string | number {
  const [, number, unit] = /^(\d{1,5})([mhd])$/.exec(text) ?? [];
  return number && unit ? Math.floor(now - Number(number) * SPANS[unit]!) : text;
}

/** As the routes for lists, facets and figures take them. */
export function queryOf(filters: Filters, now: number): Record<string, string | number> {
  const query: Record<string, string | number> = { ...filters };
  if (filters.since) query.since = sinceOf(filters.since, now);
  return query;
}

/** Whether a row that the stream tells of belongs into the list, by the server's own rules. */
export function matches(row: RolloutRow, filters: Filters, now: number): boolean {
  if (filters.status && row.status !== filters.status) return false;
  if (filters.verdict && row.verdict !== filters.verdict) return false;
  if (filters.ended && row.ended !== filters.ended)
    if (filters.ended !== "running" || row.status === "ended") return false;
  if (filters.task && row.task_id !== filters.task) return false;
  if (filters.agent && row.agent !== filters.agent) return false;
  if (filters.model && row.model !== filters.model) return false;
  if (filters.group && row.group !== filters.group) return false;
  if (filters.label && !hasLabel(row, filters.label)) return false;
  if (filters.since) {
    const since = Number(sinceOf(filters.since, now));
    const from = Number.isFinite(since) ? since : Date.parse(filters.since) / 1000;
    if (row.started_at < from) return false;
  }
  return !filters.q || isFound(row, filters.q);
}

function hasLabel(row: RolloutRow, label: string): boolean {
  const at = label.indexOf("=");
  return at > 0 && row.labels[label.slice(0, at)] === label.slice(at + 1);
}

function isFound(row: RolloutRow, text: string): boolean {
  const wanted = text.toLowerCase();
  const labels = Object.entries(row.labels).map(([name, value]) => `${name}=${value}`);
  const places = [row.rollout_id, row.task_id, row.agent, row.model, row.group, row.error ?? ""];
  return [...places, ...labels].some((place) => place.toLowerCase().includes(wanted));
}
