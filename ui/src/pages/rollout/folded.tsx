// Text of which only the start is shown until somebody wants all of it. What was opened stays open when a virtual list
// takes its row away and brings it back.
import { type ComponentChildren, createContext } from "preact";
import { useContext, useState } from "preact/hooks";
import { AgentText, TerminalText } from "../../ui/text";
import { beginning, lineCount } from "./text-lines";

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
          {isOpen ? "Show less" : `Show all ${amount(text, lines)}`}
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
