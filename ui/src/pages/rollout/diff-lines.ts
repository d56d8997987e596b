// Lines of a diff with their numbers, unchanged stretches folded. Pure; the comparison itself is jsdiff's.
import type { ChangeObject } from "diff";
import { linesOf } from "./text-lines";

export interface DiffLine {
  kind: "same" | "added" | "removed";
  before: number | null;
  after: number | null;
  text: string;
}

/** Unchanged lines that are not shown. */
export interface Stretch {
  folded: DiffLine[];
}

export interface Comparison {
  lines: DiffLine[];
  /** It would have taken too long: the lines are all before, then all after. */
  isGivenUp: boolean;
}

/** As `diffLines` of jsdiff, which answers nothing where it gave up. */
type Compare = (
  before: string,
  after: string,
  options: { timeout: number },
) => ChangeObject<string>[] | undefined;

/** Comparing texts that have little in common takes as long as both lengths multiplied, and an agent may write any text. */
const TIMEOUT_MS = 200;

export function compared(compare: Compare, before: string, after: string): Comparison {
  const part = (value: string, added: boolean) => ({ value, added, removed: !added, count: 0 });
  const all = [part(before, false), part(after, true)].filter(({ value }) => value !== "");
  const found = all.length < 2 ? all : compare(before, after, { timeout: TIMEOUT_MS });
  return { lines: diffLines(found ?? all), isGivenUp: found === undefined };
}

/** Unchanged lines that are shown around a change. */
const AROUND = 3;

export function diffLines(changes: ChangeObject<string>[]): DiffLine[] {
  const lines: DiffLine[] = [];
  let [before, after] = [0, 0];
  for (const { value, added, removed } of changes) {
    for (const text of linesOf(value)) {
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

/** The lines, with stretches far from any change folded. */
export function folded(lines: DiffLine[]): (DiffLine | Stretch)[] {
  const found: (DiffLine | Stretch)[] = [];
  const add = (some: DiffLine[]) => some.forEach((line) => found.push(line));
  let from = 0;
  while (from < lines.length) {
    const isSame = lines[from]!.kind === "same";
    let to = from;
    while (to < lines.length && (lines[to]!.kind === "same") === isSame) to += 1;
    const run = lines.slice(from, to);
    if (!isSame) add(run);
    else {
      const head = from === 0 ? 0 : AROUND;
      const tail = to === lines.length ? 0 : AROUND;
      // A fold takes a line itself.
      if (run.length <= head + tail + 1) add(run);
      else {
        add(run.slice(0, head));
        found.push({ folded: run.slice(head, run.length - tail) });
        add(run.slice(run.length - tail));
      }
    }
    from = to;
  }
  return found;
}

/** How many lines came and went. */
export function tally(lines: DiffLine[]): { added: number; removed: number } {
  const of = (kind: DiffLine["kind"]) => lines.filter((line) => line.kind === kind).length;
  return { added: of("added"), removed: of("removed") };
}
