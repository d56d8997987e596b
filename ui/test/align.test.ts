import assert from "node:assert/strict";
import { test } from "node:test";
import type { Entry, FileView } from "../src/api/types";
import { align, firstDifference, nextDifference, pairFiles } from "../src/pages/compare/side/align";

function entry(speaker: Entry["speaker"], text: string, more: Partial<Entry> = {}): Entry {
  return {
    entry: 0,
    speaker,
    turn: 0,
    at: 0,
    text,
    reasoning: null,
    tool_calls: [],
    attachments: 0,
    finish_reason: null,
    note: null,
    ...more,
  };
}

const whole = (entries: Entry[]) => ({ entries, isComplete: true });
const texts = (pairs: ReturnType<typeof align>) =>
  pairs.map((pair) => [pair.a?.text ?? null, pair.b?.text ?? null]);

test("replies stand beside replies although one was told more before", () => {
  const a = [entry("system", "s"), entry("user", "u"), entry("assistant", "one")];
  const b = [entry("user", "u"), entry("assistant", "one"), entry("assistant", "two")];
  const pairs = align(whole(a), whole(b));
  assert.deepEqual(texts(pairs), [
    ["s", "u"],
    ["u", null],
    ["one", "one"],
    [null, "two"],
  ]);
  assert.deepEqual(
    pairs.map((pair) => pair.difference),
    ["prompt", "missing", null, "missing"],
  );
});

test("what is not read yet is not taken for missing", () => {
  const a = [entry("assistant", "1"), entry("assistant", "2")];
  const b = { entries: [entry("assistant", "1"), entry("user", "u")], isComplete: false };
  assert.deepEqual(texts(align(whole(a), b)), [["1", "1"]]);
});

test("the first difference is the first reply that differs, before prompts and results", () => {
  const call = (result: string | null) => ({ id: null, name: "bash", arguments: "{}", result });
  const told = entry("user", "at 10:00");
  const first = entry("assistant", "x", { tool_calls: [call("1 ms")] });
  const other = { ...first, tool_calls: [{ ...call("2 ms"), id: "another" }] };
  const pairs = align(
    whole([told, first, entry("assistant", "y")]),
    whole([entry("user", "at 11:00"), other, entry("assistant", "z")]),
  );
  assert.deepEqual(
    pairs.map((pair) => pair.difference),
    ["prompt", "result", "reply"],
  );
  assert.equal(firstDifference(pairs), 2);
  assert.equal(firstDifference(pairs.slice(0, 2)), 0);
  assert.equal(nextDifference(pairs, 0, 1), 1);
  assert.equal(nextDifference(pairs, 0, -1), null);
  assert.equal(nextDifference(pairs, 2, 1), null);
  const waiting = { ...first, tool_calls: [call(null)] };
  assert.equal(firstDifference(align(whole([first]), whole([waiting]))), null);
});

test("files are compared as they were at the end, and nothing is claimed of what was not kept", () => {
  const file = (path: string, after: string | null, more: Partial<FileView> = {}): FileView => ({
    path,
    change: "changed",
    before: null,
    after,
    is_cut: false,
    ...more,
  });
  const pairs = pairFiles(
    [
      file("same", "1"),
      file("other", "1"),
      file("gone", null, { change: "removed" }),
      file("bin", null),
    ],
    [file("same", "1"), file("other", "2"), file("gone", "x"), file("bin", null), file("new", "n")],
  );
  assert.deepEqual(
    pairs.map((pair) => [pair.path, pair.kind]),
    [
      ["other", "differs"],
      ["gone", "only_b"],
      ["new", "only_b"],
      ["bin", "unknown"],
      ["same", "same"],
    ],
  );
  const cut = file("cut", "start", { is_cut: true });
  assert.equal(pairFiles([cut], [cut])[0]!.kind, "unknown");
});
