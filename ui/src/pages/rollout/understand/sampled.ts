// All sampled tokens of one turn, page after page.
import { useEffect, useState } from "preact/hooks";
import { ApiError, get } from "../../../api/client";
import type { Token, TokenPage } from "../../../api/types";

/** With alternatives a token is some 400 bytes. */
const PAGE = 2000;

export interface Sampled {
  tokens: Token[];
  total: number | null;
  isExact: boolean;
  error: ApiError | null;
  retry: () => void;
}

/** As long as other loads wait for a server that is away. */
const RETRY_MS = 2000;

/**
 * Shows the first page at once and goes on until all are there: the picture of the whole needs all of them. A turn that is
 * not answered has none, and is read again as soon as it is.
 */
export function useSampled(id: string, turn: number, isAnswered: boolean): Sampled {
  const [round, setRound] = useState(0);
  const retry = () => setRound((n) => n + 1);
  const none = { tokens: [], total: null, isExact: false, error: null };
  const [state, setState] = useState<Omit<Sampled, "retry">>(none);
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    setState(none);
    if (!isAnswered) return;
    loadAll(id, turn, abort.signal, setState).catch((error: unknown) => {
      if (abort.signal.aborted) return;
      const known = error instanceof ApiError ? error : new ApiError(0, "error", String(error));
      setState((old) => ({ ...old, error: known }));
      if (known.code === "unreachable") timer = window.setTimeout(retry, RETRY_MS);
    });
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [id, turn, isAnswered, round]);
  return { ...state, retry };
}

async function loadAll(
  id: string,
  turn: number,
  abort: AbortSignal,
  show: (state: Omit<Sampled, "retry">) => void,
) {
  let tokens: Token[] = [];
  for (;;) {
    const page = await get<TokenPage>(
      `v1/rollouts/${id}/turns/${turn}/tokens`,
      { part: "completion", start: tokens.length, limit: PAGE },
      abort,
    );
    if (abort.aborted) return;
    tokens = tokens.concat(page.tokens);
    show({ tokens, total: page.total, isExact: page.is_exact, error: null });
    if (tokens.length >= page.total || page.tokens.length === 0) return;
  }
}
