// All sampled tokens of one call, page after page.
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

/** Shows the first page at once and goes on until all are there: the picture of the whole needs all of them. */
export function useSampled(id: string, turn: number): Sampled {
  const [round, setRound] = useState(0);
  const retry = () => setRound((n) => n + 1);
  const none = { tokens: [], total: null, isExact: false, error: null };
  const [state, setState] = useState<Omit<Sampled, "retry">>(none);
  useEffect(() => {
    const abort = new AbortController();
    setState(none);
    loadAll(id, turn, abort.signal, setState).catch((error: unknown) => {
      if (abort.signal.aborted) return;
      const known = error instanceof ApiError ? error : new ApiError(0, "error", String(error));
      setState((old) => ({ ...old, error: known }));
    });
    return () => abort.abort();
  }, [id, turn, round]);
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
