// A transcript that is read from its start on, page by page, as far as somebody looks.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get } from "../../../api/client";
import type { Entry, RolloutRow, TranscriptPage } from "../../../api/types";
import { isComplete, NOTHING_READ, Reader, type Read } from "./reader";

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

/** Reads the first page at once, and what is new while the rollout runs. */
export function useTranscript(id: string, row: RolloutRow | null): ReadTranscript {
  const [read, setRead] = useState<Read>(NOTHING_READ);
  const reader = useRef<Reader | null>(null);
  useEffect(() => {
    const path = `v1/rollouts/${encodeURIComponent(id)}/transcript`;
    const made = new Reader(
      (start, abort) => get<TranscriptPage>(path, { start, limit: PAGE }, abort),
      setRead,
    );
    reader.current = made;
    setRead(NOTHING_READ);
    made.more();
    return () => made.stop();
  }, [id]);
  const progress = row && `${row.status} ${row.calls}`;
  const known = useRef(progress);
  useEffect(() => {
    const isNew = known.current !== null && known.current !== progress;
    known.current = progress;
    if (isNew) reader.current?.grown();
  }, [progress]);
  const more = useCallback(() => reader.current?.more(), []);
  const retry = useCallback(() => reader.current?.retry(), []);
  const { entries, total, error } = read;
  return { entries, total: total ?? 0, isComplete: isComplete(read), error, more, retry };
}
