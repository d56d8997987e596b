import assert from "node:assert/strict";
import { test } from "node:test";
import { runsOf } from "../src/ui/terminal";
import { piecesOf, visible } from "../src/ui/unseen";

/** What is marked in a text. */
const marks = (text: string) =>
  piecesOf(text).flatMap((piece) => (typeof piece === "string" ? [] : [piece.name]));
const shown = (text: string) =>
  runsOf(text)
    .map((run) => run.text)
    .join("");

test("what hides or reorders text is marked, and nothing of the text is lost", () => {
  assert.deepEqual(marks("a\u202eb\u200bc\u0000"), ["U+202E", "U+200B", "U+0000"]);
  assert.deepEqual(marks("\u3164\uffa0\u115f\u1160\u034f"), [
    "U+3164",
    "U+FFA0",
    "U+115F",
    "U+1160",
    "U+034F",
  ]);
  assert.deepEqual(marks("a\ufe00\u{e0100}\u{e0041}"), ["U+FE00", "U+E0100", "U+E0041"]);
  assert.deepEqual(marks("\ud800a\udc00"), ["U+D800", "U+DC00"]);
  assert.deepEqual(piecesOf("a\u200b\u200b\u200bb"), ["a", { name: "U+200B", times: 3 }, "b"]);
  assert.equal(visible("a\u0007\u{e0001}"), "a[U+0007][U+E0001]");
});

test("ordinary text is left alone", () => {
  const text =
    "tab\tline\r\nüñ 漢字 한국어 🙂 1\ufe0f\u20e3 ❤\ufe0f 👩\u200d💻 👩🏽\u200d💻 🏳\ufe0f\u200d🌈";
  assert.deepEqual(piecesOf(text), [text]);
  assert.deepEqual(piecesOf(""), []);
});

test("what emoji are made with is marked where there is no emoji", () => {
  assert.deepEqual(marks("a\ufe0fb"), ["U+FE0F"]);
  assert.deepEqual(marks("❤\ufe0f\ufe0f"), ["U+FE0F"]);
  assert.deepEqual(marks("a\u200db"), ["U+200D"]);
  assert.deepEqual(marks("👩\u200dx"), ["U+200D"]);
});

test("very many unseen characters are told in few pieces", () => {
  const pieces = piecesOf("\u200b\u200c".repeat(500_000));
  assert.ok(pieces.length < 3000);
  assert.ok(`${pieces.at(-1)}`.endsWith("[U+200C]"));
});

test("colours become classes", () => {
  assert.deepEqual(runsOf("a\u001b[1;31mb\u001b[0mc\u009b32md"), [
    { text: "a", style: "" },
    { text: "b", style: "ansi-red ansi-bold" },
    { text: "c", style: "" },
    { text: "d", style: "ansi-green" },
  ]);
  const styles = (text: string) => runsOf(text).map((run) => run.style);
  assert.deepEqual(styles("\u001b[38;5;9;4ma\u001b[24;39;44mb"), [
    "ansi-bright-red ansi-underline",
    "ansi-blue-bg",
  ]);
  // Of millions of colours the nearest with a name.
  assert.deepEqual(styles("\u001b[38;2;250;20;30ma\u001b[38;2;0;120;10;1mb\u001b[0;48;5;21mc"), [
    "ansi-bright-red",
    "ansi-green ansi-bold",
    "ansi-blue-bg",
  ]);
  assert.deepEqual(styles("\u001b[38;5;240ma\u001b[38;5;255mb\u001b[38;2;1ma"), [
    "ansi-bright-black",
    "ansi-bright-white",
    "ansi-black",
  ]);
  assert.deepEqual(styles("\u001b[91ma\nb"), ["ansi-bright-red"], "over lines");
});

test("other sequences are left out, and the text after them is not", () => {
  assert.equal(shown("a\u001b(Bb\u001b=c\u001b7d\u001b[2Je\u001b[?25lf"), "abcdef");
  assert.equal(shown("\u001b]0;title\u0007a\u001b]8;;http://x\u001b\\b\u009d0;t\u009cc"), "abc");
  assert.equal(shown("\u001bPq#0;2\u001b\\a"), "a");
  assert.equal(shown("\u001b]0;never ends\nnext"), "0;never ends\nnext");
  assert.equal(shown("a\u001b[31"), "a");
  assert.equal(shown("a\u001b[31\nb"), "a\nb");
  assert.equal(shown("a\u001b"), "a\u001b", "it is marked then");
  assert.equal(shown("a\u001bü"), "a\u001bü");
});

test("a line that is written again shows its last state", () => {
  assert.equal(shown("10%\r50%\r100%\ndone"), "100%\ndone");
  assert.equal(shown("a long line\rshort"), "shortg line");
  assert.equal(shown("a long line\r\u001b[Kshort"), "short");
  assert.equal(shown("a long line\u001b[2K\u001b[1Gshort"), "short");
  assert.equal(shown("kept\r"), "kept");
  assert.equal(shown("one\r\ntwo\r\r\nthree"), "one\ntwo\nthree");
  assert.deepEqual(runsOf("\u001b[31mred\r\u001b[32mg"), [
    { text: "g", style: "ansi-green" },
    { text: "ed", style: "ansi-red" },
  ]);
});

test("sequences that are repeated very often are read to their end", () => {
  // Work that grew with the square of the text would not come to an end here.
  const many = 200_000;
  for (const [part, once] of [
    ["\u001b[1m", ""],
    ["\u001b[2Ka", "a"],
    ["\ra", "a"],
    ["\u001b[1", ""],
  ] as const)
    assert.equal(shown(part.repeat(many)), once);
  assert.equal(shown(`\u001b[${"1;".repeat(many)}ma`), "a");
  assert.equal(shown(`\u001b]${"a".repeat(many)}`).length, many);
  for (const part of ["\u001b]", "\u009d", "\u001bP"])
    assert.ok(shown(part.repeat(many)).length <= 2 * many);
});
