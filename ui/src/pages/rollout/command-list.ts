// Commands that ran, run and will run, of events or of a result. Pure.
import type { CommandResult } from "../../api/types";
import type { LiveCommand } from "./live";

export interface Command {
  cmd: string;
  state: "waiting" | "running" | "ended";
  exitCode: number | null;
  isTimedOut: boolean;
  seconds: number | null;
  /** Unix seconds, while it runs. */
  startedAt: number | null;
  /** Null where it is not known. */
  stdout: string | null;
  stderr: string | null;
}

const waiting = (cmd: string): Command => ({
  cmd,
  state: "waiting",
  exitCode: null,
  isTimedOut: false,
  seconds: null,
  startedAt: null,
  stdout: null,
  stderr: null,
});

/** What the task has beyond what ran did not run. */
export function endedCommands(results: CommandResult[], planned: string[]): Command[] {
  const ran = results.map((it): Command => ({
    cmd: it.cmd,
    state: "ended",
    exitCode: it.exit_code,
    isTimedOut: it.timed_out,
    seconds: it.duration_s,
    startedAt: null,
    stdout: it.stdout,
    stderr: it.stderr,
  }));
  return [...ran, ...planned.slice(ran.length).map(waiting)];
}

export function liveCommands(commands: LiveCommand[], phase: string, planned: string[]): Command[] {
  const told = commands.filter((it) => it.phase === phase);
  const known = told.map((it): Command => ({
    ...waiting(it.cmd),
    state: it.endedAt === null ? "running" : "ended",
    exitCode: it.exitCode,
    seconds: it.endedAt === null ? null : it.endedAt - it.startedAt,
    startedAt: it.startedAt,
  }));
  return [...known, ...planned.slice(known.length).map(waiting)];
}
