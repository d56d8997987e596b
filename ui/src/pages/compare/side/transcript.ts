// A transcript that is read from its start on, page by page, as far as somebody looks.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get } from "../../../api/client";
import type { Entry, RolloutRow, TranscriptPage } from "../../../api/types";

const PAGE = 100;

export interface ReadTranscript {
  entries: Entry[];
  total: number;
  /** Whether nothing follows, for now. */
  isComplete: boolean;
  error: ApiError | null;
  /** Reads the next page, unless one is on its way. */
  more: () => void;
  retry: () => void;
}

interface State {
  entries: Entry[];
  total: number | null;
  error: ApiError | null;
}

const NOTHING: State = { entries: [], total: null, error: null };

/** Reads the first page at once, and what is new while the rollout runs. */
export function useTranscript(id: string, row: RolloutRow | null): ReadTranscript {
  const [state, setState] = useState<State>(NOTHING);
  const held = useRef<State>(NOTHING);
  const reading = useRef<AbortController | null>(null);
  const keep = (next: State) => {
    held.current = next;
    setState(next);
  };
  const read = useCallback(
    async (start: number) => {
      if (reading.current) return;
      const abort = new AbortController();
      reading.current = abort;
      try {
        const path = `v1/rollouts/${encodeURIComponent(id)}/transcript`;
        const page = await get<TranscriptPage>(path, { start, limit: PAGE }, abort.signal);
        if (abort.signal.aborted) return;
        const entries = [...held.current.entries.slice(0, page.start), ...page.entries];
        // A page without entries is the end, whatever the total says.
        const total = page.entries.length === 0 ? entries.length : page.total;
        keep({ entries, total, error: null });
      } catch (error) {
        if (abort.signal.aborted) return;
        const known = error instanceof ApiError ? error : new ApiError(0, "error", String(error));
        keep({ ...held.current, error: known });
      } finally {
        if (reading.current === abort) reading.current = null;
      }
    },
    [id],
  );
  useEffect(() => {
    keep(NOTHING);
    void read(0);
    return () => {
      reading.current?.abort();
      reading.current = null;
    };
  }, [read]);
  const { entries, total, error } = state;
  const isComplete = total !== null && entries.length >= total;
  const more = useCallback(() => {
    const { entries, total, error } = held.current;
    const isAll = total !== null && entries.length >= total;
    if (!isAll && !error) void read(entries.length);
  }, [read]);
  const progress = row && `${row.status} ${row.calls}`;
  const known = useRef(progress);
  useEffect(() => {
    // The last entry is read again too: its tools may have answered by now.
    const isNew = known.current !== null && known.current !== progress;
    known.current = progress;
    if (isNew && isComplete) void read(Math.max(0, held.current.entries.length - 1));
  }, [progress]);
  const retry = useCallback(() => void read(held.current.entries.length), [read]);
  return { entries, total: total ?? 0, isComplete, error, more, retry };
}
