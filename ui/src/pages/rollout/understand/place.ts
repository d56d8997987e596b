// The narrow layout, and numbers of the address.
import { useEffect, useState } from "preact/hooks";

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
