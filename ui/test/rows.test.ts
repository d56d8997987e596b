import assert from "node:assert/strict";
import { test } from "node:test";
import type { RolloutRow } from "../src/api/types";
import { BLOCK, isNewer, RowStore } from "../src/pages/rollouts/rows";
import { row } from "./row";

const id = (n: number) => `id-${String(n).padStart(6, "0")}`;

/** A server with rows 1 to `size`, the newest first. */
function serverOf(size: number) {
  const state = { rows: [] as RolloutRow[], asked: [] as [number, number][], isDown: false };
  for (let n = size; n > 0; n--) state.rows.push(row(id(n), { status: "ended" }));
  const fetch = async (offset: number, limit: number) => {
    state.asked.push([offset, limit]);
    if (state.isDown) throw new Error("down");
    const rollouts = state.rows.slice(offset, offset + limit).map((it) => ({ ...it }));
    return { rollouts, total: state.rows.length, next_cursor: null };
  };
  return { state, fetch };
}

function storeOf(server: ReturnType<typeof serverOf>, isNewestFirst = true) {
  const seen = { changes: [] as [number, number][], stale: 0, moved: 0, failed: [] as unknown[] };
  const store = new RowStore({
    fetch: server.fetch,
    matches: (it) => it.agent === "opencode",
    hasMoved: (old, it) => !isNewestFirst && old.calls !== it.calls,
    isNewestFirst,
    filled: () => {},
    changed: (added, at) => seen.changes.push([added, at]),
    moved: (by) => (seen.moved += by),
    stale: () => seen.stale++,
    failed: (error) => seen.failed.push(error),
  });
  return { store, seen };
}

const settle = () => new Promise((done) => setTimeout(done, 0));
const idAt = (store: RowStore, index: number) => store.row(index)?.rollout_id;

test("only what is seen is asked for, and once", async () => {
  const server = serverOf(10_000);
  const { store } = storeOf(server);
  store.need(0, 20);
  assert.equal(server.state.asked.length, 0, "the first reading is refresh");
  await store.refresh(0, 20);
  assert.equal(store.total, 10_000);
  store.need(5070, 5090);
  store.need(5071, 5091);
  await settle();
  assert.deepEqual(
    server.state.asked,
    [0, 5000, 5100].map((offset) => [offset, BLOCK]),
    "what is seen first, then what is near",
  );
  assert.equal(idAt(store, 5000), id(5000));
  assert.equal(store.row(6000), undefined);
});

test("whoever scrolls far waits for two blocks at most that have passed by", async () => {
  const server = serverOf(10_000);
  const { store } = storeOf(server);
  await store.refresh(0, 20);
  for (let at = 1000; at < 9000; at += 500) store.need(at, at + 30);
  store.need(9520, 9550);
  await settle();
  assert.ok(store.row(9520) && store.row(9550));
  const passed = server.state.asked.filter(([offset]) => offset > 0 && offset < 9400);
  assert.ok(passed.length <= 2, `${passed}`);
});

test("a new row comes on top, and the rest keeps its order", async () => {
  const server = serverOf(3);
  const { store, seen } = storeOf(server);
  await store.refresh(0, 20);
  store.apply(row(id(4)));
  assert.deepEqual(
    [0, 1, 2, 3].map((n) => idAt(store, n)),
    [4, 3, 2, 1].map(id),
  );
  assert.deepEqual(seen.changes.at(-1), [1, 0]);
  store.apply(row(id(4), { calls: 5 }));
  assert.equal(store.total, 4);
  assert.equal(store.row(0)?.calls, 5);
});

test("a row that does not match is not listed, and one that no longer does goes", async () => {
  const { store, seen } = storeOf(serverOf(3));
  await store.refresh(0, 20);
  store.apply(row(id(4), { agent: "pi" }));
  assert.equal(store.total, 3);
  store.apply(row(id(5)));
  store.apply(row(id(5), { agent: "pi", calls: 9 }));
  assert.equal(store.total, 3);
  assert.deepEqual(seen.changes.at(-1), [-1, 0]);
});

test("what the stream tells before the first answer is not lost", async () => {
  const { store } = storeOf(serverOf(2));
  store.apply(row(id(3)));
  assert.equal(store.total, null);
  await store.refresh(0, 20);
  assert.equal(store.total, 3);
  assert.equal(idAt(store, 0), id(3));
});

test("an older state does not replace a newer one", async () => {
  const server = serverOf(1);
  const { store } = storeOf(server);
  await store.refresh(0, 20);
  store.apply(row(id(1), { status: "running" }));
  assert.equal(store.row(0)?.status, "ended");
  assert.ok(isNewer(row("a", { status: "ended", calls: 0 }), row("a", { calls: 9 })));
  assert.ok(!isNewer(row("a", { calls: 1 }), row("a", { calls: 2 })));
});

test("a new row whose place is not known asks for a reading, once", async () => {
  const server = serverOf(1000);
  const { store, seen } = storeOf(server);
  await store.refresh(500, 530);
  store.apply(row(id(1001)));
  store.apply(row(id(1001), { calls: 2 }));
  assert.equal(seen.stale, 1);
  const sorted = storeOf(serverOf(2), false);
  await sorted.store.refresh(0, 20);
  sorted.store.apply(row(id(9)));
  assert.equal(sorted.seen.stale, 1);
  assert.equal(sorted.store.total, 2);
});

test("a row that comes to match is listed, or asks for a reading where its place is not known", async () => {
  const { store, seen } = storeOf(serverOf(3));
  await store.refresh(0, 20);
  store.apply(row(id(4), { agent: "pi" }));
  store.apply(row(id(4), { calls: 2 }));
  assert.equal(idAt(store, 0), id(4));
  assert.equal(seen.stale, 0);
  const sorted = storeOf(serverOf(2), false);
  await sorted.store.refresh(0, 20);
  sorted.store.apply(row(id(9), { agent: "pi" }));
  assert.equal(sorted.seen.stale, 0);
  sorted.store.apply(row(id(9), { calls: 2 }));
  assert.equal(sorted.seen.stale, 1);
  sorted.store.apply(row(id(9), { calls: 3 }));
  assert.equal(sorted.seen.stale, 1, "it is known to be somewhere");
  sorted.store.apply(row(id(9), { agent: "pi", calls: 4 }));
  assert.equal(sorted.seen.stale, 2, "and now it is not");
});

test("a sorted list is read again when the value that it is sorted by changes", async () => {
  const server = serverOf(2);
  server.state.rows = [row(id(2), { calls: 5 }), row(id(1), { calls: 3 })];
  const { store, seen } = storeOf(server, false);
  await store.refresh(0, 20);
  store.apply(row(id(1), { calls: 3, wall_s: 9 }));
  assert.equal(seen.stale, 0);
  store.apply(row(id(1), { calls: 7 }));
  assert.equal(seen.stale, 1);
  assert.equal(store.row(1)?.calls, 7, "what is known is shown meanwhile");
});

test("a row that left while the list was being read is not shown for good", async () => {
  const server = serverOf(2);
  server.state.rows = [row(id(2)), row(id(1))];
  const { store, seen } = storeOf(server);
  await store.refresh(0, 20);
  const reading = store.refresh(0, 20);
  store.apply(row(id(1), { agent: "pi", calls: 2 }));
  await reading;
  assert.equal(seen.stale, 1);
});

test("a deleted rollout that nobody has looked at makes the list shorter", async () => {
  const { store, seen } = storeOf(serverOf(1000));
  await store.refresh(0, 20);
  store.remove(id(3));
  assert.equal(seen.stale, 1);
});

test("rows that moved on the server stand at one place only", async () => {
  const server = serverOf(250);
  const { store } = storeOf(server);
  await store.refresh(0, 20);
  server.state.rows.unshift(row(id(251)));
  store.need(100, 120);
  await settle();
  assert.equal(store.total, 251);
  assert.equal(idAt(store, 100), id(151));
  assert.equal(idAt(store, 99), id(152), "its old place is asked for again");
  const ids = Array.from({ length: 251 }, (_, n) => idAt(store, n)).filter(Boolean);
  assert.equal(new Set(ids).size, ids.length);
});

test("what is read stays in view when rows came above it", async () => {
  const server = serverOf(1000);
  const { store, seen } = storeOf(server);
  await store.refresh(500, 530);
  server.state.rows.unshift(row(id(1002)), row(id(1001)));
  await store.refresh(500, 530);
  assert.equal(seen.moved, 2);
  assert.equal(idAt(store, 502), id(500));
});

test("a list that became shorter than what was seen is read from its start", async () => {
  const server = serverOf(1000);
  const { store } = storeOf(server);
  await store.refresh(900, 930);
  server.state.rows.splice(10);
  await store.refresh(900, 930);
  await settle();
  assert.equal(store.total, 10);
  assert.equal(idAt(store, 0), id(1000));
});

test("a deleted rollout is gone, and one that is not listed changes nothing", async () => {
  const { store } = storeOf(serverOf(3));
  await store.refresh(0, 20);
  store.remove(id(2));
  store.remove(id(77));
  assert.deepEqual(
    [0, 1].map((n) => idAt(store, n)),
    [3, 1].map(id),
  );
  assert.equal(store.total, 2);
});

test("a failure is told, and what is known stays", async () => {
  const server = serverOf(3);
  const { store, seen } = storeOf(server);
  await store.refresh(0, 20);
  server.state.isDown = true;
  await store.refresh(0, 20);
  assert.equal(seen.failed.length, 1);
  assert.equal(idAt(store, 0), id(3));
});

test("a range is read whole, in blocks", async () => {
  const server = serverOf(1200);
  const { store } = storeOf(server);
  await store.refresh(0, 20);
  const found = await store.between(50, 1149);
  assert.equal(found.length, 1100);
  assert.equal(found.at(-1)?.rollout_id, id(51));
});
