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

const rowReaders = new Set<RowReader>();
const removedReaders = new Set<(id: string) => void>();
const watched = new Map<string, { seq: number; readers: Set<EventReader> }>();
let source: EventSource | null = null;
let retry = 0;
let wait = 500;

function url(): string {
  const watch = [...watched].map(([id, { seq }]) => `${id}:${seq}`);
  return address("v1/events", { watch });
}

function open() {
  clearTimeout(retry);
  source?.close();
  source = null;
  if (isSaved() || document.hidden || needsToken.value) return;
  const opened = new EventSource(url(), { withCredentials: true });
  source = opened;
  const parse = <T>(message: Event) => JSON.parse((message as MessageEvent<string>).data) as T;
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
    const entry = watched.get(event.rollout);
    if (!entry || event.seq <= entry.seq) return;
    entry.seq = event.seq;
    entry.readers.forEach((read) => read(event));
  });
  opened.onerror = () => {
    opened.close();
    if (source !== opened) return;
    connection.value = "lost";
    retry = window.setTimeout(open, wait);
    wait = Math.min(wait * 2, 10_000);
  };
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
  const entry = watched.get(id) ?? { seq, readers: new Set<EventReader>() };
  entry.readers.add(read);
  watched.set(id, entry);
  reopen();
  return () => {
    entry.readers.delete(read);
    if (entry.readers.size === 0 && watched.get(id) === entry) {
      watched.delete(id);
      reopen();
    }
  };
}
