// The phases of a rollout and how long each took, while it runs and afterwards. Pure.
import type { RolloutResult } from "../../api/types";
import { seconds } from "../../format";
import type { Live } from "./live";

export interface Segment {
  phase: string;
  /** Null where it is not known or has not come yet. */
  seconds: number | null;
  state: "done" | "active" | "ahead" | "skipped";
}

const PHASES = ["prepare", "sandbox", "setup", "agent", "verify", "collect"];

/** By phase, in the order in which they come. */
export function inOrder<T>(byPhase: Record<string, T>): [string, T][] {
  const place = ([phase]: [string, T]) => PHASES.indexOf(phase);
  return Object.entries(byPhase).sort((one, other) => place(one) - place(other));
}

/** `now` in the server's Unix seconds. */
export function liveSegments(live: Live, now: number): Segment[] {
  const end = live.finished?.at ?? now;
  const spent = new Map<string, number>();
  live.phases.forEach(({ phase, at }, place) => {
    const until = live.phases[place + 1]?.at ?? end;
    spent.set(phase, (spent.get(phase) ?? 0) + Math.max(0, until - at));
  });
  const current = live.finished ? null : (live.phases.at(-1)?.phase ?? null);
  const names = spent.has("kept") ? [...PHASES.slice(0, 4), "kept", ...PHASES.slice(4)] : PHASES;
  const reached = current ? names.indexOf(current) : -1;
  return names.map((phase, place) => {
    const value = spent.get(phase) ?? null;
    if (phase === current) return { phase, seconds: value, state: "active" };
    if (value !== null) return { phase, seconds: value, state: "done" };
    const isPast = live.finished !== null || place < reached;
    return { phase, seconds: null, state: isPast ? "skipped" : "ahead" };
  });
}

/** A result does not tell how long its preparation took. */
export function endedSegments({ timings }: Pick<RolloutResult, "timings">): Segment[] {
  const spent: [string, number][] = [
    ["sandbox", timings.sandbox_s],
    ["setup", timings.setup_s],
    ["agent", timings.agent_s],
    ["verify", timings.verify_s],
    ["collect", timings.collect_s],
  ];
  return spent.map(([phase, value]) =>
    value > 0
      ? { phase, seconds: value, state: "done" }
      : { phase, seconds: null, state: "skipped" },
  );
}

const DOING: Record<string, string> = {
  prepare: "preparing agent and endpoint…",
  sandbox: "starting the sandbox…",
  setup: "setting up…",
  verify: "verifying…",
  collect: "collecting…",
  kept: "aborted; the sandbox is kept for a while, so that it can still be graded",
};

/** What a rollout does now, in words; null before the first event. */
export function doing(live: Live): string | null {
  if (live.finished) return `done in ${seconds(live.finished.wallS)}`;
  const phase = live.phases.at(-1)?.phase;
  if (!phase) return live.queuedAt === null ? null : "waiting for a free slot…";
  const command = live.commands.findLast((it) => it.phase === phase && it.endedAt === null);
  if (command) return `${phase} [${command.number}/${command.of}]: ${command.cmd}`;
  if (phase !== "agent") return DOING[phase] ?? `${phase}…`;
  if (live.isIdle) return "the agent waits for a message";
  if (live.callCount === 0) return live.streamed ? "the agent works" : "the agent starts…";
  return `the agent works: ${live.callCount} model call${live.callCount === 1 ? "" : "s"} answered`;
}
