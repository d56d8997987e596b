// The phases of a rollout and how long each took, while it runs and afterwards. Pure.
import type { RolloutResult } from "../../api/types";
import { seconds } from "../../format";
import type { Live, Phase } from "./live";

export interface Segment {
  phase: string;
  /** Null where it is not known or has not come yet. */
  seconds: number | null;
  state: "done" | "active" | "ahead" | "skipped";
}

/** In the order in which they come. Only an aborted rollout is kept. */
const ALL: Phase[] = ["prepare", "sandbox", "setup", "agent", "kept", "verify", "collect"];
const PHASES: Phase[] = ALL.filter((phase) => phase !== "kept");

/** By phase, in the order in which they come. */
export function inOrder<T>(byPhase: Record<string, T>): [string, T][] {
  const place = ([phase]: [string, T]) => ALL.indexOf(phase as Phase);
  return Object.entries(byPhase).sort((one, other) => place(one) - place(other));
}

/** What the server says of a rollout beside its events, for what they leave out. */
export interface Standing {
  phase: Phase | null;
  /** Answered turns. */
  calls: number;
  idle: boolean;
  /** `none` for an agent that asks no model. */
  endpoint: string;
}

/**
 * The phase that a rollout is in. Events are there before rows, but a server keeps only the latest events of a long
 * rollout; so it is the later one of what both say.
 */
export function phaseOf(live: Live, standing: Pick<Standing, "phase"> | null): Phase | null {
  const told = live.phases.at(-1)?.phase ?? null;
  const said = standing?.phase ?? null;
  if (!told || !said) return told ?? said;
  return isBefore(told, said) ? said : told;
}

export const isBefore = (one: Phase, other: Phase) => ALL.indexOf(one) < ALL.indexOf(other);

/** `now` in the server's Unix seconds. */
export function liveSegments(live: Live, standing: Standing | null, now: number): Segment[] {
  const current = live.finished ? null : phaseOf(live, standing);
  const spent = new Map<Phase, number | null>();
  live.phases.forEach(({ phase, at }, place) => {
    const length = until(live, current, place, now);
    spent.set(phase, length === null ? null : (spent.get(phase) ?? 0) + Math.max(0, length - at));
  });
  const names = spent.has("kept") || current === "kept" ? ALL : PHASES;
  return names.map((phase) => {
    const value = spent.get(phase) ?? null;
    if (phase === current) return { phase, seconds: value, state: "active" };
    if (spent.has(phase)) return { phase, seconds: value, state: "done" };
    const isPast = live.finished !== null || (current !== null && isBefore(phase, current));
    // Where events are missing, so may be the one that told of this phase.
    return { phase, seconds: null, state: !isPast ? "ahead" : live.gaps > 0 ? "done" : "skipped" };
  });
}

/** When a phase that events told of was over; null where the event that says so is missing. */
function until(live: Live, current: Phase | null, place: number, now: number): number | null {
  const { phase } = live.phases[place]!;
  const next = live.phases[place + 1];
  if (!next) return live.finished?.at ?? (phase === current ? now : null);
  const isNext = PHASES.indexOf(next.phase) === PHASES.indexOf(phase) + 1;
  return live.gaps === 0 || isNext ? next.at : null;
}

type Ended = Pick<RolloutResult, "timings" | "setup_results" | "verify_results">;

/** A result does not tell how long its preparation took, and nothing of a phase that broke off but its commands. */
export function endedSegments({ timings, setup_results, verify_results }: Ended): Segment[] {
  const sum = (commands: { duration_s: number }[]) =>
    commands.reduce((all, it) => all + it.duration_s, 0);
  const spent: [string, number][] = [
    ["sandbox", timings.sandbox_s],
    ["setup", timings.setup_s || sum(setup_results)],
    ["agent", timings.agent_s],
    ["verify", timings.verify_s || sum(verify_results)],
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

/** What a rollout does now, in words; null where that is not known. */
export function doing(live: Live, standing: Standing | null): string | null {
  if (live.finished) return `done in ${seconds(live.finished.wallS)}`;
  const phase = phaseOf(live, standing);
  if (!phase) return live.queuedAt === null ? null : "waiting for a free slot…";
  const command = live.commands.findLast((it) => it.phase === phase && it.outcome === null);
  if (command) return `${phase} [${command.number}/${command.of}]: ${command.cmd}`;
  if (phase !== "agent") return DOING[phase] ?? `${phase}…`;
  if (live.isIdle || standing?.idle) return "the agent waits for a message";
  const turns = Math.max(live.callCount, standing?.calls ?? 0);
  if (turns === 0)
    return live.streamed || standing?.endpoint === "none"
      ? "the agent works…"
      : "the agent starts…";
  return `the agent works: ${turns.toLocaleString("en")} ${turns === 1 ? "turn" : "turns"} answered`;
}
