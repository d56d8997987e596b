// Following a rollout that still runs.
import { useEffect, useRef } from "preact/hooks";
import { onRows, streamStarts } from "../../../api/stream";

/** Calls `changed` when the rollout has more calls than before, when it ends, and after the connection was lost. */
export function useGrowth(id: string, changed: () => void) {
  const current = useRef(changed);
  current.current = changed;
  useEffect(() => {
    let seen = "";
    let timer = 0;
    // A busy rollout changes many times a second; a page that is read need not.
    const plan = () => {
      timer ||= window.setTimeout(() => {
        timer = 0;
        current.current();
      }, 700);
    };
    const stopRows = onRows((row) => {
      if (row.rollout_id !== id) return;
      const now = `${row.calls} ${row.status}`;
      // The first one may be the last: what was loaded before it may be out of date.
      if (seen !== now) plan();
      seen = now;
    });
    let starts = streamStarts.peek();
    const stopStarts = streamStarts.subscribe((count) => {
      if (count > starts && starts > 0) plan();
      starts = count;
    });
    return () => {
      clearTimeout(timer);
      stopRows();
      stopStarts();
    };
  }, [id]);
}
