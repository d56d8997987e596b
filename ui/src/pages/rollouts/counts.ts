// Counts over all that match, whatever of it is seen.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { get } from "../../api/client";
import type { Facets, FiguresPage, GroupFigures } from "../../api/types";
import { queryOf, type Filters } from "./filters";

export interface Counts {
  /** By state, as if no state was chosen. */
  facets: Facets | null;
  /** Of what is listed. */
  all: GroupFigures | null;
}

/** Between two readings while rollouts run. */
const QUIET_MS = 2000;

/** Counts, and how to have them read again soon. What was there stays until the answer comes. */
export function useCounts(filters: Filters): [Counts, () => void] {
  const [counts, setCounts] = useState<Counts>({ facets: null, all: null });
  const timer = useRef(0);
  const round = useRef(0);
  const wanted = useRef(filters);
  wanted.current = filters;
  const read = useCallback(async () => {
    const mine = ++round.current;
    const now = Date.now() / 1000;
    const query = queryOf(wanted.current, now);
    const { status: _, verdict: __, ...others } = query;
    try {
      const [facets, figures] = await Promise.all([
        get<Facets>("v1/rollouts/facets", others),
        get<FiguresPage>("v1/figures", { ...query, by: "agent", limit: 1 }),
      ]);
      if (mine === round.current) setCounts({ facets, all: figures.all });
    } catch {
      // The list itself says what is wrong; old counts would be too.
      if (mine === round.current) setCounts({ facets: null, all: null });
    }
  }, []);
  const soon = useCallback(() => {
    timer.current ||= window.setTimeout(() => {
      timer.current = 0;
      void read();
    }, QUIET_MS);
  }, []);
  const key = JSON.stringify(filters);
  useEffect(() => {
    void read();
    return () => {
      clearTimeout(timer.current);
      timer.current = 0;
    };
  }, [key]);
  return [counts, soon];
}
