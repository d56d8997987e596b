// Small parts of the tabs that show what the model did.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Spinner } from "../../../ui/parts";
import { AgentText } from "../../../ui/text";
import { level } from "./scale";
import { type Named, reasonWords, roleName } from "./words";

const TONES: Record<string, string> = {
  agent: "run",
  subagent: "info",
  discarded: "part",
  failed: "bad",
};

export function RoleBadge({ call }: { call: Named }) {
  const name = roleName(call);
  return (
    <span class={`badge ${TONES[name] ?? ""}`} title={reasonWords(call)}>
      {name === "pending" && <Spinner />}
      {name}
    </span>
  );
}

/** The mean logprob as a bar: full at 0, empty at -2 and below. */
export function LogprobBar({ value }: { value: number | null }) {
  if (value === null) return <span class="muted small">–</span>;
  const share = Math.max(0, Math.min(1, 1 + value / 2));
  return (
    <span class="logprob-bar">
      <span class="number small">{value.toFixed(2)}</span>
      <span class="track" aria-hidden="true">
        <span class={`lp${level(value)}`} style={{ width: `${Math.round(share * 100)}%` }} />
      </span>
    </span>
  );
}

/** Goes to a turn by its number. */
export function TurnNumber(props: {
  turn: number | null;
  total: number | null;
  label: string;
  choose: (turn: number) => void;
}) {
  return (
    <label class="row">
      {props.label}
      <input
        class="turn-number number"
        type="number"
        min={0}
        max={props.total === null ? undefined : props.total - 1}
        value={props.turn ?? ""}
        onChange={(event) => {
          const wanted = event.currentTarget.valueAsNumber;
          const last = props.total === null ? wanted : props.total - 1;
          if (Number.isInteger(wanted)) props.choose(Math.max(0, Math.min(wanted, last)));
        }}
      />
    </label>
  );
}

const LINES = 14;
const CHARACTERS = 2400;

/** The place up to which a long text is shown at first; null where it is shown whole. */
export function foldAt(text: string, lines = LINES): number | null {
  let at = 0;
  for (let line = 0; line < lines; line += 1) {
    const end = text.indexOf("\n", at);
    if (end < 0) return text.length > CHARACTERS ? CHARACTERS : null;
    if (end > CHARACTERS) return CHARACTERS;
    at = end + 1;
  }
  // A few lines more are not worth a button.
  return text.length - at < 200 ? null : at - 1;
}

/** Text of which a long rest is folded away. */
export function Folding({
  text,
  lines,
  show = (shown) => <AgentText text={shown} />,
}: {
  text: string;
  /** How many are shown at first. */
  lines?: number;
  show?: (text: string) => ComponentChildren;
}) {
  const [isOpen, setOpen] = useState(false);
  const at = foldAt(text, lines);
  if (at === null) return <>{show(text)}</>;
  return (
    <>
      {show(isOpen ? text : text.slice(0, at))}
      <button class="plain small fold" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        {isOpen ? "Show less" : `Show all ${text.length.toLocaleString("en")} characters`}
      </button>
    </>
  );
}
