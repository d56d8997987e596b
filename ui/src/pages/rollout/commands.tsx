// Setup and verify commands: what ran, how it ended, what it printed.
import type { CommandResult } from "../../api/types";
import { seconds } from "../../format";
import { Empty, Panel, Spinner } from "../../ui/parts";
import { AgentText } from "../../ui/text";
import { type Command, endedCommands, liveCommands } from "./command-list";
import { FoldedText } from "./folded";
import type { TabProps } from "./page";
import { useNow } from "./timeline";
import { useTask } from "./use-task";

/** Whoever opens the tab looks for what failed. */
const PASSED_LINES = 8;
const FAILED_LINES = 30;

export function CommandsTab({ rollout }: TabProps) {
  const { result, progress, live, clockAhead } = rollout;
  const { task } = useTask(rollout);
  const now = useNow(!result) + clockAhead;
  const of = (phase: "setup" | "verify") => {
    const planned = task?.[phase] ?? [];
    if (!result) return liveCommands(live, progress, phase, planned);
    const results: CommandResult[] =
      phase === "setup" ? result.setup_results : result.verify_results;
    return endedCommands(results, planned);
  };
  return (
    <div class="stack">
      <Commands
        title="Setup"
        about="before the agent"
        commands={of("setup")}
        now={now}
        isRunning={!result}
        hasTask={task !== null}
      />
      <Commands
        title="Verify"
        about="after the agent; the reward is the share that exits with 0"
        commands={of("verify")}
        now={now}
        isRunning={!result}
        hasTask={task !== null}
      />
    </div>
  );
}

interface Props {
  title: string;
  about: string;
  commands: Command[];
  now: number;
  isRunning: boolean;
  hasTask: boolean;
}

function Commands({ title, about, commands, now, isRunning, hasTask }: Props) {
  const passed = commands.filter((it) => it.exitCode === 0).length;
  const ended = commands.filter((it) => it.state === "ended").length;
  const name = (
    <>
      {title} <span class="muted small plain-weight">{about}</span>
    </>
  );
  const tally =
    commands.length > 0 ? (
      <span class="muted small number">
        {isRunning && ended < commands.length
          ? `${ended} of ${commands.length} ended`
          : `${passed} of ${commands.length} exited with 0`}
      </span>
    ) : null;
  return (
    <Panel title={name} actions={tally} flush>
      {commands.length === 0 ? (
        <Empty>{isRunning && !hasTask ? "The task is not read yet." : "The task has none."}</Empty>
      ) : (
        <ol class="commands">
          {commands.map((command, place) => (
            <CommandView key={place} name={`${title}-${place}`} command={command} now={now} />
          ))}
        </ol>
      )}
    </Panel>
  );
}

interface CommandProps {
  name: string;
  command: Command;
  now: number;
}

function CommandView({ name, command, now }: CommandProps) {
  const { state, stdout, stderr } = command;
  const time = command.seconds ?? (command.startedAt === null ? null : now - command.startedAt);
  const lines = command.exitCode === 0 ? PASSED_LINES : FAILED_LINES;
  const isSilent = stdout === "" && stderr === "";
  return (
    <li class={`command ${state === "ended" || state === "running" ? "" : "other"}`}>
      <div class="command-head">
        <Exit command={command} />
        <code class="command-line">
          <AgentText text={command.cmd} />
        </code>
        <span class="number muted small">{time === null ? "" : seconds(Math.max(0, time))}</span>
      </div>
      {stdout !== null && stdout !== "" && (
        <FoldedText name={`${name}-out`} text={stdout} lines={lines} isTerminal />
      )}
      {stderr !== null && stderr !== "" && (
        <>
          <p class="muted small">Standard error</p>
          <FoldedText name={`${name}-err`} text={stderr} lines={lines} isTerminal />
        </>
      )}
      {isSilent && <p class="muted small">It printed nothing.</p>}
    </li>
  );
}

function Exit({ command: { state, exitCode, isTimedOut } }: { command: Command }) {
  if (state === "running")
    return (
      <span class="badge run">
        <Spinner /> runs
      </span>
    );
  if (state === "waiting") return <span class="badge">to come</span>;
  if (state === "not run") return <span class="badge">not run</span>;
  if (state === "unknown")
    return (
      <span class="badge" title="It is told at the end of the rollout">
        not known
      </span>
    );
  if (isTimedOut) return <span class="badge bad">timed out</span>;
  return <span class={`badge ${exitCode === 0 ? "good" : "bad"}`}>exit {exitCode}</span>;
}
