// What the tabs about turns, tokens and graph compute.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError } from "../src/api/client";
import type { GraphEdge, GraphNode } from "../src/api/types";
import { blockOf, blocks, isSpecial } from "../src/pages/rollout/understand/blocks";
import { indented } from "../src/ui/json";
import { picture } from "../src/pages/rollout/understand/layout";
import { PageCache } from "../src/pages/rollout/understand/pages";
import { foldAt } from "../src/pages/rollout/understand/parts";
import { level, percent, stretches } from "../src/pages/rollout/understand/scale";
import { around, chips, segments } from "../src/pages/rollout/understand/segments";
import { fitted, kept, zoomed } from "../src/pages/rollout/understand/view";

const node = (turn: number, role = "agent", reason: string | null = null): GraphNode => ({
  turn,
  node_id: `n${turn}`,
  role,
  reason,
  is_trained: role === "agent",
  root: 0,
  is_subagent: false,
});
const edge = (from: number, to: number, link: GraphEdge["link"] = "continues"): GraphEdge => ({
  from,
  to,
  link,
});
const turnsOf = (graph: ReturnType<typeof segments>) =>
  graph.segments.map((segment) => segment.nodes.map(({ turn }) => turn));

test("calls that go on from each other are one segment", () => {
  const graph = segments([node(0), node(1), node(2)], [edge(0, 1), edge(1, 2, "retokenised")]);
  assert.deepEqual(turnsOf(graph), [[0, 1, 2]]);
  assert.deepEqual(graph.segments[0]!.links, [null, "continues", "retokenised"]);
  assert.deepEqual(graph.edges, []);
});

test("a fork ends a segment, and both ways start one", () => {
  const nodes = [0, 1, 2, 3, 4].map((turn) => node(turn));
  const graph = segments(nodes, [edge(0, 1), edge(1, 2), edge(1, 3), edge(2, 4)]);
  assert.deepEqual(turnsOf(graph), [[0, 1], [2, 4], [3]]);
  assert.deepEqual(
    graph.edges.map(({ from, to, fromTurn }) => [from, to, fromTurn]),
    [
      [0, 2, 1],
      [0, 3, 1],
    ],
  );
});

test("calls beside the work do not cut the conversation, and are bundled by kind", () => {
  const nodes = [
    node(0),
    node(1, "auxiliary", "beside"),
    node(2),
    node(3, "discarded", "asked_again"),
  ];
  nodes.push(node(4), node(5, "auxiliary", "beside"), node(6));
  const edges = [edge(0, 1), edge(0, 2), edge(2, 3), edge(2, 4), edge(4, 5), edge(4, 6)];
  const graph = segments(nodes, edges);
  assert.deepEqual(turnsOf(graph), [[0, 2, 4, 6], [1, 5], [3]]);
  assert.deepEqual(
    graph.edges.map(({ to, count }) => [to, count]),
    [
      [1, 2],
      [3, 1],
    ],
  );
});

test("a summary that is gone on from, and a subagent, have segments of their own", () => {
  const nodes = [
    node(0),
    node(1, "auxiliary", "summary"),
    node(2),
    { ...node(3), is_subagent: true },
    node(4),
  ];
  const graph = segments(nodes, [
    edge(0, 1),
    edge(1, 2, "compacts"),
    edge(2, 3, "spawned"),
    edge(2, 4),
  ]);
  assert.deepEqual(turnsOf(graph), [[0], [1], [2, 4], [3]]);
  assert.equal(graph.segments[3]!.role, "subagent");
  assert.deepEqual(
    graph.edges.map(({ link }) => link),
    ["continues", "compacts", "spawned"],
  );
});

test("thousands of calls that go on from none are one bundle", () => {
  const graph = segments(
    Array.from({ length: 2000 }, (_, turn) => node(turn)),
    [],
  );
  assert.equal(graph.segments.length, 1);
  assert.equal(graph.segments[0]!.isBundle, true);
});

test("a call without an answer stays in its conversation", () => {
  const graph = segments([node(0), node(1, "pending")], [edge(0, 1)]);
  assert.deepEqual(turnsOf(graph), [[0, 1]]);
});

test("a long segment shows its ends, what is notable, and how many are between", () => {
  const nodes = Array.from({ length: 100 }, (_, turn) => node(turn));
  const [segment] = segments(
    nodes,
    nodes.slice(1).map(({ turn }) => edge(turn - 1, turn)),
  ).segments;
  const shown = chips(segment!, (at) => at === 50);
  const covered = shown.reduce((sum, chip) => sum + ("skipped" in chip ? chip.skipped : 1), 0);
  assert.equal(covered, 100);
  assert.ok(shown.some((chip) => "at" in chip && chip.at === 50));
  assert.deepEqual(shown[5], { skipped: 45, from: 5 });
});

test("logprobs have steps by probability", () => {
  assert.equal(level(0), 0);
  assert.equal(level(Math.log(0.6)), 2);
  assert.equal(level(-9999), 6);
  assert.equal(level(null), null);
  assert.equal(percent(0), "100%");
  assert.equal(percent(Math.log(0.0563)), "5.63%");
  assert.equal(percent(-50), "< 0.001%");
});

test("a stretch is shown by its least likely token and its mean", () => {
  const found = stretches([-1, -5, null, undefined, -2, -3], 3);
  assert.deepEqual(found, [
    { index: 1, logprob: -5, mean: -3 },
    null,
    { index: 5, logprob: -3, mean: -2.5 },
  ]);
});

test("blocks hold every token once and end at lines", () => {
  const tokens = Array.from({ length: 1000 }, (_, at) => ({ text: at % 60 === 59 ? "\n" : "x" }));
  const cut = blocks(tokens);
  assert.equal(cut[0]!.end, 60);
  assert.equal(cut.at(-1)!.end, 1000);
  cut.slice(1).forEach((block, at) => assert.equal(block.start, cut[at]!.end));
  assert.equal(blockOf(cut, 0), 0);
  assert.equal(blockOf(cut, 60), 1);
  assert.equal(blockOf(cut, 999), cut.length - 1);
  assert.equal(blocks(Array.from({ length: 900 }, () => ({ text: "x" }))).length, 3);
});

test("marks of chat templates are told from words", () => {
  for (const text of ["<|im_end|>", "</s>", "<｜end▁of▁sentence｜>"])
    assert.ok(isSpecial(text), text);
  for (const text of ["<b>", "a <|x|>", "<", "[INST"]) assert.ok(!isSpecial(text), text);
});

test("indented JSON is the same JSON, as it was written", () => {
  const text = '{"a":[1.0,12345678901234567890,{}],"b":"x\\u0041 {,}\\"","c":[]}';
  const shown = indented(text)!;
  assert.deepEqual(JSON.parse(shown), JSON.parse(text));
  assert.match(shown, /1\.0,\n {4}12345678901234567890,\n {4}\{\}/);
  assert.match(shown, /"x\\u0041 \{,\}\\""/);
  assert.equal(indented("data: {}"), null);
  assert.equal(indented("{broken"), null);
});

test("pages are asked for once, kept while they are read again, and can fail", async () => {
  const asked: number[] = [];
  let answer = (start: number) => Promise.resolve({ items: [start, start + 1], total: 6 });
  let changes = 0;
  const cache = new PageCache<number>(
    2,
    (start) => (asked.push(start), answer(start)),
    () => (changes += 1),
  );
  cache.need(0, 3);
  cache.need(0, 3);
  await Promise.resolve();
  await Promise.resolve();
  assert.deepEqual(asked, [0, 2]);
  assert.deepEqual([cache.at(0), cache.at(3), cache.at(4), cache.total], [0, 3, undefined, 6]);
  answer = () => Promise.reject(new Error("gone"));
  cache.refresh();
  assert.equal(cache.at(0), 0);
  await new Promise((done) => setTimeout(done));
  assert.deepEqual(asked, [0, 2, 0, 2]);
  assert.equal(cache.at(0), 0);
  assert.match(cache.error!.message, /gone/);
  assert.ok(changes > 0);
});

test("a page that the server was away for is loaded again by itself", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let isAway = true;
  const cache = new PageCache<number>(
    2,
    async () => {
      if (isAway) throw new ApiError(0, "unreachable", "away");
      return { items: [7], total: 1 };
    },
    () => undefined,
  );
  const settled = async () => {
    for (let step = 0; step < 5; step += 1) await Promise.resolve();
  };
  cache.need(0, 0);
  await settled();
  assert.equal(cache.error?.code, "unreachable");
  isAway = false;
  t.mock.timers.tick(2000);
  await settled();
  assert.deepEqual([cache.at(0), cache.error], [7, null]);
});

test("long texts are folded at a line, short ones are not", () => {
  assert.equal(foldAt("one\ntwo\nthree"), null);
  const long = "a line\n".repeat(100);
  assert.equal(long.slice(0, foldAt(long)!).split("\n").length, 14);
  assert.equal(long.slice(0, foldAt(long, 3)!).split("\n").length, 3);
  assert.equal(foldAt("x".repeat(10_000)), 2400);
});

test("of a graph that is too large the part around a turn is drawn", () => {
  const nodes = Array.from({ length: 50 }, (_, turn) => node(turn));
  const chain = nodes.slice(1).map(({ turn }) => edge(turn - 1, turn, "spawned"));
  const graph = segments(nodes, chain);
  const part = around(graph, 20, 5);
  assert.deepEqual(
    part.segments.map(({ id }) => id),
    [18, 19, 20, 21, 22],
  );
  assert.equal(part.edges.length, 4);
  assert.deepEqual(around(graph, null, 2).segments[0]?.id, 0);
  assert.deepEqual(around({ segments: [], edges: [] }, null, 5).segments, []);
});

test("what a reader looks at stays in its place while the graph grows", () => {
  const size = { width: 400, height: 300 };
  const draw = (last: number) => {
    const turns = Array.from({ length: last }, (_, turn) => node(turn));
    const links = turns.slice(1).map(({ turn }) => edge(0, turn, "spawned"));
    return picture(segments(turns, links), "LR", new Set());
  };
  const [before, after] = [draw(3), draw(9)];
  const view = zoomed(fitted(before, size, "LR"), 2, { x: 200, y: 150 });
  const next = kept(view, before, after, size);
  assert.equal(next.scale, view.scale);
  const placeOf = (drawn: typeof before, at: typeof view) =>
    drawn.boxes.map((box) => [box.x * at.scale + at.x, box.y * at.scale + at.y].map(Math.round));
  const [old, now] = [placeOf(before, view), placeOf(after, next)];
  assert.ok(old.some((place, index) => `${place}` === `${now[index]}`));
});

test("JSON that is nested very deep is shown without growing beyond measure", () => {
  const text = "[".repeat(6000) + "]".repeat(6000);
  const shown = indented(text)!;
  assert.equal(shown.replace(/\s/g, ""), text);
  assert.ok(shown.length < 100 * text.length);
});
