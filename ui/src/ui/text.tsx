// Text of agents and models. It is hostile: it is only ever shown as text, characters that hide or reorder others are made
// visible, and terminal colours become classes.
import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import "../styles/terminal.css";
import { runsOf } from "./terminal";
import { written } from "./json";
import { piecesOf, visible } from "./unseen";

export { visible };

/** The text with every unseen character as a small mark. */
export const marked = (text: string): ComponentChildren[] =>
  piecesOf(text).map((piece) => {
    if (typeof piece === "string") return piece;
    const { name, times } = piece;
    const many = times > 1 ? ` ×${times.toLocaleString("en")}` : "";
    return (
      <span class="unseen" title={`the character ${name}, which cannot be seen`}>
        {name}
        {many}
      </span>
    );
  });

/** A browser gets slow with more in one element. Most places show less than this at first anyway. */
const CHARACTERS_MAX = 500_000;
/** Each change of colour is an element. */
const TERMINAL_MAX = 200_000;

/** The start of a text, and a button for more of it where it is longer. */
function useStart(text: string, most: number): [string, ComponentChildren] {
  const [shown, setShown] = useState(most);
  if (text.length <= shown) return [text, null];
  // Not through the middle of a character.
  const cut = /[\ud800-\udbff]/.test(text.charAt(shown - 1)) ? shown - 1 : shown;
  const more = (
    <button type="button" class="small" onClick={() => setShown(shown + most)}>
      Show more: {(text.length - cut).toLocaleString("en")} characters are left
    </button>
  );
  return [text.slice(0, cut), more];
}

/** Plain text of an agent. Where a text should be, an agent may have put anything. */
export function AgentText({ text, class: extra = "" }: { text: unknown; class?: string }) {
  const [start, more] = useStart(written(text), CHARACTERS_MAX);
  const parts = useMemo(() => marked(start), [start]);
  return (
    <span class={`agent-text ${extra}`}>
      {parts}
      {more}
    </span>
  );
}

/** What a command printed, with its colours. */
export function TerminalText({ text }: { text: string }) {
  const [start, more] = useStart(text, TERMINAL_MAX);
  const runs = useMemo(() => runsOf(start), [start]);
  return (
    <>
      <pre class="terminal agent-text">
        {runs.map(({ text: run, style }) => (
          <span class={style}>{marked(run)}</span>
        ))}
      </pre>
      {more}
    </>
  );
}
