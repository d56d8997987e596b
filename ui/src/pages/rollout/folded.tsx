// Text of which only the start is shown until somebody wants all of it. What was opened stays open when a virtual list
// takes its row away and brings it back.
import { type ComponentChildren, createContext } from "preact";
import { useContext, useState } from "preact/hooks";
import { AgentText, TerminalText } from "../../ui/text";
import { beginning, lineCount } from "./text-lines";

/** How much of what is shown, by name. */
export const Opened = createContext(new Map<string, number>());

export function useShown(name: string, first: number): [number, (shown: number) => void] {
  const opened = useContext(Opened);
  const [shown, setShown] = useState(opened.get(name) ?? first);
  const show = (next: number) => {
    opened.set(name, next);
    setShown(next);
  };
  return [shown, show];
}

export function useOpened(name: string, isOpenAtFirst = false): [boolean, () => void] {
  const [shown, show] = useShown(name, isOpenAtFirst ? 1 : 0);
  return [shown > 0, () => show(shown > 0 ? 0 : 1)];
}

/** A browser gets slow with more text than this in one element. */
const STEP = 100_000;

interface TextProps {
  /** Unlike any other on the page. */
  name: string;
  text: string;
  lines: number;
  isTerminal?: boolean;
}

export function FoldedText({ name, text, lines, isTerminal }: TextProps) {
  const [size, setSize] = useShown(name, 0);
  const start = beginning(text, lines);
  const isOpen = size > 0;
  const shown = isOpen ? text.slice(0, size) : start;
  const left = text.length - size;
  return (
    <div class="folded-text">
      {isTerminal ? <TerminalText text={shown} /> : <AgentText text={shown} />}
      {start.length < text.length && (
        <button
          class="plain small more"
          onClick={() => setSize(isOpen ? 0 : STEP)}
          aria-expanded={isOpen}
        >
          {isOpen ? "Show less" : `Show ${left > STEP ? "more of" : "all"} ${amount(text, lines)}`}
        </button>
      )}
      {isOpen && left > 0 && (
        <button class="plain small more" onClick={() => setSize(size + STEP)}>
          Show more: {left.toLocaleString("en")} characters are left
        </button>
      )}
    </div>
  );
}

function amount(text: string, lines: number): string {
  const count = lineCount(text);
  return count > lines
    ? `${count.toLocaleString("en")} lines`
    : `${text.length.toLocaleString("en")} characters`;
}

interface FoldProps {
  name: string;
  title: ComponentChildren;
  isOpenAtFirst?: boolean;
  class?: string;
  children: ComponentChildren;
}

/** A title that shows and hides what is below it. */
export function Fold({ name, title, isOpenAtFirst, class: extra = "", children }: FoldProps) {
  const [isOpen, toggle] = useOpened(name, isOpenAtFirst);
  return (
    <div class={`fold ${extra}`}>
      <button class="fold-title" onClick={toggle} aria-expanded={isOpen}>
        <svg width="10" height="10" viewBox="0 0 10 10" aria-hidden="true">
          <path d="M3 1.5 6.5 5 3 8.5" fill="none" stroke="currentColor" stroke-width="1.5" />
        </svg>
        {title}
      </button>
      {isOpen && <div class="fold-body">{children}</div>}
    </div>
  );
}
