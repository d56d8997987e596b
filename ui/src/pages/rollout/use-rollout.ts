// One rollout, kept up to date: where it stands, its events while it runs, and its result once it has ended.
import { useEffect, useRef, useState } from "preact/hooks";
import { type ApiError, get, isSaved } from "../../api/client";
import { useLoad } from "../../api/load";
import { onRows, streamStarts, watch } from "../../api/stream";
import type { RolloutEvent, RolloutProgress, RolloutResult, RolloutRow } from "../../api/types";
import { fold, type Live, NOTHING } from "./live";
import { phaseOf } from "./phases";

type Answer = RolloutProgress | (RolloutResult & { status: "ended" });

export interface Rollout {
  id: string;
  /** Once it has ended. */
  result: RolloutResult | null;
  /** Until it has ended. */
  progress: RolloutProgress | null;
  live: Live;
  /** The server's clock less this one's, in seconds. */
  clockAhead: number;
  isRemoved: boolean;
  error: ApiError | null;
  reload: () => void;
}

/** Events come in bursts; they are drawn together. */
const BATCH_MS = 50;
/** A rollout of another process sends no events here. */
const POLL_MS = 5000;
/** Between the event that tells of the end and the result. */
const AGAIN_MS = 300;

export function useRollout(id: string): Rollout {
  const { data, error, reload } = useLoad(
    (abort) => get<Answer>(`v1/rollouts/${id}`, { trace: "none" }, abort),
    [id],
  );
  const [row, setRow] = useState<RolloutRow | null>(null);
  const [isRemoved, setRemoved] = useState(false);
  const live = useLive(id, data !== null && data.status !== "ended");
  const clock = useRef(0);
  const result = data?.status === "ended" ? (data as RolloutResult) : null;
  const standing = data && !result ? (data as RolloutProgress) : null;
  useEffect(() => {
    if (standing?.status === "running" && standing.wall_s)
      clock.current = standing.started_at + standing.wall_s - Date.now() / 1000;
  }, [standing]);

  useEffect(
    () =>
      onRows(
        (changed) => {
          if (changed.rollout_id === id) setRow(changed);
        },
        (removed) => removed === id && setRemoved(true),
      ),
    [id],
  );
  const isOpen = !result && !isSaved();
  const isOver = live.finished !== null || row?.status === "ended";
  const starts = streamStarts.value;
  useEffect(() => {
    if (isOpen && data) reload();
  }, [isOver, starts]);
  useEffect(() => {
    if (!isOpen || !data) return;
    const timer = setTimeout(reload, isOver ? AGAIN_MS : POLL_MS);
    return () => clearTimeout(timer);
  }, [isOpen, isOver, data, error]);

  const known = standing && row && row.status !== "ended" ? { ...standing, ...row } : standing;
  const phase = phaseOf(live, known);
  const progress = known && phase ? { ...known, status: "running" as const, phase } : known;
  return { id, result, progress, live, clockAhead: clock.current, isRemoved, error, reload };
}

function useLive(id: string, isRunning: boolean): Live {
  const [live, setLive] = useState(NOTHING);
  useEffect(() => {
    if (!isRunning || isSaved()) return;
    setLive(NOTHING);
    let waiting: RolloutEvent[] = [];
    let timer = 0;
    const flush = () => {
      const events = waiting;
      waiting = [];
      timer = 0;
      setLive((old) => fold(old, events));
    };
    const stop = watch(id, 0, (event) => {
      waiting.push(event);
      timer ||= window.setTimeout(flush, BATCH_MS);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [id, isRunning]);
  return live;
}
