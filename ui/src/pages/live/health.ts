// What is known of an agent's server. Pure functions.
import { ApiError } from "../../api/client";
import type { LiveHealth } from "../../api/types";

const SERVERS: Record<LiveHealth["server"], string> = {
  healthy: "Its server answers.",
  not_running: "Its server does not run.",
  silent: "Its server runs, and does not answer.",
  foreign: "Something else answers in its place.",
};

/** An agent that is not healthy is answered with 503 and the same body, which is no error here; anything else is. */
export function readHealth(status: number, body: unknown): LiveHealth {
  const members = (typeof body === "object" && body !== null ? body : {}) as Record<
    string,
    unknown
  >;
  if ((status === 200 || status === 503) && typeof members.server === "string") {
    return body as LiveHealth;
  }
  const error = (members.error ?? {}) as { code?: unknown; message?: unknown };
  const message = typeof error.message === "string" ? error.message : `HTTP ${status}`;
  throw new ApiError(status, typeof error.code === "string" ? error.code : "error", message);
}

export function aboutHealth(health: LiveHealth): string {
  const version = health.version ? ` Version ${health.version}.` : "";
  return `${SERVERS[health.server] ?? health.server}${version}`;
}
