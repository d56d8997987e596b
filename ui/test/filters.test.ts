import assert from "node:assert/strict";
import { test } from "node:test";
import {
  filtersOf,
  hasMoved,
  matches,
  NEWEST_FIRST,
  nextOrder,
  orderOf,
  queryOf,
  sinceOf,
} from "../src/pages/rollouts/filters";
import { row } from "./row";

test("the address names filters and order; what it does not know is left out", () => {
  const query = new URLSearchParams("task=a&q=&verdict=pass&other=1&sort=cost&order=asc");
  assert.deepEqual(filtersOf(query), { verdict: "pass", task: "a" });
  assert.deepEqual(orderOf(query), { sort: "cost", isAscending: true });
  assert.deepEqual(orderOf(new URLSearchParams("sort=nonsense")), NEWEST_FIRST);
  assert.deepEqual(orderOf(new URLSearchParams("sort=started_at")), NEWEST_FIRST);
});

test("a column is sorted one way, then the other, then not at all", () => {
  assert.deepEqual(nextOrder(NEWEST_FIRST, "reward"), { sort: "reward", order: "desc" });
  const down = { sort: "reward", isAscending: false } as const;
  assert.deepEqual(nextOrder(down, "reward"), { sort: "reward", order: "asc" });
  const up = { sort: "reward", isAscending: true } as const;
  assert.deepEqual(nextOrder(up, "reward"), { sort: "", order: "" });
  assert.deepEqual(nextOrder(NEWEST_FIRST, "task"), { sort: "task", order: "asc" });
  assert.deepEqual(nextOrder(NEWEST_FIRST, "started_at"), { sort: "started_at", order: "asc" });
});

test("a span of time is counted from now, a time is the server's to read", () => {
  assert.equal(sinceOf("24h", 100_000), 13_600);
  assert.equal(sinceOf("2026-05-01T12:00:00Z", 100_000), "2026-05-01T12:00:00Z");
  assert.deepEqual(queryOf({ task: "a", since: "1h" }, 4600), { task: "a", since: 1000 });
});

test("rows of the stream are filtered as the server does", () => {
  const it = row("abc-1", { labels: { run: "a=b" }, error: "Connection Refused" });
  const now = 2000;
  assert.ok(matches(it, {}, now));
  assert.ok(matches(it, { q: "fix-it" }, now) && matches(it, { q: "refused" }, now));
  assert.ok(matches(it, { q: "run=a" }, now) && matches(it, { q: "BC-1" }, now));
  assert.ok(!matches(it, { q: "nothing" }, now));
  assert.ok(matches(it, { label: "run=a=b" }, now));
  assert.ok(!matches(it, { label: "run=a" }, now) && !matches(it, { label: "run" }, now));
  assert.ok(matches(it, { task: "Fix-It" }, now) && !matches(it, { task: "fix-it" }, now));
  assert.ok(!matches(it, { verdict: "pass" }, now) && !matches(it, { status: "ended" }, now));
  assert.ok(matches(it, { since: "1h" }, now) && !matches(it, { since: "10m" }, now));
  assert.ok(matches(it, { since: "1970-01-01T00:16:00Z" }, now));
  assert.ok(!matches(it, { since: "1970-01-01T00:17:00Z" }, now));
  assert.ok(matches(it, { ended: "running" }, now) && !matches(it, { ended: "completed" }, now));
});

test("a row moves when the value that the list is sorted by changes", () => {
  const [old, newer] = [row("a"), row("a", { calls: 2, completion_tokens: 9 })];
  const by = (sort: "calls" | "tokens" | "reward") => ({ sort, isAscending: false });
  assert.ok(hasMoved(by("calls"), old, newer) && hasMoved(by("tokens"), old, newer));
  assert.ok(!hasMoved(by("reward"), old, newer) && !hasMoved(NEWEST_FIRST, old, newer));
});
