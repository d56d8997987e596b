import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError } from "../src/api/client";
import type { Entry, TranscriptPage } from "../src/api/types";
import { firstLines, lineHunks, wordChanges } from "../src/pages/compare/side/difference";
import { isComplete, NOTHING_READ, Reader, type Read } from "../src/pages/compare/side/reader";

const entry = (text: string) => ({ text }) as Entry;

/** A server whose answers come when the test says so. */
function slowServer() {
  const asked: {
    start: number;
    answer: (texts: string[], total: number) => void;
    fail: (e: Error) => void;
  }[] = [];
  const load = (start: number) =>
    new Promise<TranscriptPage>((answered, fail) => {
      const answer = (texts: string[], total: number) =>
        answered({ start, total, entries: texts.map(entry) } as TranscriptPage);
      asked.push({ start, answer, fail });
    });
  return { asked, load };
}

/** Lets everything go on that waits for nothing but its turn. */
const settle = () => new Promise((wake) => setImmediate(wake));

function reading() {
  const server = slowServer();
  let read: Read = NOTHING_READ;
  const reader = new Reader(server.load, (it) => (read = it), 0);
  return { ...server, reader, texts: () => read.entries.map((it) => it.text), read: () => read };
}

test("what is added while a page is on its way is read afterwards", async () => {
  const { asked, reader, texts, read } = reading();
  reader.more();
  reader.grown();
  asked[0]!.answer(["a", "b"], 2);
  await settle();
  assert.equal(asked.length, 2, "asked again");
  assert.equal(asked[1]!.start, 1, "with the last entry, whose tools may have answered");
  asked[1]!.answer(["b!", "c"], 3);
  await settle();
  assert.deepEqual(texts(), ["a", "b!", "c"]);
  assert.ok(isComplete(read()));
  assert.equal(asked.length, 2, "and not for ever");
});

test("pages are read one at a time, as far as somebody looks", async () => {
  const { asked, reader, texts } = reading();
  reader.more();
  reader.more();
  assert.equal(asked.length, 1);
  asked[0]!.answer(["a"], 2);
  await settle();
  reader.grown();
  assert.equal(asked.length, 1, "the end is not in sight");
  reader.more();
  asked[1]!.answer(["b"], 2);
  await settle();
  reader.more();
  assert.equal(asked.length, 2, "nothing follows");
  assert.deepEqual(texts(), ["a", "b"]);
});

test("a server that is away is asked again, another error waits for somebody", async () => {
  const { asked, reader, read } = reading();
  reader.more();
  asked[0]!.fail(new ApiError(0, "unreachable", "away"));
  while (asked.length < 2) await settle();
  asked[1]!.fail(new ApiError(500, "broken", "broken"));
  await settle();
  assert.equal(read().error?.message, "broken");
  reader.more();
  assert.equal(asked.length, 2);
  reader.retry();
  asked[2]!.answer([], 0);
  await settle();
  assert.equal(read().error, null);
  reader.stop();
  reader.grown();
  assert.equal(asked.length, 3);
});

test("lines that differ are found with their numbers", () => {
  assert.deepEqual(lineHunks("a\nb\n", "a\nc\n"), [
    { oldStart: 1, oldLines: 2, newStart: 1, newLines: 2, lines: [" a", "-b", "+c"] },
  ]);
  assert.deepEqual(lineHunks("", "a\nb\n"), [{ oldStart: 1, newStart: 1, lines: ["+a", "+b"] }]);
  assert.deepEqual(lineHunks("", ""), []);
});

test("files that are made to be compared for ever are not compared", () => {
  const lines = (word: string) => Array.from({ length: 50_000 }, (_, at) => `${word}${at % 7}`);
  const [a, b] = [lines("a").join("\n"), lines("b").join("\n")];
  assert.equal(lineHunks(a, b), null);
  const alone = lineHunks(a, "")!;
  assert.equal(alone[0]!.lines.length, 50_000);
  const shown = firstLines(alone, 1000);
  assert.deepEqual([shown.hunks[0]!.lines.length, shown.total], [1000, 50_000]);
  const words = (word: string) =>
    Array.from({ length: 1300 }, (_, at) => word + (at % 3)).join(" ");
  assert.equal(wordChanges(words("a"), words("b")), null);
  assert.equal(wordChanges("one two", "one three")?.length, 3);
});
