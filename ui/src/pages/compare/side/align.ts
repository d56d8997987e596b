// Two transcripts beside each other: the n-th reply of one beside the n-th of the other. Pure functions.
import type { Entry, FileView } from "../../../api/types";

/** Where two entries differ first: in what the model was told, in what it said, or in what its tools answered. */
export type Difference = "prompt" | "reply" | "result" | "missing";

export interface Pair {
  a: Entry | null;
  b: Entry | null;
  difference: Difference | null;
}

interface Step {
  before: Entry[];
  reply: Entry | null;
}

export interface Transcript {
  entries: Entry[];
  /** Whether nothing follows `entries`, for now. */
  isComplete: boolean;
}

/** What leads to a reply, and the reply. What follows the last reply is a step only where nothing is missing. */
function steps({ entries, isComplete }: Transcript): Step[] {
  const found: Step[] = [];
  let before: Entry[] = [];
  for (const entry of entries) {
    if (entry.speaker === "assistant") {
      found.push({ before, reply: entry });
      before = [];
    } else before.push(entry);
  }
  if (isComplete && before.length > 0) found.push({ before, reply: null });
  return found;
}

function differenceOf(a: Entry | null, b: Entry | null): Difference | null {
  if (!a || !b) return "missing";
  const isReply = a.speaker === "assistant";
  const said = (entry: Entry) =>
    JSON.stringify([
      entry.speaker,
      entry.text,
      entry.reasoning,
      entry.tool_calls.map((call) => [call.name, call.arguments.trim()]),
    ]);
  if (said(a) !== said(b)) return isReply ? "reply" : "prompt";
  const isOtherResult = a.tool_calls.some((call, index) => {
    const other = b.tool_calls[index]?.result ?? null;
    // A tool that has not answered yet says nothing.
    return call.result !== null && other !== null && call.result !== other;
  });
  return isOtherResult ? "result" : null;
}

/** Rows for what is known of both; a side that has come to its end is shown as missing from there on. */
export function align(a: Transcript, b: Transcript): Pair[] {
  const [left, right] = [steps(a), steps(b)];
  const pairs: Pair[] = [];
  const add = (one: Entry | null, two: Entry | null) => {
    if (one || two) pairs.push({ a: one, b: two, difference: differenceOf(one, two) });
  };
  for (let at = 0; at < Math.max(left.length, right.length); at += 1) {
    const [one, two] = [left[at], right[at]];
    if ((!one && !a.isComplete) || (!two && !b.isComplete)) break;
    const before = Math.max(one?.before.length ?? 0, two?.before.length ?? 0);
    for (let index = 0; index < before; index += 1) {
      add(one?.before[index] ?? null, two?.before[index] ?? null);
    }
    add(one?.reply ?? null, two?.reply ?? null);
  }
  return pairs;
}

/**
 * The row where the two part: the first reply that differs. Prompts often differ by a date or a path, and results by a
 * time; they count only where no reply differs.
 */
export function firstDifference(pairs: Pair[]): number | null {
  const reply = pairs.findIndex(
    (pair) =>
      pair.difference === "reply" ||
      (pair.difference === "missing" && (pair.a ?? pair.b)?.speaker === "assistant"),
  );
  if (reply >= 0) return reply;
  const any = pairs.findIndex((pair) => pair.difference !== null);
  return any >= 0 ? any : null;
}

/** The next row that differs after `at`, or the last one before it; null where there is none. */
export function nextDifference(pairs: Pair[], at: number, step: 1 | -1): number | null {
  for (let index = at + step; index >= 0 && index < pairs.length; index += step) {
    if (pairs[index]!.difference !== null) return index;
  }
  return null;
}

export interface FilePair {
  path: string;
  kind: "differs" | "only_a" | "only_b" | "unknown" | "same";
  a: string | null;
  b: string | null;
  isCut: boolean;
}

const KINDS: FilePair["kind"][] = ["differs", "only_a", "only_b", "unknown", "same"];

/** Files as they were at the end, those that differ first. Where a content is not known nothing is claimed. */
export function pairFiles(a: FileView[], b: FileView[]): FilePair[] {
  const there = (files: FileView[]) =>
    new Map(files.filter((file) => file.change !== "removed").map((file) => [file.path, file]));
  const [left, right] = [there(a), there(b)];
  const paths = [...new Set([...left.keys(), ...right.keys()])].sort();
  const pairs = paths.map((path): FilePair => {
    const [one, two] = [left.get(path), right.get(path)];
    const [was, is] = [one?.after ?? null, two?.after ?? null];
    const isCut = Boolean(one?.is_cut || two?.is_cut);
    const kind = !two
      ? "only_a"
      : !one
        ? "only_b"
        : was === null || is === null || (isCut && was === is)
          ? "unknown"
          : was === is
            ? "same"
            : "differs";
    return { path, kind, a: was, b: is, isCut };
  });
  return pairs.sort((x, y) => KINDS.indexOf(x.kind) - KINDS.indexOf(y.kind));
}
