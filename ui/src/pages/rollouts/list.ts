// The list as the page sees it: its rows, kept up to date, and what is remembered while another page is shown.
import { useLayoutEffect, useReducer, useRef } from "preact/hooks";
import { ApiError, get } from "../../api/client";
import { onRows, streamStarts } from "../../api/stream";
import type { RolloutPage } from "../../api/types";
import { hasMoved, matches, queryOf, type Filters, type Order } from "./filters";
import { RowStore } from "./rows";

const now = () => Date.now() / 1000;

/** Between two readings that live changes ask for. */
const QUIET_MS = 2000;

export class RolloutList {
  readonly store: RowStore;
  error: ApiError | null = null;
  /** Where the reader was. */
  scrollTop = 0;
  activeId: string | null = null;
  /** Rows that came or went above what is seen, since it was drawn. */
  shift = 0;
  /** The first and the last place that are seen. */
  seen: [number, number] = [0, 30];
  /** Draws at once, or with the next frame for what the stream tells many times a second. */
  draw: (when?: "soon") => void = () => {};
  /** Called when counts may have changed. */
  recount: () => void = () => {};
  private timer = 0;

  constructor(filters: Filters, order: Order) {
    const sorted = order.sort
      ? { sort: order.sort, order: order.isAscending ? "asc" : "desc" }
      : {};
    this.store = new RowStore({
      fetch: async (offset, limit) => {
        const query = { ...queryOf(filters, now()), ...sorted, offset, limit };
        const page = await get<RolloutPage>("v1/rollouts", query);
        this.error = null;
        return page;
      },
      matches: (row) => matches(row, filters, now()),
      hasMoved: (old, row) => hasMoved(order, old, row),
      isNewestFirst: order.sort === null,
      filled: () => this.draw(),
      changed: (added, at) => {
        if (at < this.seen[0]) this.shift += added;
        if (added) this.recount();
        this.draw("soon");
      },
      moved: (by) => (this.shift += by),
      stale: () => this.plan(),
      failed: (error) => this.fail(error),
    });
  }

  /** Says why something could not be read, and tries again where the server is only away. */
  fail(error: unknown) {
    this.error = error instanceof ApiError ? error : new ApiError(0, "error", String(error));
    if (this.error.code === "unreachable") this.plan();
    this.draw();
  }

  /** Reads what is seen again, soon and not too often. */
  plan() {
    if (this.timer) return;
    this.timer = window.setTimeout(() => {
      this.timer = 0;
      this.refresh();
    }, QUIET_MS);
  }

  refresh() {
    void this.store.refresh(...this.seen);
    this.recount();
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.draw = () => {};
    this.recount = () => {};
  }
}

/** Survives a visit to another page, so that going back is at once and at the same place. */
let kept: { key: string; list: RolloutList } | null = null;

interface Shown {
  list: RolloutList;
  /** The list that was asked for has not come yet: this is the one before. */
  isOld: boolean;
}

export function useList(filters: Filters, order: Order, recount: () => void): Shown {
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  const key = JSON.stringify([filters, order]);
  const shown = useRef<RolloutList | null>(null);
  if (kept?.key !== key) {
    kept?.list.stop();
    kept = { key, list: new RolloutList(filters, order) };
  }
  const { list } = kept;
  const counted = useRef(recount);
  counted.current = recount;
  useLayoutEffect(() => {
    let frame = 0;
    list.draw = (when) => {
      if (when !== "soon") return redraw(undefined);
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        redraw(undefined);
      });
    };
    list.recount = () => counted.current();
    const stopRows = onRows(
      (row) => {
        const old = list.store.byName(row.rollout_id);
        list.store.apply(row);
        if (old?.status !== row.status) list.recount();
      },
      (id) => list.store.remove(id),
    );
    // Runs at once, too: the first reading, or another one after a visit elsewhere.
    const stopStarts = streamStarts.subscribe(() => list.refresh());
    return () => {
      cancelAnimationFrame(frame);
      stopRows();
      stopStarts();
      list.stop();
    };
  }, [list]);
  if (list.store.total !== null || list.error || shown.current === null) shown.current = list;
  return { list: shown.current, isOld: shown.current !== list };
}
