import assert from "node:assert/strict";
import { test } from "node:test";
import { diffLines as compare } from "diff";
import type { Entry } from "../src/api/types";
import { compared, diffLines, folded, tally } from "../src/pages/rollout/diff-lines";
import { beginning, ending, lineCount, linesOf, moreOf } from "../src/pages/rollout/text-lines";
import { matches } from "../src/pages/rollout/transcript/search";
import { toolLine, toolView } from "../src/pages/rollout/transcript/tool-view";

const view = (name: string, args: unknown) => toolView(name, JSON.stringify(args));

test("commands are shown as commands, with what else was said", () => {
  assert.deepEqual(view("bash", { command: "ls", description: "Look", timeout: 5 }), {
    kind: "shell",
    command: "ls",
    about: "Look",
    rest: '{\n  "timeout": 5\n}',
  });
  const script = view("shell", { command: ["bash", "-lc", "a && b"] });
  assert.equal(script.kind === "shell" && script.command, "a && b");
  const words = view("shell", { command: ["echo", "it's"] });
  assert.equal(words.kind === "shell" && words.command, "echo 'it'\\''s'");
});

test("edits of every agent are shown as differences", () => {
  const edit = { path: "a.py", before: "x", after: "y" };
  for (const args of [
    { filePath: "a.py", oldString: "x", newString: "y" },
    { file_path: "a.py", old_string: "x", new_string: "y" },
    { path: "a.py", old_str: "x", new_str: "y" },
    { file_path: "a.py", edits: [{ old_string: "x", new_string: "y" }] },
  ])
    assert.deepEqual(view("edit", args), { kind: "edits", edits: [edit], rest: null });
  const replace = view("str_replace_editor", {
    command: "str_replace",
    path: "a.py",
    old_str: "x",
    new_str: "y",
  });
  assert.deepEqual(replace.kind === "edits" && replace.edits, [edit]);
  const written = view("write", { filePath: "b", content: "z" });
  assert.deepEqual(written.kind === "edits" && written.edits, [
    { path: "b", before: "", after: "z" },
  ]);
  assert.equal(toolLine(written), "b");
});

test("patches are shown as patches, however they are wrapped", () => {
  const patch = "*** Begin Patch\n*** Update File: a\n-x\n+y\n*** End Patch";
  assert.deepEqual(view("apply_patch", { input: patch }), { kind: "patch", patch });
  assert.deepEqual(toolView("apply_patch", patch), { kind: "patch", patch });
  assert.equal(view("shell", { command: ["apply_patch", patch] }).kind, "patch");
  assert.equal(toolLine({ kind: "patch", patch }), "*** Update File: a");
});

test("other arguments are shown as they are", () => {
  const short = (text: string) => ({ kind: "arguments", text, isShort: true });
  assert.deepEqual(toolView("x", "{broken"), short("{broken"));
  assert.deepEqual(view("grep", { pattern: "a" }), short('{"pattern":"a"}'));
  assert.deepEqual(toolView("x", "12345678901234567890"), short("12345678901234567890"));
  assert.equal(toolLine(toolView("x", "{}")), "");
  const long = view("grep", { pattern: "a".repeat(120) });
  assert.equal(long.kind === "arguments" && long.text, `{\n  "pattern": "${"a".repeat(120)}"\n}`);
  assert.equal(toolLine(long), "");
  // A file that is only named is not written.
  assert.equal(view("read", { filePath: "a", content: "b" }).kind, "arguments");
});

test("lines of a diff have their numbers, and unchanged stretches are folded", () => {
  const text = (middle: string) =>
    [...Array(10).fill("s"), middle, ...Array(4).fill("t")].join("\n");
  const lines = diffLines(compare(text("a"), text("b")));
  assert.deepEqual(tally(lines), { added: 1, removed: 1 });
  const removed = lines.find((it) => it.kind === "removed");
  assert.deepEqual(removed, { kind: "removed", before: 11, after: null, text: "a" });
  const [stretch, ...others] = folded(lines);
  // Seven of ten are folded; of the four after it folding one would save nothing.
  assert.ok(stretch && "folded" in stretch && stretch.folded.length === 7);
  assert.deepEqual([...stretch.folded, ...others], lines);
});

test("texts that are too different are shown before and after", () => {
  const text = (name: string) =>
    Array.from({ length: 30_000 }, (_, n) => `${name} ${n}`).join("\n");
  const { lines, isGivenUp } = compared(compare, text("a"), text("b"));
  assert.ok(isGivenUp);
  assert.deepEqual(tally(lines), { added: 30_000, removed: 30_000 });
  assert.deepEqual([lines[0]?.kind, lines.at(-1)?.kind], ["removed", "added"]);
  // A file that is written needs no comparison, however long it is.
  const written = compared(compare, "", text("a"));
  assert.deepEqual([written.isGivenUp, tally(written.lines).added], [false, 30_000]);
  assert.deepEqual(compared(compare, "", ""), { lines: [], isGivenUp: false });
  assert.equal(compared(compare, "a\nb", "a\nc").lines.length, 3);
});

test("long lists are shown some at a time, and none for the sake of a button", () => {
  assert.equal(moreOf(42, 40, 100), null);
  assert.deepEqual(moreOf(60, 40, 100), { next: 60, isAll: true });
  assert.deepEqual(moreOf(500, 40, 100), { next: 140, isAll: false });
  assert.deepEqual(linesOf("a\n\nb\n"), ["a", "", "b"]);
});

test("long texts are cut at lines, and never within a character", () => {
  const text = Array.from({ length: 100 }, (_, place) => `line ${place}`).join("\n");
  assert.equal(lineCount(beginning(text, 12)), 12);
  assert.equal(beginning("a\nb", 12), "a\nb");
  assert.deepEqual([lineCount("a"), lineCount("a\nb"), lineCount("a\nb\n")], [1, 2, 2]);
  const emoji = "😀".repeat(2000);
  assert.doesNotThrow(() => encodeURIComponent(beginning(`x${emoji}`, 12)));
  assert.equal(ending("a\nb\nc", 1), "c");
  assert.equal(ending("a\nb\nc\n", 2), "b\nc\n");
  assert.equal(ending("a", 5), "a");
});

test("a search looks at everything that is shown", () => {
  const entry = (number: number, more: Partial<Entry>): Entry => ({
    entry: number,
    speaker: "assistant",
    turn: 0,
    at: 0,
    text: "",
    reasoning: null,
    tool_calls: [],
    attachments: 0,
    finish_reason: null,
    note: null,
    ...more,
  });
  const call = { id: null, name: "bash", arguments: "{}", result: "NEEDLE" };
  const entries = [
    entry(2, { tool_calls: [call] }),
    entry(0, { text: "a needle" }),
    entry(1, { text: "hay" }),
    entry(3, { reasoning: "Needle?" }),
  ];
  assert.deepEqual(matches(entries, " needle "), [0, 2, 3]);
  assert.deepEqual(matches(entries, " "), []);
});

test("arguments that are nested deeper than a browser can follow are shown as they were written", () => {
  const deep = `{"command":"ls","more":${"[".repeat(6000)}${"]".repeat(6000)}}`;
  const view = toolView("bash", deep);
  assert.equal(view.kind, "shell");
  const list = toolView("any", "[".repeat(6000) + "]".repeat(6000));
  assert.equal(list.kind === "arguments" && list.text.replace(/\s/g, "").length, 12_000);
});
