// The one event stream of a page: rows of all rollouts, and the events of those that are watched. A browser has six
// connections to a server, so only visible pages hold one.
import { signal } from "@preact/signals";
import { address, isSaved, needsToken } from "./client";
import type { RolloutEvent, RolloutRow } from "./types";

type RowReader = (row: RolloutRow) => void;
type EventReader = (event: RolloutEvent) => void;

/** `live` while events arrive; `lost` while the server is away. */
export const connection = signal<"connecting" | "live" | "lost">("connecting");
/** Grows each time the stream begins anew: whoever keeps a list reads it again. */
export const streamStarts = signal(0);
/** Grows each time the stream is lost or refused. A browser does not tell scripts which of the two it was. */
export const streamFailures = signal(0);

/** The server sends something every 15 seconds. A connection that is silent for longer than this is a dead one. */
const SILENCE_MS = 40_000;

const rowReaders = new Set<RowReader>();
const removedReaders = new Set<(id: string) => void>();
/** Whoever reads a rollout's events, and the last one that it was told. */
interface Watcher {
  seq: number;
  read: EventReader;
}
const watched = new Map<string, Set<Watcher>>();
let source: EventSource | null = null;
let retry = 0;
let silence = 0;
let wait = 500;

/** From where the one that has read least needs them; the others are not told anything twice. */
function url(): string {
  const watch = [...watched].map(([id, watchers]) => {
    const places = [...watchers].map(({ seq }) => seq);
    return `${id}:${Math.min(...places)}`;
  });
  return address("v1/events", { watch });
}

function open() {
  clearTimeout(retry);
  clearTimeout(silence);
  source?.close();
  source = null;
  if (isSaved() || document.hidden || needsToken.value) return;
  const opened = new EventSource(url(), { withCredentials: true });
  source = opened;
  const fail = () => {
    opened.close();
    if (source !== opened) return;
    clearTimeout(silence);
    connection.value = "lost";
    retry = window.setTimeout(open, wait);
    wait = Math.min(wait * 2, 10_000);
    streamFailures.value += 1;
  };
  const expectMore = () => {
    clearTimeout(silence);
    silence = window.setTimeout(fail, SILENCE_MS);
  };
  const parse = <T>(message: Event) => JSON.parse((message as MessageEvent<string>).data) as T;
  expectMore();
  for (const name of ["hello", "row", "removed", "event", "beat"])
    opened.addEventListener(name, expectMore);
  opened.addEventListener("hello", () => {
    wait = 500;
    connection.value = "live";
    streamStarts.value += 1;
  });
  opened.addEventListener("row", (message) => {
    const row = parse<RolloutRow>(message);
    rowReaders.forEach((read) => read(row));
  });
  opened.addEventListener("removed", (message) => {
    const { rollout_id } = parse<{ rollout_id: string }>(message);
    removedReaders.forEach((read) => read(rollout_id));
  });
  opened.addEventListener("event", (message) => {
    const event = parse<RolloutEvent>(message);
    for (const watcher of watched.get(event.rollout) ?? []) {
      if (event.seq <= watcher.seq) continue;
      watcher.seq = event.seq;
      watcher.read(event);
    }
  });
  opened.onerror = fail;
}

let isPlanned = false;
/** Once for everything that changes in one go. */
function reopen() {
  if (isPlanned) return;
  isPlanned = true;
  queueMicrotask(() => {
    isPlanned = false;
    open();
  });
}

/** Starts the stream; call it once. */
export function startStream() {
  document.addEventListener("visibilitychange", reopen);
  addEventListener("online", reopen);
  needsToken.subscribe(reopen);
}

/** Rows of all rollouts as they change. Returns how to stop. */
export function onRows(read: RowReader, removed?: (id: string) => void): () => void {
  rowReaders.add(read);
  if (removed) removedReaders.add(removed);
  return () => {
    rowReaders.delete(read);
    if (removed) removedReaders.delete(removed);
  };
}

/** The events of one rollout after `seq`, each once. Returns how to stop. */
export function watch(id: string, seq: number, read: EventReader): () => void {
  const watchers = watched.get(id) ?? new Set<Watcher>();
  const watcher = { seq, read };
  watchers.add(watcher);
  watched.set(id, watchers);
  reopen();
  return () => {
    watchers.delete(watcher);
    if (watchers.size === 0 && watched.get(id) === watchers) {
      watched.delete(id);
      reopen();
    }
  };
}
