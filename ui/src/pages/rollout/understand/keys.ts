// Keys of a tab, and the narrow layout.
import { useEffect, useRef, useState } from "preact/hooks";

/** Whether a key is meant for a field, a dialog or the browser. */
function isTyped(event: KeyboardEvent): boolean {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return true;
  const target = event.target;
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || target.closest("input, select, textarea, dialog") !== null;
}

/** Handles keys anywhere on the page; a handler that returns `true` has used the key. */
export function useKeys(handle: (key: string) => boolean) {
  const current = useRef(handle);
  current.current = handle;
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      if (!isTyped(event) && current.current(event.key)) event.preventDefault();
    };
    document.addEventListener("keydown", listen);
    return () => document.removeEventListener("keydown", listen);
  }, []);
}

export function useIsNarrow(width = 760): boolean {
  const [query] = useState(() => matchMedia(`(max-width: ${width}px)`));
  const [isNarrow, setNarrow] = useState(query.matches);
  useEffect(() => {
    const change = () => setNarrow(query.matches);
    query.addEventListener("change", change);
    return () => query.removeEventListener("change", change);
  }, []);
  return isNarrow;
}

/** A number of the address; null where there is none, or it is no natural number. */
export function numberParam(query: URLSearchParams, name: string): number | null {
  const text = query.get(name);
  return text !== null && /^\d{1,9}$/.test(text) ? Number(text) : null;
}
