// Loading something for a component.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "./client";

export interface Loaded<T> {
  data: T | null;
  error: ApiError | null;
  loading: boolean;
  /** Loads again; what is shown stays until the answer is there. */
  reload: () => void;
}

/**
 * Loads when one of `deps` changes, and drops answers that are late. Where the server cannot be reached it is tried again.
 */
export function useLoad<T>(load: (abort: AbortSignal) => Promise<T>, deps: unknown[]): Loaded<T> {
  const [state, setState] = useState<Omit<Loaded<T>, "reload">>({
    data: null,
    error: null,
    loading: true,
  });
  const [round, setRound] = useState(0);
  const key = JSON.stringify(deps);
  const shown = useRef(key);
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    const isOther = shown.current !== key;
    shown.current = key;
    setState((old) => ({ data: isOther ? null : old.data, error: null, loading: true }));
    load(abort.signal).then(
      (data) => !abort.signal.aborted && setState({ data, error: null, loading: false }),
      (error: unknown) => {
        if (abort.signal.aborted) return;
        const known = error instanceof ApiError ? error : new ApiError(0, "error", String(error));
        setState((old) => ({ data: old.data, error: known, loading: false }));
        if (known.code === "unreachable")
          timer = window.setTimeout(() => setRound((n) => n + 1), 2000);
      },
    );
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [key, round]);
  const reload = useCallback(() => setRound((n) => n + 1), []);
  return { ...state, reload };
}

/** Loads again when `value` changes, at most every `wait` milliseconds; what is shown stays meanwhile. */
export function useReload(reload: () => void, value: unknown, wait = 0) {
  const shown = useRef(value);
  const latest = useRef(value);
  const timer = useRef(0);
  latest.current = value;
  useEffect(() => {
    if (timer.current || shown.current === value) return;
    timer.current = window.setTimeout(() => {
      timer.current = 0;
      shown.current = latest.current;
      reload();
    }, wait);
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
}
