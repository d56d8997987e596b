// The rows of a long list, of which only what was seen is known. The server has the order; the stream changes rows in place.
import type { RolloutPage, RolloutRow } from "../../api/types";

/** Rows that are asked for at once. */
export const BLOCK = 100;
/** Rows beside what is seen that are loaded, too. */
const AHEAD = 60;
/** Blocks that are asked for at the same time. */
const AT_ONCE = 2;

const range = (first: number, last: number): number[] =>
  Array.from({ length: Math.max(0, last - first + 1) }, (_, n) => first + n);

interface Options {
  fetch: (offset: number, limit: number) => Promise<RolloutPage>;
  matches: (row: RolloutRow) => boolean;
  /** Whether a row that is listed may stand at another place, now that it has changed. */
  hasMoved: (old: RolloutRow, row: RolloutRow) => boolean;
  /** Whether rows are in the order of their ids, the newest first: then new ones have a place. */
  isNewestFirst: boolean;
  /** An answer has come. */
  filled: () => void;
  /** The stream has changed something that may be shown; `added` rows are new at place `at`, or gone from there. */
  changed: (added: number, at: number) => void;
  /** What was seen stands so many places further down. */
  moved: (by: number) => void;
  /** Called when the order can only be known by asking again. */
  stale: () => void;
  failed: (error: unknown) => void;
}

const heard = new WeakMap<RolloutRow, number>();

/** Unix seconds, when this state of a row was told. */
export const heardAt = (row: RolloutRow): number => heard.get(row) ?? Date.now() / 1000;

const RANK = { queued: 0, running: 1, ended: 2 };

/** Whether `row` cannot be older than `other`: lists and stream come on different ways. */
export function isNewer(row: RolloutRow, other: RolloutRow): boolean {
  if (row.status !== other.status) return RANK[row.status] > RANK[other.status];
  return row.calls > other.calls || (row.calls === other.calls && row.wall_s >= other.wall_s);
}

export class RowStore {
  /** Null until the first answer. */
  total: number | null = null;
  private order: (string | undefined)[] = [];
  private readonly byId = new Map<string, RolloutRow>();
  private readonly asked = new Set<number>();
  /** What the stream told before the first answer. */
  private early: RolloutRow[] = [];
  private wanted: [number, number] = [0, 0];
  private round = 0;
  private readonly options: Options;

  constructor(options: Options) {
    this.options = options;
  }

  row(index: number): RolloutRow | undefined {
    const id = this.order[index];
    return id === undefined ? undefined : this.byId.get(id);
  }

  byName(id: string): RolloutRow | undefined {
    return this.byId.get(id);
  }

  indexOf(id: string): number {
    return this.order.indexOf(id);
  }

  /** All that is known, in no order. */
  known(): Iterable<RolloutRow> {
    return this.byId.values();
  }

  /** Asks for what is not known of these places, then for what is near. The first reading is `refresh`. */
  need(first: number, last: number) {
    this.wanted = [first, last];
    this.ask();
  }

  /** Few at once, so that whoever scrolls far does not wait for what has passed by. */
  private ask() {
    const [first, last] = this.wanted;
    const from = Math.max(0, first - AHEAD);
    const places = [...range(first, last), ...range(last + 1, last + AHEAD), ...range(from, first)];
    for (const index of places) {
      if (this.asked.size >= AT_ONCE) return;
      if (index < (this.total ?? 0) && !this.row(index)) void this.load(Math.floor(index / BLOCK));
    }
  }

  /** The rows of these places, asking for what is not known. */
  async between(first: number, last: number): Promise<RolloutRow[]> {
    for (let at = first; at <= last; at++) {
      if (this.row(at)) continue;
      const answer = await this.options.fetch(at, Math.min(500, last - at + 1));
      this.fill(at, answer);
      if (!this.row(at)) break;
    }
    return range(first, last)
      .map((at) => this.row(at))
      .filter((row) => row !== undefined);
  }

  /** Reads again what is seen; the rest is forgotten, since its places may have changed. */
  async refresh(first: number, last: number): Promise<void> {
    const round = ++this.round;
    this.asked.clear();
    const limit = Math.min(500, Math.max(BLOCK, last - first + 1));
    try {
      const answer = await this.options.fetch(first, limit);
      if (round !== this.round) return;
      const isShort = answer.rollouts.length === 0 && answer.total > 0;
      const anchor = first > 0 ? this.order[first] : undefined;
      this.order = [];
      const at = answer.rollouts.findIndex((row) => row.rollout_id === anchor);
      if (at > 0) this.options.moved(at);
      this.fill(first, answer);
      if (isShort) this.need(0, BLOCK - 1);
    } catch (error) {
      if (round === this.round) this.options.failed(error);
    }
  }

  private async load(block: number): Promise<void> {
    if (this.asked.has(block)) return;
    this.asked.add(block);
    const round = this.round;
    let isThere = false;
    try {
      const answer = await this.options.fetch(block * BLOCK, BLOCK);
      if (round === this.round) this.fill(block * BLOCK, answer);
      isThere = true;
    } catch (error) {
      if (round === this.round) this.options.failed(error);
    }
    if (round !== this.round) return;
    this.asked.delete(block);
    if (isThere) this.ask();
  }

  private fill(offset: number, answer: RolloutPage) {
    this.total = answer.total;
    this.order.length = answer.total;
    const ids = new Set(answer.rollouts.map((row) => row.rollout_id));
    // A row that has moved is at its new place alone.
    this.order.forEach((id, at) => {
      if (id !== undefined && ids.has(id)) delete this.order[at];
    });
    let isOutrun = false;
    answer.rollouts.forEach((row, at) => {
      this.order[offset + at] = row.rollout_id;
      // The stream was faster than this answer, and the row belongs here no more.
      if (!this.keep(row) && !this.options.matches(this.byId.get(row.rollout_id)!)) isOutrun = true;
    });
    if (isOutrun) this.options.stale();
    const early = this.early;
    this.early = [];
    early.forEach((row) => this.apply(row));
    this.options.filled();
  }

  private keep(row: RolloutRow): boolean {
    const old = this.byId.get(row.rollout_id);
    if (old && !isNewer(row, old)) return false;
    heard.set(row, Date.now() / 1000);
    this.byId.set(row.rollout_id, row);
    return true;
  }

  /** What the stream tells of a rollout. */
  apply(row: RolloutRow) {
    if (this.total === null) {
      this.early.push(row);
      return;
    }
    const old = this.byId.get(row.rollout_id);
    const at = old ? this.order.indexOf(row.rollout_id) : -1;
    if (!this.keep(row)) return;
    const isWanted = this.options.matches(row);
    if (at >= 0 && !isWanted) return this.take(at);
    if (at >= 0) {
      if (old && this.options.hasMoved(old, row)) this.options.stale();
      return this.options.changed(0, 0);
    }
    if (isWanted && this.options.isNewestFirst && this.insert(row)) return;
    // It comes or goes at a place that is not known. One that stays there changes nothing of what is seen.
    const wasWanted = old !== undefined && this.options.matches(old);
    if (isWanted !== wasWanted) this.options.stale();
  }

  /** A new row has a place above the first older one, if all rows before that are known. */
  private insert(row: RolloutRow): boolean {
    let place = 0;
    for (; place < this.order.length; place++) {
      const id = this.order[place];
      if (id === undefined) return false;
      if (id < row.rollout_id) break;
    }
    this.order.splice(place, 0, row.rollout_id);
    this.total = this.order.length;
    this.options.changed(1, place);
    return true;
  }

  /** A rollout that was deleted. */
  remove(id: string) {
    const at = this.byId.has(id) ? this.order.indexOf(id) : -1;
    this.byId.delete(id);
    if (at >= 0) this.take(at);
    // It may have stood where nobody has looked yet.
    else if (this.order.includes(undefined)) this.options.stale();
  }

  private take(at: number) {
    this.order.splice(at, 1);
    this.total = this.order.length;
    this.options.changed(-1, at);
  }
}
