// What a live agent does, in a word.
import { Spinner } from "../../ui/parts";
import type { LiveState } from "./api";

const STATES: Record<LiveState, [string, string, string]> = {
  starting: ["STARTING", "run", "Its server is not healthy yet"],
  idle: ["IDLE", "good", "It waits for a message"],
  busy: ["BUSY", "run", "It works on a turn"],
  sleeping: ["SLEEPING", "info", "Saved, without a sandbox; its next turn wakes it"],
  unhealthy: ["UNHEALTHY", "bad", "Its server does not answer; the next turn starts it again"],
  stopped: ["STOPPED", "", "Saved and ended; it can be started again"],
  failed: ["FAILED", "bad", "It could not be started"],
};

export function LiveBadge({ state }: { state: LiveState }) {
  const [name, kind, about] = STATES[state] ?? [state, "", ""];
  return (
    <span class={`badge ${kind}`} title={about}>
      {(state === "starting" || state === "busy") && <Spinner />} {name}
    </span>
  );
}

export const aboutState = (state: LiveState) => STATES[state]?.[2] ?? "";
