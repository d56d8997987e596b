import assert from "node:assert/strict";
import { test } from "node:test";
import { ago, bytes, count, dollars, reward, seconds, shortId } from "../src/format";

test("times are told in the unit that people would use", () => {
  assert.equal(seconds(null), "–");
  assert.equal(seconds(0.25), "250 ms");
  assert.equal(seconds(12.34), "12.3 s");
  assert.equal(seconds(0.9996), "1.0 s");
  assert.equal(seconds(59.94), "59.9 s");
  assert.equal(seconds(59.97), "1 min 0 s");
  assert.equal(seconds(125), "2 min 5 s");
  assert.equal(seconds(3 * 3600 + 120), "3 h 2 min");
  assert.equal(ago(100, 102), "now");
  assert.equal(ago(100, 100 + 7200), "2 h ago");
});

test("counts and sizes are short and keep their order of magnitude", () => {
  assert.equal(count(9_999), "9,999");
  assert.equal(count(12_345), "12.3k");
  assert.equal(count(4_560_000), "4.56M");
  assert.equal(count(99_949), "99.9k");
  assert.equal(count(99_960), "100k");
  assert.equal(count(999_499), "999k");
  assert.equal(count(999_999), "1.00M");
  assert.equal(count(99_999_999), "100M");
  assert.equal(count(999_999_999), "1.00G");
  assert.equal(bytes(1536), "1.5 KiB");
  assert.equal(bytes(1024 * 1024 - 1), "1.0 MiB");
  assert.equal(bytes(512), "512 B");
});

test("what is not known is a dash, and a reward of 0 is not unknown", () => {
  assert.equal(reward(null), "–");
  assert.equal(reward(0), "0.00");
  assert.equal(dollars(0), "–");
  assert.equal(dollars(0.0012), "$0.0012");
  assert.equal(dollars(0.00003), "<$0.0001");
  assert.equal(dollars(999.996), "$1,000");
  assert.equal(dollars(0.5), "$0.50");
  assert.equal(shortId("0123456789abcdef"), "89abcdef");
});

test("a reward never looks whole when it is not", () => {
  assert.deepEqual([1, 0.5, 0.333333, -1, 12.5].map(reward), [
    "1.00",
    "0.50",
    "0.33",
    "-1.00",
    "12.50",
  ]);
  assert.deepEqual([0.998, 0.9999, 0.002, -0.001].map(reward), [
    "0.998",
    "0.9999",
    "0.002",
    "-0.001",
  ]);
  assert.equal(reward(0.99999999), "0.99999999");
});
