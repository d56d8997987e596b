// A difference of two texts, line by line, and patches as models write them.
import { useEffect, useMemo, useState } from "preact/hooks";
import { AgentText } from "../../ui/text";
import { diffLines, type DiffLine, type DiffPart, folded, tally } from "./diff-lines";

/** Loaded when the first difference is shown. */
const jsdiff = () => import("diff");

function useDiff(before: string, after: string): DiffLine[] | null {
  const [lines, setLines] = useState<DiffLine[] | null>(null);
  useEffect(() => {
    let isLate = false;
    void jsdiff().then((library) => {
      if (!isLate) setLines(diffLines(library.diffLines(before, after)));
    });
    return () => {
      isLate = true;
    };
  }, [before, after]);
  return lines;
}

export function Diff({ before, after }: { before: string; after: string }) {
  const lines = useDiff(before, after);
  const parts = useMemo(() => (lines ? folded(lines) : []), [lines]);
  if (!lines) return <div class="diff muted">Comparing…</div>;
  if (lines.every((line) => line.kind === "same"))
    return <p class="muted small">No line differs.</p>;
  const { added, removed } = tally(lines);
  return (
    <div class="diff" role="group" aria-label={`${added} lines added, ${removed} removed`}>
      {parts.map((part, place) => (
        <Part key={place} part={part} />
      ))}
    </div>
  );
}

function Part({ part }: { part: DiffPart }) {
  const [isOpen, setOpen] = useState(false);
  if ("folded" in part && !isOpen)
    return (
      <button class="diff-fold" onClick={() => setOpen(true)}>
        {part.folded.length.toLocaleString("en")} unchanged lines
      </button>
    );
  const lines = "folded" in part ? part.folded : part.lines;
  return (
    <>
      {lines.map((line, place) => (
        <Line key={place} line={line} />
      ))}
    </>
  );
}

const SIGNS = { same: " ", added: "+", removed: "-" };

function Line({ line }: { line: DiffLine }) {
  return (
    <div class={`diff-line ${line.kind}`}>
      <span class="diff-number">{line.before ?? ""}</span>
      <span class="diff-number">{line.after ?? ""}</span>
      <span class="diff-sign">{SIGNS[line.kind]}</span>
      <AgentText text={line.text} class="diff-text" />
    </div>
  );
}

/** A patch as it was written, with its signs coloured. */
export function PatchText({ patch }: { patch: string }) {
  return (
    <div class="diff patch">
      {patch.split("\n").map((text, place) => (
        <div key={place} class={`diff-line ${patchKind(text)}`}>
          <AgentText text={text} class="diff-text" />
        </div>
      ))}
    </div>
  );
}

function patchKind(text: string): string {
  if (/^(\+\+\+|---|\*\*\*|@@|diff |index )/.test(text)) return "heading";
  if (text.startsWith("+")) return "added";
  return text.startsWith("-") ? "removed" : "same";
}
