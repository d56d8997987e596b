// Reading the turns of a chat: the newest again and again, earlier ones when they are wanted.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get } from "../../api/client";
import type { LiveTurnPage, TurnSummary } from "../../api/types";
import { agentPath, failure, usePolled } from "./api";
import { NO_HISTORY, withEarlier, withNewest, withSent, type History } from "./history";

/** More than can be open at once, so that what is not on the newest page has ended. */
const PAGE = 30;
const POLL_MS = 4000;

export interface Turns {
  history: History;
  /** Whether the first answer is on its way. */
  isFirst: boolean;
  error: ApiError | null;
  reload: () => void;
  add: (turn: TurnSummary) => void;
  earlier: { read: () => void; isReading: boolean; error: ApiError | null };
}

/** For one agent: a component that shows another one is made anew. */
export function useTurns(id: string): Turns {
  const [history, setHistory] = useState<History>(NO_HISTORY);
  const path = agentPath(id, "/turns");
  const newest = usePolled((abort) => get<LiveTurnPage>(path, { limit: PAGE }, abort), POLL_MS, [
    id,
  ]);
  useEffect(() => {
    const page = newest.data;
    if (page) setHistory((old) => withNewest(old, page));
  }, [newest.data]);
  const [isReading, setReading] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const reading = useRef<AbortController | null>(null);
  useEffect(() => () => reading.current?.abort(), []);
  const read = async () => {
    if (reading.current) return;
    const abort = new AbortController();
    reading.current = abort;
    setReading(true);
    setError(null);
    try {
      const offset = history.known.length;
      const page = await get<LiveTurnPage>(path, { offset, limit: PAGE }, abort.signal);
      setHistory((old) => withEarlier(old, offset, page));
    } catch (problem) {
      if (!abort.signal.aborted) setError(new ApiError(0, "error", failure(problem)));
    }
    reading.current = null;
    setReading(false);
  };
  return {
    history,
    isFirst: newest.loading && !newest.data,
    error: newest.error,
    reload: newest.reload,
    add: (turn) => setHistory((old) => withSent(old, turn)),
    earlier: { read: () => void read(), isReading, error },
  };
}
