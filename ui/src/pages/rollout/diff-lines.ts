// Lines of a diff with their numbers, unchanged stretches folded. Pure; the comparison itself is jsdiff's.
import type { ChangeObject } from "diff";

export interface DiffLine {
  kind: "same" | "added" | "removed";
  before: number | null;
  after: number | null;
  text: string;
}

/** A stretch of unchanged lines that is not shown, or lines. */
export type DiffPart = { folded: DiffLine[] } | { lines: DiffLine[] };

/** Unchanged lines that are shown around a change. */
const AROUND = 3;

export function diffLines(changes: ChangeObject<string>[]): DiffLine[] {
  const lines: DiffLine[] = [];
  let [before, after] = [0, 0];
  for (const { value, added, removed } of changes) {
    const texts = value.split("\n");
    if (texts.at(-1) === "") texts.pop();
    for (const text of texts) {
      if (!added) before += 1;
      if (!removed) after += 1;
      lines.push({
        kind: added ? "added" : removed ? "removed" : "same",
        before: added ? null : before,
        after: removed ? null : after,
        text,
      });
    }
  }
  return lines;
}

export function folded(lines: DiffLine[]): DiffPart[] {
  const parts: DiffPart[] = [];
  let from = 0;
  while (from < lines.length) {
    const isSame = lines[from]!.kind === "same";
    let to = from;
    while (to < lines.length && (lines[to]!.kind === "same") === isSame) to += 1;
    const run = lines.slice(from, to);
    if (!isSame) parts.push({ lines: run });
    else {
      const head = from === 0 ? 0 : AROUND;
      const tail = to === lines.length ? 0 : AROUND;
      // A fold takes a line itself.
      if (run.length <= head + tail + 1) parts.push({ lines: run });
      else {
        if (head) parts.push({ lines: run.slice(0, head) });
        parts.push({ folded: run.slice(head, run.length - tail) });
        if (tail) parts.push({ lines: run.slice(run.length - tail) });
      }
    }
    from = to;
  }
  return parts;
}

/** How many lines came and went. */
export function tally(lines: DiffLine[]): { added: number; removed: number } {
  const of = (kind: DiffLine["kind"]) => lines.filter((line) => line.kind === kind).length;
  return { added: of("added"), removed: of("removed") };
}
