import assert from "node:assert/strict";
import { test } from "node:test";
import { row } from "./row";

// The module asks where the page stands.
Object.assign(globalThis, {
  document: { baseURI: "http://host/prefix/web/" },
  location: { hash: "" },
  addEventListener: () => {},
});
const { comparison, forEach, join, traceAddress } = await import("../src/pages/rollouts/actions");

test("two are compared side by side, more by what they have in common", () => {
  assert.equal(comparison([]), null);
  assert.equal(comparison([row("a"), row("b")]), "#/compare?ids=a%2Cb");
  assert.equal(comparison([row("a"), row("b"), row("c")]), "#/compare?group=g1");
  const groups = ["a", "b", "c"].map((name) => row(name, { group: name }));
  assert.equal(comparison(groups), "#/compare?task=Fix-It");
  const others = groups.map((it) => ({ ...it, task_id: it.rollout_id }));
  assert.equal(comparison(others), null);
});

test("lines are joined as lines, documents as a list", () => {
  assert.deepEqual(join(['{"a":1}\n', '{"b":2}'], "application/x-ndjson"), {
    text: '{"a":1}\n{"b":2}\n',
    extension: "jsonl",
  });
  const { text, extension } = join(['{"a":1}', "[2]"], "application/json");
  assert.deepEqual([JSON.parse(text), extension], [[{ a: 1 }, [2]], "json"]);
});

test("exports are found below a prefix", () => {
  const url = traceAddress("x", "sft");
  assert.equal(url, "http://host/prefix/v1/rollouts/x/trace?format=sft");
});

test("all are tried, and what failed is told", async () => {
  const done: number[] = [];
  let most = 0;
  await assert.rejects(
    forEach(
      [1, 2, 3, 4, 5],
      async (n) => {
        if (n % 2) throw new Error("conflict");
        done.push(n);
      },
      (count) => (most = count),
    ),
    /3 of 5 failed: conflict/,
  );
  assert.deepEqual(done, [2, 4]);
  assert.equal(most, 5);
});
