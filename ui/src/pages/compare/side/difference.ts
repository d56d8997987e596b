// Comparing texts that nobody has looked at before: bounded, since what an agent wrote may be made to take for ever. Pure.
import { diffWordsWithSpace, structuredPatch, type ChangeObject } from "diff";

/** Lines of a difference that are shown at first; more of them make a page slow. */
export const LINES_SHOWN = 1000;
/** Changes between two files beyond which their comparison would freeze the page. */
const LINE_EDITS_MAX = 4000;
const LINES_LIMIT_MS = 500;
const WORD_EDITS_MAX = 1500;
const WORDS_LIMIT_MS = 50;
const AROUND = 3;

export interface Hunk {
  oldStart: number;
  newStart: number;
  /** Each begins with ` `, `-`, `+` or `\`. */
  lines: string[];
}

const linesOf = (text: string) => {
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  return lines;
};

/** Where two texts differ; null where that would take too long to find out. */
export function lineHunks(a: string, b: string): Hunk[] | null {
  // One of them alone needs no comparison, however long it is.
  if (!a || !b) {
    const lines = [...linesOf(a).map((it) => `-${it}`), ...linesOf(b).map((it) => `+${it}`)];
    return lines.length > 0 ? [{ oldStart: 1, newStart: 1, lines }] : [];
  }
  const patch = structuredPatch("A", "B", a, b, "", "", {
    context: AROUND,
    maxEditLength: LINE_EDITS_MAX,
    timeout: LINES_LIMIT_MS,
  });
  return patch?.hunks ?? null;
}

/** The first lines of them, and how many there are in all. */
export function firstLines(hunks: Hunk[], most: number): { hunks: Hunk[]; total: number } {
  const shown: Hunk[] = [];
  let total = 0;
  for (const hunk of hunks) {
    const left = most - total;
    if (left > 0) shown.push({ ...hunk, lines: hunk.lines.slice(0, left) });
    total += hunk.lines.length;
  }
  return { hunks: shown, total };
}

/** Words that came and went; null where that would take too long to find out. */
export function wordChanges(from: string, to: string): ChangeObject<string>[] | null {
  const limits = { maxEditLength: WORD_EDITS_MAX, timeout: WORDS_LIMIT_MS };
  return diffWordsWithSpace(from, to, limits) ?? null;
}
