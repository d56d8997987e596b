// Answers out of a saved file.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError } from "../src/api/client";
import type { Token, TokenPage, TurnPage } from "../src/api/types";
import { keyOf, promptOf, type Saved, savedSource, sliced } from "../src/saved/source";

const token = (id: number): Token => ({
  id,
  text: `t${id}`,
  logprob: -1,
  mask: 1,
  sampled_in: null,
  alternatives: [],
});
const completion = (turn: number, ids: number[]): TokenPage => ({
  turn,
  part: "completion",
  tokens: ids.map(token),
  start: 0,
  total: ids.length,
  is_exact: true,
});
const saved: Saved = {
  version: 1,
  rollout_id: "R",
  saved_at: 0,
  program: "rollcage",
  answers: {
    "v1/rollouts/R": { rollout_id: "R" },
    "v1/rollouts/R/turns": { turns: [{ turn: 0 }, { turn: 1 }, { turn: 2 }], start: 0, total: 3 },
    "v1/rollouts/R/turns/0": { turn: 0 },
    "v1/rollouts/R/turns/1": { turn: 1 },
    "v1/rollouts/R/transcript?conversation=0": { entries: [], start: 0, total: 0 },
    "v1/rollouts/R/turns/0/tokens?part=completion": completion(0, [10, 11]),
    "v1/rollouts/R/turns/1/tokens?part=completion": completion(1, [20]),
  },
  same: { "v1/rollouts/R/transcript": "v1/rollouts/R/transcript?conversation=0" },
  conversations: [{ root: 0 }],
  tool_lists: [[{ name: "bash" }]],
  tools: [null, 0],
  prompts: [
    {
      before: null,
      shared: 0,
      tokens: [
        [1, null],
        [2, null],
      ],
    },
    { before: 0, shared: 4, tokens: [[3, null]] },
    // Left the reply of turn 1 out.
    { before: 1, shared: 5, tokens: [[4, null]] },
    null,
  ],
};

test("an address is found whatever its host, prefix and page", () => {
  const found = keyOf(
    "https://x.example/a/b/v1/rollouts/R/turns/3/tokens?start=5&part=prompt&limit=10&trace=none",
  );
  assert.deepEqual(found, { key: "v1/rollouts/R/turns/3/tokens?part=prompt", start: 5, limit: 10 });
});

test("pages are cut out of whole lists", async () => {
  const source = savedSource(saved);
  const page = (await source.request(
    "GET",
    "saved:///v1/rollouts/R/turns?start=1&limit=1",
  )) as TurnPage;
  assert.deepEqual(page, { turns: [{ turn: 1 }], start: 1, total: 3 });
  assert.deepEqual(await source.request("GET", "saved:///v1/rollouts/R?trace=none"), {
    rollout_id: "R",
  });
});

test("a page of the graph has the links to its calls", () => {
  const graph = {
    nodes: [{ turn: 0 }, { turn: 1 }],
    edges: [{ from: 0, to: 1 }],
    start: 0,
    total: 2,
  };
  assert.deepEqual(sliced(graph, 0, 1), { nodes: [{ turn: 0 }], edges: [], start: 0, total: 2 });
  assert.deepEqual(sliced(graph, 1, 5), {
    nodes: [{ turn: 1 }],
    edges: [{ from: 0, to: 1 }],
    start: 1,
    total: 2,
  });
});

test("prompts are put together from what is new in each", () => {
  const told = (turn: number) =>
    promptOf(saved, turn).map(({ id, sampled_in }) => [id, sampled_in]);
  assert.deepEqual(told(0), [
    [1, null],
    [2, null],
  ]);
  assert.deepEqual(told(1), [
    [1, null],
    [2, null],
    [10, 0],
    [11, 0],
    [3, null],
  ]);
  assert.deepEqual(told(2), [
    [1, null],
    [2, null],
    [10, 0],
    [11, 0],
    [3, null],
    [4, null],
  ]);
  assert.deepEqual(told(3), []);
  assert.equal(promptOf(saved, 1)[2]!.text, "t10");
  assert.equal(promptOf(saved, 1)[0]!.text, null);
});

test("what is not in the file, and what would change something, is refused in words", async () => {
  const source = savedSource(saved);
  const isRefused = (error: unknown) => error instanceof ApiError && error.status === 404;
  await assert.rejects(source.request("GET", "saved:///v1/server"), isRefused);
  await assert.rejects(source.request("POST", "saved:///v1/rollouts/R"), isRefused);
});

test("what stands in the file once is found wherever it belongs", async () => {
  const ask = (path: string) => savedSource(saved).request("GET", `saved:///v1/rollouts/R/${path}`);
  assert.deepEqual(await ask("turns/0"), { turn: 0, tools: null });
  assert.deepEqual(await ask("turns/1"), { turn: 1, tools: [{ name: "bash" }] });
  assert.deepEqual(await ask("transcript"), {
    entries: [],
    start: 0,
    total: 0,
    conversations: [{ root: 0 }],
  });
});
