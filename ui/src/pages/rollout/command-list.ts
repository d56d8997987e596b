// Commands that ran, run and will run, of events or of a result. Pure.
import type { CommandResult } from "../../api/types";
import type { Live, LiveCommand } from "./live";
import { isBefore, phaseOf, type Standing } from "./phases";

export interface Command {
  cmd: string;
  /** `unknown`: whether it ran, or how it ended, is told at the end of the rollout. */
  state: "waiting" | "running" | "ended" | "not run" | "unknown";
  exitCode: number | null;
  isTimedOut: boolean;
  seconds: number | null;
  /** Unix seconds, while it runs. */
  startedAt: number | null;
  /** Null where it is not known. */
  stdout: string | null;
  stderr: string | null;
}

const without = (cmd: string, state: Command["state"]): Command => ({
  cmd,
  state,
  exitCode: null,
  isTimedOut: false,
  seconds: null,
  startedAt: null,
  stdout: null,
  stderr: null,
});

/** Where a running rollout stands, as rows say it. */
type Where = Standing & { status: string };

const ended = (it: CommandResult): Command => ({
  cmd: it.cmd,
  state: "ended",
  exitCode: it.exit_code,
  isTimedOut: it.timed_out,
  seconds: it.duration_s,
  startedAt: null,
  stdout: it.stdout,
  stderr: it.stderr,
});

/** What the task has beyond what ran did not run. */
export function endedCommands(results: CommandResult[], planned: string[]): Command[] {
  const ran = results.map(ended);
  return [...ran, ...planned.slice(ran.length).map((cmd) => without(cmd, "not run"))];
}

/** A long rollout's early events may be missing; commands are told by their numbers, so later ones keep their places. */
export function liveCommands(
  live: Live,
  standing: Where | null,
  phase: "setup" | "verify",
  planned: string[],
): Command[] {
  const told = new Map<number, LiveCommand>();
  for (const it of live.commands) if (it.phase === phase) told.set(it.number, it);
  const last = Math.max(0, ...told.keys());
  const others = stateOfOthers(live, standing, phase);
  const all: Command[] = [];
  for (let number = 1; number <= Math.max(planned.length, last); number += 1) {
    const it = told.get(number);
    const cmd = it?.cmd ?? planned[number - 1] ?? "";
    // Commands run one after the other.
    const isOver = number < last || others === "not run" || others === "unknown";
    if (!it) all.push(without(cmd, number < last ? "unknown" : others));
    else if (it.outcome === null && isOver) all.push(without(cmd, "unknown"));
    else if (it.outcome) all.push(ended(it.outcome));
    else all.push({ ...without(cmd, "running"), startedAt: it.startedAt });
  }
  return all;
}

/** How it stands with commands that no event told of. */
function stateOfOthers(
  live: Live,
  standing: Where | null,
  phase: "setup" | "verify",
): Command["state"] {
  const current = phaseOf(live, standing);
  const isOver = live.finished !== null || (current !== null && isBefore(phase, current));
  if (isOver) return live.seq > 0 && live.gaps === 0 ? "not run" : "unknown";
  // A rollout of another process tells nothing here.
  const isTold = current !== null || standing?.status === "queued";
  return isTold ? "waiting" : "unknown";
}
