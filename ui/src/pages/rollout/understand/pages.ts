// Pages of a long list, loaded as they are seen.
import { useEffect, useMemo, useReducer } from "preact/hooks";
import { ApiError } from "../../../api/client";

export interface Page<T> {
  items: T[];
  total: number;
}

/** As long as other loads wait for a server that is away. */
const RETRY_MS = 2000;

type Load<T> = (start: number, limit: number, abort: AbortSignal) => Promise<Page<T>>;

/** Knows which pages are there, which are asked for, and which may be out of date. */
export class PageCache<T> {
  total: number | null = null;
  error: ApiError | null = null;
  private readonly pages = new Map<number, T[]>();
  private readonly stale = new Set<number>();
  private readonly asked = new Map<number, AbortController>();
  private range: [number, number] = [0, 0];
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly size: number;
  private readonly load: Load<T>;
  private readonly changed: () => void;

  constructor(size: number, load: Load<T>, changed: () => void) {
    [this.size, this.load, this.changed] = [size, load, changed];
  }

  at(index: number): T | undefined {
    return this.pages.get(Math.floor(index / this.size))?.[index % this.size];
  }

  /** Loads what is missing of these items. */
  need(first: number, last: number) {
    this.range = [first, last];
    const [from, to] = [Math.floor(first / this.size), Math.floor(last / this.size)];
    for (let page = from; page <= to; page += 1) {
      if (this.asked.has(page)) continue;
      if (!this.pages.has(page) || this.stale.has(page)) this.ask(page);
    }
  }

  /** Loads again what is seen now, and the rest when it is seen; what is there stays until then. */
  refresh() {
    for (const page of this.pages.keys()) this.stale.add(page);
    this.need(...this.range);
  }

  /** Loads once more what could not be loaded. */
  readonly retry = () => {
    clearTimeout(this.timer);
    this.need(...this.range);
  };

  stop() {
    clearTimeout(this.timer);
    for (const abort of this.asked.values()) abort.abort();
    this.asked.clear();
  }

  private ask(page: number) {
    const abort = new AbortController();
    this.asked.set(page, abort);
    this.stale.delete(page);
    this.load(page * this.size, this.size, abort.signal).then(
      ({ items, total }) => {
        if (abort.signal.aborted) return;
        this.asked.delete(page);
        this.pages.set(page, items);
        [this.total, this.error] = [total, null];
        this.changed();
      },
      (error: unknown) => {
        if (abort.signal.aborted) return;
        this.asked.delete(page);
        this.error = error instanceof ApiError ? error : new ApiError(0, "error", String(error));
        // Pages that were there stay out of date.
        if (this.pages.has(page)) this.stale.add(page);
        if (this.error.code === "unreachable") {
          clearTimeout(this.timer);
          this.timer = setTimeout(this.retry, RETRY_MS);
        }
        this.changed();
      },
    );
  }
}

/** Pages of `size` items; another list as soon as one of `deps` changes. */
export function usePages<T>(size: number, load: Load<T>, deps: unknown[]): PageCache<T> {
  const [, draw] = useReducer((n: number) => n + 1, 0);
  const key = JSON.stringify(deps);
  const cache = useMemo(
    () => new PageCache(size, load, () => draw(undefined as never)),
    [key, size],
  );
  useEffect(() => {
    cache.need(0, 0);
    return () => cache.stop();
  }, [cache]);
  return cache;
}
