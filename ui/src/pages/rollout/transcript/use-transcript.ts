// One conversation, of which only what is seen is loaded. While the rollout runs its end is read again as it grows.
import { useEffect, useMemo, useReducer } from "preact/hooks";
import { ApiError, get } from "../../../api/client";
import type { Entry, TranscriptPage } from "../../../api/types";

const PAGE = 100;
/** Read beside what is seen, so that scrolling finds it there. */
const MARGIN = 30;
const REFRESH_MS = 700;
/** Tool results come with the next model call's request, which no event tells of. */
const POLL_MS = 2000;
const RETRY_MS = 2000;

export interface Transcript {
  total: number;
  root: number | null;
  conversations: TranscriptPage["conversations"];
  entries: Map<number, Entry>;
  isLoaded: boolean;
  error: ApiError | null;
  /** How many answered calls were there when the entries were read. */
  coveredCalls: number;
  /** Loads what is seen. */
  see: (first: number, last: number) => void;
  /** Loads everything. */
  loadAll: () => void;
}

interface Growth {
  /** It waits for a slot: there is nothing to read. */
  isQueued: boolean;
  isRunning: boolean;
  /** Changes when something was said. */
  said: number;
  /** Changes when events were missed. */
  gaps: number;
  callCount: number;
}

export function useTranscript(id: string, conversation: number | null, growth: Growth): Transcript {
  const [, draw] = useReducer((n: number) => n + 1, 0);
  const loader = useMemo(() => new Loader(id, conversation, () => draw(0)), [id, conversation]);
  loader.callCount = growth.callCount;
  useEffect(() => {
    if (growth.isQueued) return;
    loader.start();
    return () => loader.stop();
  }, [loader, growth.isQueued]);
  useEffect(() => loader.refresh(), [loader, growth.said]);
  useEffect(() => loader.readAgain(), [loader, growth.gaps, growth.isRunning]);
  useEffect(() => {
    if (!growth.isRunning) return;
    const timer = setInterval(() => loader.refresh(), POLL_MS);
    return () => clearInterval(timer);
  }, [loader, growth.isRunning]);
  return loader.state;
}

/** One request at a time: the end of the conversation first, then what is seen. */
class Loader {
  state: Transcript;
  callCount = 0;
  private abort: AbortController | null = null;
  private isBusy = false;
  private timer = 0;
  private readAt = 0;
  private wantsEnd = true;
  private wantsAll = false;
  private seen: [number, number] = [0, PAGE];
  /** Entries of an older generation are shown until they have been read again. */
  private generation = 0;
  private readonly generations = new Map<number, number>();

  private readonly id: string;
  private readonly conversation: number | null;
  private readonly draw: () => void;

  constructor(id: string, conversation: number | null, draw: () => void) {
    this.id = id;
    this.conversation = conversation;
    this.draw = draw;
    this.state = {
      total: 0,
      root: null,
      conversations: [],
      entries: new Map(),
      isLoaded: false,
      error: null,
      coveredCalls: 0,
      see: (first, last) => this.see(first, last),
      loadAll: () => {
        this.wantsAll = true;
        this.next();
      },
    };
  }

  start() {
    this.abort = new AbortController();
    this.next();
  }

  stop() {
    this.abort?.abort();
    this.abort = null;
    clearTimeout(this.timer);
    this.timer = 0;
  }

  refresh() {
    this.wantsEnd = true;
    this.next();
  }

  readAgain() {
    this.generation += 1;
    this.refresh();
  }

  private see(first: number, last: number) {
    this.seen = [first, last];
    this.next();
  }

  /** From where to read next; null when everything that is wanted is there. */
  private wanted(): number | null {
    const { total, isLoaded } = this.state;
    if (!isLoaded) return 0;
    if (this.wantsEnd) return this.changing();
    const [first, last] = this.wantsAll ? [0, total] : this.seen;
    const end = Math.min(total, last + MARGIN);
    for (let place = Math.max(0, first - MARGIN); place < end; place++)
      if (this.generations.get(place) !== this.generation) return place;
    return null;
  }

  /** The first of the last entries that may still change. */
  private changing(): number {
    const { total, entries } = this.state;
    for (let place = Math.max(0, total - 6); place < total; place++) {
      const entry = entries.get(place);
      if (entry?.tool_calls.some((call) => call.result === null)) return place;
    }
    return Math.max(0, total - 1);
  }

  private next() {
    const { abort } = this;
    if (!abort || this.isBusy || this.timer) return;
    const start = this.wanted();
    if (start === null) return;
    const wait = this.wantsEnd ? this.readAt + REFRESH_MS - Date.now() : 0;
    if (wait > 0) this.later(wait);
    else void this.read(start, abort.signal);
  }

  private later(wait: number) {
    this.timer = window.setTimeout(() => {
      this.timer = 0;
      this.next();
    }, wait);
  }

  private async read(start: number, abort: AbortSignal) {
    this.isBusy = true;
    const { callCount, generation } = this;
    const isEnd = this.wantsEnd;
    this.wantsEnd = false;
    this.readAt = Date.now();
    try {
      const query = { conversation: this.conversation, start, limit: PAGE };
      const page = await get<TranscriptPage>(`v1/rollouts/${this.id}/transcript`, query, abort);
      this.isBusy = false;
      if (abort.aborted) return;
      this.keep(page, generation, isEnd ? callCount : this.state.coveredCalls);
      this.next();
    } catch (error) {
      this.isBusy = false;
      if (abort.aborted) return;
      const known = error instanceof ApiError ? error : new ApiError(0, "error", String(error));
      this.state = { ...this.state, error: known };
      this.wantsEnd = true;
      this.later(RETRY_MS);
      this.draw();
    }
  }

  private keep(page: TranscriptPage, generation: number, coveredCalls: number) {
    const { root, total, conversations } = page;
    const isOther = this.state.isLoaded && root !== this.state.root;
    const entries = isOther ? new Map<number, Entry>() : this.state.entries;
    if (isOther) this.generations.clear();
    for (let place = total; place < this.state.total; place++) {
      entries.delete(place);
      this.generations.delete(place);
    }
    for (const entry of page.entries) {
      entries.set(entry.entry, entry);
      this.generations.set(entry.entry, generation);
    }
    const { see, loadAll } = this.state;
    this.state = {
      total,
      root,
      conversations,
      entries,
      isLoaded: true,
      error: null,
      coveredCalls,
      see,
      loadAll,
    };
    this.draw();
  }
}
