// Calls of the live agents' routes, and what repeats while a page is seen.
import { useEffect, useRef } from "preact/hooks";
import { address, get } from "../../api/client";
import { useLoad, type Loaded } from "../../api/load";
import type { LiveAgents, LiveHealth, LiveView } from "../../api/types";

export const agentPath = (id: string, rest = "") => `v1/live/${encodeURIComponent(id)}${rest}`;

export const turnPath = (id: string, turn: string, rest = "") =>
  agentPath(id, `/turns/${encodeURIComponent(turn)}${rest}`);

export type LiveState = LiveView["state"];

/** Whether there is a server to ask. */
export const hasServer = (state: LiveState) =>
  state === "idle" || state === "busy" || state === "unhealthy";

/** Loads again and again, as long as the page is seen. */
export function usePolled<T>(
  load: (abort: AbortSignal) => Promise<T>,
  everyMs: number,
  deps: unknown[],
): Loaded<T> {
  const loaded = useLoad(load, deps);
  const { reload } = loaded;
  const isLoading = useRef(false);
  isLoading.current = loaded.loading;
  useEffect(() => {
    // A slow answer is waited for: asking again would throw it away.
    const again = () => !document.hidden && !isLoading.current && reload();
    const timer = window.setInterval(again, everyMs);
    document.addEventListener("visibilitychange", again);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", again);
    };
  }, [everyMs, reload]);
  return loaded;
}

export const loadAgents = (abort: AbortSignal) => get<LiveAgents>("v1/live", {}, abort);

/** An agent that is not healthy answers 503 with the same body, which is no error here. */
export async function loadHealth(id: string, abort: AbortSignal): Promise<LiveHealth> {
  const answer = await fetch(address(agentPath(id, "/health")), {
    credentials: "same-origin",
    signal: abort,
  });
  return (await answer.json()) as LiveHealth;
}
