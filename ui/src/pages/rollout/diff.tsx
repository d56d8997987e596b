// A difference of two texts, line by line, and patches as models write them.
import { useEffect, useMemo, useState } from "preact/hooks";
import {
  compared,
  type Comparison,
  type DiffLine,
  folded,
  type Stretch,
  tally,
} from "./diff-lines";
import { useOpened } from "./folded";
import { LineText, Lines } from "./lines";
import { linesOf } from "./text-lines";

/** Loaded when the first difference is shown. */
const jsdiff = () => import("diff");

function useDiff(before: string, after: string): Comparison | null {
  const [found, setFound] = useState<Comparison | null>(null);
  useEffect(() => {
    let isLate = false;
    void jsdiff().then((library) => {
      if (!isLate) setFound(compared(library.diffLines, before, after));
    });
    return () => {
      isLate = true;
    };
  }, [before, after]);
  return found;
}

interface DiffProps {
  /** Unlike any other on the page. */
  name: string;
  before: string;
  after: string;
  /** How many lines are shown at first. */
  first: number;
}

export function Diff({ name, before, after, first }: DiffProps) {
  const found = useDiff(before, after);
  const items = useMemo(() => (found ? folded(found.lines) : []), [found]);
  if (!found) return <div class="diff muted">Comparing…</div>;
  const { added, removed } = tally(found.lines);
  if (added + removed === 0) return <p class="muted small">No line differs.</p>;
  return (
    <div class="diff" role="group" aria-label={`${added} lines added, ${removed} removed`}>
      {found.isGivenUp && (
        <p class="diff-note">
          Too different to compare line by line. First all lines before, then all lines after.
        </p>
      )}
      <Lines
        name={name}
        items={items}
        first={first}
        draw={(item, place) =>
          "folded" in item ? (
            <Unchanged key={place} name={`${name}-${place}`} stretch={item} />
          ) : (
            <Line key={place} line={item} />
          )
        }
      />
    </div>
  );
}

/** Of a stretch that somebody opened. */
const UNCHANGED_FIRST = 400;

function Unchanged({ name, stretch }: { name: string; stretch: Stretch }) {
  const [isOpen, toggle] = useOpened(name);
  if (!isOpen)
    return (
      <button class="diff-fold" onClick={toggle}>
        {stretch.folded.length.toLocaleString("en")} unchanged lines
      </button>
    );
  return (
    <Lines
      name={name}
      items={stretch.folded}
      first={UNCHANGED_FIRST}
      draw={(line, place) => <Line key={place} line={line} />}
    />
  );
}

const SIGNS = { same: " ", added: "+", removed: "-" };

function Line({ line }: { line: DiffLine }) {
  return (
    <div class={`diff-line ${line.kind}`}>
      <span class="diff-number">{line.before ?? ""}</span>
      <span class="diff-number">{line.after ?? ""}</span>
      <span class="diff-sign">{SIGNS[line.kind]}</span>
      <LineText text={line.text} />
    </div>
  );
}

interface TextProps {
  name: string;
  text: string;
  first: number;
}

/** A patch as it was written, with its signs coloured. */
export function PatchText({ name, text, first }: TextProps) {
  const lines = useMemo(() => linesOf(text), [text]);
  return (
    <div class="diff patch">
      <Lines
        name={name}
        items={lines}
        first={first}
        draw={(line, place) => (
          <div key={place} class={`diff-line ${patchKind(line)}`}>
            <LineText text={line} />
          </div>
        )}
      />
    </div>
  );
}

function patchKind(text: string): string {
  if (/^(\+\+\+|---|\*\*\*|@@|diff |index )/.test(text)) return "heading";
  if (text.startsWith("+")) return "added";
  return text.startsWith("-") ? "removed" : "same";
}

/** A file with the numbers of its lines. */
export function NumberedText({ name, text, first }: TextProps) {
  const lines = useMemo(() => linesOf(text), [text]);
  return (
    <div class="diff">
      <Lines
        name={name}
        items={lines}
        first={first}
        draw={(line, place) => (
          <div key={place} class="diff-line same">
            <span class="diff-number">{place + 1}</span>
            <LineText text={line} />
          </div>
        )}
      />
    </div>
  );
}
