// Calls of the live agents' routes, and what repeats while a page is seen.
import { useEffect, useRef } from "preact/hooks";
import { ApiError, address, get, needsToken } from "../../api/client";
import { useLoad, type Loaded } from "../../api/load";
import type { LiveAgents, LiveHealth, LiveView } from "../../api/types";
import { readHealth } from "./health";

export const agentPath = (id: string, rest = "") => `v1/live/${encodeURIComponent(id)}${rest}`;

export const turnPath = (id: string, turn: string, rest = "") =>
  agentPath(id, `/turns/${encodeURIComponent(turn)}${rest}`);

export type LiveState = LiveView["state"];

/** Whether there is a server to ask. */
export const hasServer = (state: LiveState) =>
  state === "idle" || state === "busy" || state === "unhealthy";

/** Why something that was sent did not arrive. Unlike what is read, it is not sent again by itself. */
export function failure(error: unknown): string {
  const isAway = error instanceof ApiError && error.code === "unreachable";
  return isAway ? "The server does not answer. Try again." : (error as Error).message;
}

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

export async function loadHealth(id: string, abort: AbortSignal): Promise<LiveHealth> {
  const init: RequestInit = { credentials: "same-origin", signal: abort };
  const answer = await fetch(address(agentPath(id, "/health")), init).catch(() => {
    throw new ApiError(
      0,
      "unreachable",
      "Rollcage's own server does not answer. It is tried again.",
    );
  });
  if (answer.status === 401) needsToken.value = true;
  const body: unknown = await answer.json().catch(() => null);
  return readHealth(answer.status, body);
}
