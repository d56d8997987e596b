// One turn of the chat: what was said to the agent, and everything that it did.
import { useEffect, useState } from "preact/hooks";
import { post } from "../../api/client";
import type { TurnSummary } from "../../api/types";
import { count, dollars, seconds, time } from "../../format";
import { Problem, Spinner } from "../../ui/parts";
import { AgentText, TerminalText } from "../../ui/text";
import { failure, turnPath } from "./api";
import { Ask } from "./ask";
import { useTurn, type Followed } from "./follow";
import { inputLine, type End, type Item } from "./replies";

interface Props {
  id: string;
  turn: TurnSummary;
  /** Its place among the open ones, from 0; null for one that has ended. */
  place: number | null;
  /** Whether its replies are read at once; otherwise somebody asks for them. */
  isRead: boolean;
  onEnd: () => void;
}

export function TurnBlock({ id, turn, place, isRead, onEnd }: Props) {
  const [isWanted, setWanted] = useState(isRead);
  const mode = place === 0 ? "follow" : place === null && isWanted ? "read" : "none";
  const followed = useTurn(id, turn.turn_id, mode);
  const { told } = followed;
  const end = told.end ?? ((turn.end ?? null) as End | null);
  useEffect(() => {
    if (told.end && !turn.end) onEnd();
  }, [told.end]);
  const isOpen = end === null;
  return (
    <article class="turn" aria-busy={isOpen}>
      <div class="said">
        <AgentText text={turn.text} />
      </div>
      <div class="answered">
        {told.items.map((item) => (
          <ItemView
            key={item.seq}
            id={id}
            item={item}
            isOpen={isOpen}
            hasGoneOn={told.items.at(-1) !== item}
          />
        ))}
        {place === null && !isWanted && (
          <button class="plain small" onClick={() => setWanted(true)}>
            Show its steps
          </button>
        )}
        <Ending end={end} hasText={told.items.some((item) => item.kind === "text")} />
        <Problem error={followed.error} />
        {isOpen && <Progress id={id} turn={turn} place={place ?? 0} followed={followed} />}
        {!isOpen && <Usage turn={turn} end={end} />}
      </div>
    </article>
  );
}

function ItemView(props: { id: string; item: Item; isOpen: boolean; hasGoneOn: boolean }) {
  const { id, item, isOpen, hasGoneOn } = props;
  switch (item.kind) {
    case "text":
      return <AgentText text={item.text} />;
    case "reasoning":
      return (
        <details class="thought">
          <summary class="small muted">
            Reasoning{" "}
            <span class="cut">
              <AgentText text={item.text.slice(0, 120).replaceAll("\n", " ")} />
            </span>
          </summary>
          <AgentText text={item.text} />
        </details>
      );
    case "tool":
      return <ToolItem item={item} />;
    default:
      return <Ask id={id} reply={item.reply} isOpen={isOpen} hasGoneOn={hasGoneOn} />;
  }
}

const TOOL_BADGES = { pending: "", running: "run", completed: "good", error: "bad" };

function ToolItem({ item }: { item: Extract<Item, { kind: "tool" }> }) {
  const isRunning = item.status === "pending" || item.status === "running";
  return (
    <details class="tool-item">
      <summary>
        <strong class="mono">
          <AgentText text={item.name} />
        </strong>
        <span class="mono cut">
          <AgentText text={inputLine(item.input)} />
        </span>
        <span class={`badge ${TOOL_BADGES[item.status]}`}>
          {isRunning && <Spinner />} {item.status}
        </span>
      </summary>
      <pre class="terminal">
        <AgentText text={JSON.stringify(item.input, null, 2)} />
      </pre>
      {item.output !== null && <TerminalText text={item.output} />}
    </details>
  );
}

const CODES: Record<string, string> = {
  aborted: "Ended by somebody",
  timeout: "Out of time",
  budget: "The agent's budget is used up",
  upstream: "The model failed",
  crashed: "The agent's server ended; the next turn starts it again",
  interrupted: "Rollcage ended in the middle of it",
};

function Ending({ end, hasText }: { end: End | null; hasText: boolean }) {
  if (!end) return null;
  // The last message's text came piece by piece already, where the steps were read.
  if (end.kind === "final") return hasText ? null : <AgentText text={end.text} />;
  return (
    <div class={`notice ${end.code === "aborted" ? "part" : "bad"}`}>
      <strong>{CODES[end.code] ?? end.code}:</strong> <AgentText text={end.message} />.
      {end.retryable && " The same again may succeed."}
    </div>
  );
}

function Progress(props: { id: string; turn: TurnSummary; place: number; followed: Followed }) {
  const { id, turn, place, followed } = props;
  const [isAborting, setAborting] = useState(false);
  const [problem, setProblem] = useState("");
  const abort = async () => {
    setAborting(true);
    setProblem("");
    try {
      await post(turnPath(id, turn.turn_id, "/abort"));
    } catch (error) {
      setProblem(failure(error));
      setAborting(false);
    }
  };
  const doing = followed.isLost
    ? "Connection lost, trying again"
    : place > 0
      ? `Waits, ${place} before it`
      : "Working";
  return (
    <div class="row small muted">
      <Spinner /> <span role="status">{doing}</span> <Elapsed since={turn.started_at} />
      <button class="small" disabled={isAborting} onClick={abort}>
        {isAborting ? "Ending…" : "Abort"}
      </button>
      {problem && (
        <span class="bad-text" role="alert">
          {problem}
        </span>
      )}
    </div>
  );
}

function Elapsed({ since }: { since: number }) {
  const passed = () => Math.max(0, Math.floor(Date.now() / 1000 - since));
  const [shown, setShown] = useState(passed);
  useEffect(() => {
    const timer = window.setInterval(() => setShown(passed()), 1000);
    return () => clearInterval(timer);
  }, [since]);
  return <span class="number">{shown} s</span>;
}

function Usage({ turn, end }: { turn: TurnSummary; end: End }) {
  const parts = [time(turn.started_at)];
  if (turn.finished_at) parts.push(seconds(turn.finished_at - turn.started_at));
  if (end.kind === "final") {
    const { input, output, cache_read, cost } = end.usage;
    const cached = cache_read ? ` (${count(cache_read)} cached)` : "";
    parts.push(`${count(input + cache_read)} in${cached}, ${count(output)} out`);
    if (cost) parts.push(dollars(cost));
  }
  return <p class="small muted usage-line">{parts.join(" · ")}</p>;
}
