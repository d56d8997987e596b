// Which rollouts are compared: the list's filters, in the address.
import { get } from "../../api/client";
import type { FiguresPage, GroupFigures } from "../../api/types";
import { link, type Params } from "../../router";
import { queryOf, type Filters } from "../rollouts/filters";

/** The list of what a figure counts. */
export function listOf(filters: Filters, key: Record<string, string>, more: Params = {}): string {
  return link(["rollouts"], { ...filters, ...key, ...more });
}

/** More combinations than these are neither loaded nor drawn. */
export const GROUPS_MAX = 2000;
const PAGE = 500;

export interface Figures {
  all: GroupFigures;
  groups: GroupFigures[];
  /** How many combinations there are; more than `groups` has where they are too many. */
  total: number;
}

/** All combinations up to the limit, page by page. */
export async function loadFigures(
  by: string,
  filters: Filters,
  abort: AbortSignal,
): Promise<Figures> {
  const groups: GroupFigures[] = [];
  const wanted = queryOf(filters, Date.now() / 1000);
  for (;;) {
    const query = { ...wanted, by, start: groups.length, limit: PAGE };
    const page = await get<FiguresPage>("v1/figures", query, abort);
    groups.push(...page.groups);
    const isAll = page.groups.length === 0 || groups.length >= page.total;
    if (isAll || groups.length >= GROUPS_MAX) {
      return { all: page.all, groups, total: Math.max(page.total, groups.length) };
    }
  }
}
