// Text of which only the start is shown until somebody wants all of it. What was opened stays open when a virtual list
// takes its row away and brings it back.
import { type ComponentChildren, createContext } from "preact";
import { useContext, useState } from "preact/hooks";
import { AgentText, TerminalText } from "../../ui/text";

/** What is open, by name. */
export const Opened = createContext(new Map<string, boolean>());

export function useOpened(name: string, isOpenAtFirst = false): [boolean, () => void] {
  const opened = useContext(Opened);
  const [isOpen, setOpen] = useState(opened.get(name) ?? isOpenAtFirst);
  const toggle = () => {
    opened.set(name, !isOpen);
    setOpen(!isOpen);
  };
  return [isOpen, toggle];
}

interface TextProps {
  /** Unlike any other on the page. */
  name: string;
  text: string;
  lines: number;
  isTerminal?: boolean;
}

export function FoldedText({ name, text, lines, isTerminal }: TextProps) {
  const [isOpen, toggle] = useOpened(name);
  const start = beginning(text, lines);
  const shown = isOpen ? text : start;
  const isFolded = start.length < text.length;
  return (
    <div class="folded-text">
      {isTerminal ? <TerminalText text={shown} /> : <AgentText text={shown} />}
      {isFolded && (
        <button class="plain small more" onClick={toggle} aria-expanded={isOpen}>
          {isOpen ? "Show less" : `Show all ${lineCount(text).toLocaleString("en")} lines`}
        </button>
      )}
    </div>
  );
}

/** At most so many lines, and not much longer than such lines are. */
export function beginning(text: string, lines: number): string {
  let end = -1;
  for (let line = 0; line < lines; line++) {
    end = text.indexOf("\n", end + 1);
    if (end < 0) break;
  }
  const cut = Math.min(end < 0 ? text.length : end, lines * 160);
  // A few lines more are no reason to fold.
  return lineCount(text) <= lines + 3 && text.length <= lines * 200 ? text : text.slice(0, cut);
}

function lineCount(text: string): number {
  let count = 1;
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) count += 1;
  return count;
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
