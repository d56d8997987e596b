import assert from "node:assert/strict";
import { test } from "node:test";
import type { Reply } from "../src/api/types";
import { inputLine, NOTHING_TOLD, readQuestions, tell } from "../src/pages/live/replies";

const common = { trace_id: "t", turn_id: "t", session_id: "s" };
const delta = (seq: number, text: string): Reply => ({ ...common, seq, kind: "delta", text });
const tool = (seq: number, status: "running" | "completed", output: string | null): Reply => ({
  ...common,
  seq,
  kind: "tool",
  call_id: "c1",
  name: "bash",
  status,
  input: { command: "ls\n-l" },
  output,
});

test("text that goes on is one item, and a tool call keeps its place", () => {
  const told = tell(NOTHING_TOLD, [
    delta(1, "I "),
    delta(2, "look."),
    tool(3, "running", null),
    delta(4, "Done."),
    tool(5, "completed", "a.txt"),
  ]);
  assert.deepEqual(
    told.items.map((item) => [item.kind, item.seq]),
    [
      ["text", 1],
      ["tool", 3],
      ["text", 4],
    ],
  );
  assert.deepEqual(told.items[0], { kind: "text", seq: 1, text: "I look." });
  assert.equal(told.items[1]?.kind === "tool" && told.items[1].output, "a.txt");
  assert.equal(told.sessionId, "s");
  assert.equal(told.end, null);
});

test("a stream that begins again repeats nothing", () => {
  const replies = [delta(1, "a"), delta(2, "b")];
  const once = tell(NOTHING_TOLD, replies);
  const twice = tell(once, [...replies, delta(3, "c")]);
  assert.deepEqual(twice.items, [{ kind: "text", seq: 1, text: "abc" }]);
  assert.deepEqual(once.items, [{ kind: "text", seq: 1, text: "ab" }]);
});

test("the last reply ends the turn", () => {
  const usage = { input: 1, output: 1, reasoning: 0, cache_read: 0, cache_write: 0, cost: 0 };
  const last: Reply = { ...common, seq: 2, kind: "final", text: "x", usage, finish: "stop" };
  assert.equal(tell(NOTHING_TOLD, [delta(1, "x"), last]).end, last);
});

test("questions of any shape can be shown", () => {
  const asked = [
    {
      header: "Way",
      question: "Which?",
      options: [{ label: "A", description: "first" }, "B", 7],
      multiple: true,
    },
    null,
  ];
  assert.deepEqual(readQuestions(asked), [
    {
      title: "Way",
      text: "Which?",
      choices: [
        { label: "A", about: "first" },
        { label: "B", about: "" },
      ],
      isMultiple: true,
    },
    { title: "", text: "", choices: [], isMultiple: false },
  ]);
  assert.deepEqual(readQuestions("x"), []);
});

test("a tool call is told in a line", () => {
  assert.equal(inputLine({ command: "ls\n-l", description: "d" }), "ls");
  assert.equal(inputLine({ other: 1 }), "");
  assert.equal(inputLine(null), "");
});
