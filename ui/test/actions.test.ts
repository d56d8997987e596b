import assert from "node:assert/strict";
import { test } from "node:test";
import { row } from "./row";

// The module asks where the page stands.
Object.assign(globalThis, {
  document: { baseURI: "http://host/prefix/web/" },
  location: { hash: "" },
  addEventListener: () => {},
});
const { added, comparison, forEach, saveMany, traceAddress } =
  await import("../src/pages/rollouts/actions");

test("two are compared side by side, more by what they have in common", () => {
  assert.equal(comparison([]), null);
  assert.equal(comparison([row("a"), row("b")]), "#/compare?ids=a%2Cb");
  assert.equal(comparison([row("a"), row("b"), row("c")]), "#/compare?group=g1");
  const groups = ["a", "b", "c"].map((name) => row(name, { group: name }));
  assert.equal(comparison(groups), "#/compare?task=Fix-It");
  const others = groups.map((it) => ({ ...it, task_id: it.rollout_id }));
  assert.equal(comparison(others), null);
});

/** The text of several exports as one file, without what ends it. */
async function joined(type: string, ...parts: string[]): Promise<string> {
  let file: Blob[] = [];
  for (const part of parts) file = await added(file, new Blob([part], { type }));
  return new Blob(file).text();
}

test("lines are joined as lines, documents as a list", async () => {
  const lines = await joined("application/x-ndjson", '{"a":1}\n', "", '{"b":2}');
  assert.equal(lines, '{"a":1}\n{"b":2}\n');
  assert.equal(await joined("application/json", '{"a":1}', "[2]"), '[{"a":1},\n[2]');
});

test("what came is saved, and what was refused is told in the server's words", async () => {
  const saved: Blob[] = [];
  const anchor = { href: "", download: "", click: () => {} };
  Object.assign(document, { createElement: () => anchor });
  URL.createObjectURL = (blob) => (saved.push(blob as Blob), "blob:x");
  globalThis.fetch = async (url) => {
    const isBad = `${url}`.includes("bad");
    const body = isBad ? { error: { code: "no", message: "no tokens were kept" } } : { ok: true };
    const headers = { "content-type": "application/json" };
    return new Response(JSON.stringify(body), { status: isBad ? 409 : 200, headers });
  };
  const done: number[] = [];
  const rows = ["good-1", "bad-0001", "good-2"].map((name) => row(name));
  await assert.rejects(
    saveMany(rows, "sft", (many) => done.push(many)),
    /1 of 3 failed: no tokens were kept \(bad-0001\)/,
  );
  assert.deepEqual(done, [1, 2, 3]);
  assert.deepEqual(JSON.parse(await saved[0]!.text()), [{ ok: true }, { ok: true }]);
  assert.equal(anchor.download, "rollouts-sft.json");
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
      ["1", "2", "3", "4", "5"].map((name) => row(name)),
      async ({ rollout_id }) => {
        if (Number(rollout_id) % 2) throw new Error("conflict");
        done.push(Number(rollout_id));
      },
      (count) => (most = count),
    ),
    /3 of 5 failed: conflict \(1, 3, 5\)/,
  );
  assert.deepEqual(done, [2, 4]);
  assert.equal(most, 5);
});
