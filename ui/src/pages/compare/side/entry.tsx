// One entry of a transcript beside another: words that the other has not are marked.
import { useMemo, useState } from "preact/hooks";
import type { Entry, ToolCallView } from "../../../api/types";
import { link } from "../../../router";
import { AgentText, TerminalText } from "../../../ui/text";
import { wordChanges } from "./difference";

/** Longer texts are not compared word by word: it takes too long, and nobody reads the marks. */
const WORDS_MAX = 4000;
/** The least part that two texts share for their differences to be marked. */
const SHARED_MIN = 0.35;
const LINES_SHOWN = 12;
const CHARS_SHOWN = 1600;

const SPEAKERS: Record<Entry["speaker"], string> = {
  system: "System",
  user: "User",
  assistant: "Model",
  tool: "Tool",
};

interface Props {
  id: string;
  entry: Entry;
  other: Entry | null;
  side: "a" | "b";
}

export function EntryCell({ id, entry, other, side }: Props) {
  const isSame = other?.speaker === entry.speaker;
  const beside = isSame ? other : null;
  return (
    <article class={`side-entry ${entry.speaker}`}>
      <header class="row small">
        <strong>{SPEAKERS[entry.speaker]}</strong>
        <a class="muted" href={link(["rollout", id, "turns"], { turn: entry.turn })}>
          turn {entry.turn}
        </a>
        {entry.finish_reason && entry.finish_reason !== "stop" && (
          <span class="muted">{entry.finish_reason}</span>
        )}
        {entry.attachments > 0 && <span class="muted">{entry.attachments} attachments</span>}
      </header>
      {entry.note && (
        <p class="small muted">
          <AgentText text={entry.note} />
        </p>
      )}
      {entry.reasoning && (
        <details class="side-reasoning">
          <summary class="small muted">Reasoning</summary>
          <Compared text={entry.reasoning} other={beside?.reasoning ?? null} side={side} />
        </details>
      )}
      {entry.text && <EntryText entry={entry} beside={beside} side={side} />}
      {entry.tool_calls.map((call, index) => (
        <ToolCell
          key={index}
          call={call}
          other={beside ? (beside.tool_calls[index] ?? null) : null}
          side={side}
        />
      ))}
    </article>
  );
}

/** Instructions that both have are long, and say nothing about the difference. */
function EntryText(props: { entry: Entry; beside: Entry | null; side: "a" | "b" }) {
  const { entry, beside, side } = props;
  if (entry.speaker === "system" && beside?.text === entry.text) {
    return (
      <Folded summary="Instructions, the same in both" class="side-reasoning">
        {() => <AgentText text={entry.text} />}
      </Folded>
    );
  }
  return <Compared text={entry.text} other={beside?.text ?? null} side={side} />;
}

function ToolCell(props: { call: ToolCallView; other: ToolCallView | null; side: "a" | "b" }) {
  const { call, other, side } = props;
  const beside = other?.name === call.name ? other : null;
  return (
    <div class="side-tool">
      <div class="small mono side-tool-name">
        <AgentText text={call.name} />
      </div>
      <Compared
        text={pretty(call.arguments)}
        other={beside && pretty(beside.arguments)}
        side={side}
        isCode
      />
      {call.result === null ? (
        <p class="small muted">no result yet</p>
      ) : (
        <Output text={call.result} isOther={beside !== null && beside.result !== call.result} />
      )}
    </div>
  );
}

/** Arguments as `name: value` where they are JSON; otherwise as they are. */
function pretty(text: string): string {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value !== "object" || value === null || Array.isArray(value)) return text;
    const members = Object.entries(value).map(([name, it]) => {
      const shown = typeof it === "string" ? it : JSON.stringify(it);
      return `${name}: ${shown.includes("\n") ? `\n${shown}` : shown}`;
    });
    return members.join("\n");
  } catch {
    return text;
  }
}

function Output({ text, isOther }: { text: string; isOther: boolean }) {
  const lines = text.split("\n").length;
  const shown = <TerminalText text={text} />;
  if (lines <= LINES_SHOWN && text.length <= CHARS_SHOWN) {
    return <div class={isOther ? "side-output other" : "side-output"}>{shown}</div>;
  }
  return (
    <Folded
      summary={`Output, ${lines} lines`}
      class={isOther ? "side-output other" : "side-output"}
    >
      {() => shown}
    </Folded>
  );
}

/** Made only when it is opened. */
function Folded(props: { summary: string; class: string; children: () => preact.JSX.Element }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details class={props.class} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary class="small muted">{props.summary}</summary>
      {isOpen && props.children()}
    </details>
  );
}

/** The text with what the other has not marked, and only its start where it is long. */
function Compared(props: {
  text: string;
  other: string | null;
  side: "a" | "b";
  isCode?: boolean;
}) {
  const { text, other, side, isCode } = props;
  const [isWhole, setWhole] = useState(false);
  const isLong = text.length > CHARS_SHOWN || text.split("\n").length > 3 * LINES_SHOWN;
  const parts = useMemo(() => {
    const isShort = text.length <= WORDS_MAX && (other?.length ?? 0) <= WORDS_MAX;
    if (other === null || other === text || !isShort) return null;
    const changes = side === "a" ? wordChanges(text, other) : wordChanges(other, text);
    if (!changes) return null;
    const shared = changes.filter((change) => !change.added && !change.removed);
    const length = shared.reduce((sum, change) => sum + change.value.trim().length, 0);
    // Where almost everything is other, marks say nothing.
    if (length < SHARED_MIN * Math.max(text.length, other.length)) return null;
    return changes.filter((change) => (side === "a" ? !change.added : !change.removed));
  }, [text, other, side]);
  const shown = parts ? (
    parts.map((part, index) =>
      part.added || part.removed ? (
        <mark key={index} class={side}>
          <AgentText text={part.value} />
        </mark>
      ) : (
        <AgentText key={index} text={part.value} />
      ),
    )
  ) : (
    <AgentText text={text} />
  );
  return (
    <>
      <div
        class={`compared ${isCode ? "mono side-code" : ""} ${isLong && !isWhole ? "clipped" : ""}`}
      >
        {shown}
      </div>
      {isLong && (
        <button class="plain small" onClick={() => setWhole(!isWhole)} aria-expanded={isWhole}>
          {isWhole ? "Show less" : "Show all"}
        </button>
      )}
    </>
  );
}
