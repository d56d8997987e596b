import assert from "node:assert/strict";
import { test } from "node:test";
import { firstItems } from "../src/api/pages";

test("pages are read until there is what is wanted, however short they are", async () => {
  const all = Array.from({ length: 10 }, (_, place) => place);
  const starts: number[] = [];
  const load = async (start: number) => {
    starts.push(start);
    return { total: all.length, found: all.slice(start, start + 3) };
  };
  const some = await firstItems(5, load, (page) => page.found);
  assert.deepEqual(some.items, [0, 1, 2, 3, 4, 5]);
  assert.deepEqual(starts, [0, 3]);
  const every = await firstItems(100, load, (page) => page.found);
  assert.deepEqual(every.items, all);
  assert.equal(every.last.total, 10);
});

test("a list that has become shorter ends", async () => {
  const load = async (start: number) => ({ total: 4, found: start === 0 ? [1] : [] });
  assert.deepEqual((await firstItems(4, load, (page) => page.found)).items, [1]);
});
