// Lines of long texts. A page with tens of thousands of them stands still, so they are drawn some at a time.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { AgentText } from "../../ui/text";
import { useShown } from "./folded";
import { moreOf } from "./text-lines";

/** How many more each press shows. */
const STEP = 2000;
/** A longer line is cut until somebody wants all of it. */
const LINE_CHARS = 4000;

interface Props<T> {
  /** Unlike any other on the page. */
  name: string;
  items: T[];
  /** How many are shown at first. */
  first: number;
  what?: string;
  draw: (item: T, place: number) => ComponentChildren;
}

export function Lines<T>({ name, items, first, what = "lines", draw }: Props<T>) {
  const [shown, setShown] = useShown(`${name}-lines`, first);
  const more = moreOf(items.length, shown, STEP);
  return (
    <>
      {items.slice(0, more ? shown : items.length).map(draw)}
      {more && (
        <button class="diff-fold" onClick={() => setShown(more.next)}>
          {more.isAll
            ? `Show all ${items.length.toLocaleString("en")} ${what}`
            : `Show ${STEP.toLocaleString("en")} more of ${items.length.toLocaleString("en")} ${what}`}
        </button>
      )}
    </>
  );
}

export function LineText({ text }: { text: string }) {
  const [isOpen, setOpen] = useState(false);
  if (isOpen || text.length <= LINE_CHARS) return <AgentText text={text} class="diff-text" />;
  return (
    <span class="diff-text">
      <AgentText text={text.slice(0, LINE_CHARS)} />{" "}
      <button class="small" onClick={() => setOpen(true)}>
        Show all {text.length.toLocaleString("en")} characters of this line
      </button>
    </span>
  );
}
