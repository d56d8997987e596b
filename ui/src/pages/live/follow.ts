// The replies of one turn as they come. A browser has six connections: only the turn that runs is followed, and only
// while the page is seen.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, address, get } from "../../api/client";
import type { Reply, TurnReplies } from "../../api/types";
import { turnPath } from "./api";
import { NOTHING_TOLD, tell, type Told } from "./replies";

const KINDS = ["delta", "reasoning", "tool", "permission", "question", "final", "error"];
const READ_AGAIN_MS = 2000;
const WAIT_MS = 500;
const WAIT_MAX_MS = 10_000;

export interface Followed {
  told: Told;
  error: ApiError | null;
  /** Whether the connection is being made anew. */
  isLost: boolean;
}

/** Follows a turn to its end; ended turns are read once, with `mode` `read`. */
export function useTurn(id: string, turn: string, mode: "follow" | "read" | "none"): Followed {
  const [told, setTold] = useState<Told>(NOTHING_TOLD);
  const [error, setError] = useState<ApiError | null>(null);
  const [isLost, setLost] = useState(false);
  const held = useRef<Told>(NOTHING_TOLD);
  useEffect(() => {
    // What was followed to its end needs no reading.
    if (mode === "none" || held.current.end) return;
    const keep = (next: Told) => {
      held.current = next;
      setTold(next);
    };
    if (mode === "follow") return follow(id, turn, held, keep, setLost);
    return read(id, turn, (replies) => keep(tell(held.current, replies)), setError);
  }, [id, turn, mode]);
  return { told, error, isLost };
}

/** Reads all replies; where the server cannot be reached it is tried again. Returns how to stop. */
function read(
  id: string,
  turn: string,
  take: (replies: Reply[]) => void,
  setError: (error: ApiError | null) => void,
): () => void {
  const abort = new AbortController();
  let retry = 0;
  const ask = () =>
    get<TurnReplies>(turnPath(id, turn), {}, abort.signal).then(
      ({ replies }) => {
        if (abort.signal.aborted) return;
        setError(null);
        take(replies);
      },
      (problem: unknown) => {
        if (abort.signal.aborted) return;
        const error = problem as ApiError;
        setError(error);
        if (error.code === "unreachable") retry = window.setTimeout(ask, READ_AGAIN_MS);
      },
    );
  void ask();
  return () => {
    abort.abort();
    clearTimeout(retry);
  };
}

/** Returns how to stop. */
function follow(
  id: string,
  turn: string,
  held: { readonly current: Told },
  keep: (next: Told) => void,
  setLost: (isLost: boolean) => void,
): () => void {
  let source: EventSource | null = null;
  let [retry, frame, wait] = [0, 0, WAIT_MS];
  let waiting: Reply[] = [];
  let isOver = false;
  const flush = () => {
    frame = 0;
    const replies = waiting;
    waiting = [];
    keep(tell(held.current, replies));
  };
  const take = (message: MessageEvent<string>) => {
    const reply = JSON.parse(message.data) as Reply;
    waiting.push(reply);
    wait = WAIT_MS;
    // Words come faster than they can be drawn.
    frame ||= requestAnimationFrame(flush);
    if (reply.kind === "final" || reply.kind === "error") {
      isOver = true;
      close();
    }
  };
  const close = () => {
    clearTimeout(retry);
    source?.close();
    source = null;
  };
  const open = () => {
    close();
    if (document.hidden || isOver) return;
    const after = Math.max(held.current.seq, waiting.at(-1)?.seq ?? 0);
    const opened = new EventSource(address(turnPath(id, turn, "/events"), { after }));
    source = opened;
    // An agent that thinks says nothing for a while, on a connection that is there.
    opened.onopen = () => setLost(false);
    for (const kind of KINDS) {
      opened.addEventListener(kind, (message) => {
        // A broken connection is an event of the same name as a failed turn, but has no data.
        if (message instanceof MessageEvent) take(message as MessageEvent<string>);
        else if (source === opened) lose();
      });
    }
  };
  const lose = () => {
    close();
    setLost(true);
    retry = window.setTimeout(open, wait);
    wait = Math.min(2 * wait, WAIT_MAX_MS);
  };
  open();
  document.addEventListener("visibilitychange", open);
  return () => {
    close();
    document.removeEventListener("visibilitychange", open);
    if (frame) {
      cancelAnimationFrame(frame);
      flush();
    }
  };
}
