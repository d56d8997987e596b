import assert from "node:assert/strict";
import { test } from "node:test";
import { ago, bytes, count, dollars, reward, seconds, shortId } from "../src/format";

test("times are told in the unit that people would use", () => {
  assert.equal(seconds(null), "–");
  assert.equal(seconds(0.25), "250 ms");
  assert.equal(seconds(12.34), "12.3 s");
  assert.equal(seconds(59.99), "60.0 s");
  assert.equal(seconds(125), "2 min 5 s");
  assert.equal(seconds(3 * 3600 + 120), "3 h 2 min");
  assert.equal(ago(100, 102), "now");
  assert.equal(ago(100, 100 + 7200), "2 h ago");
});

test("counts and sizes are short and keep their order of magnitude", () => {
  assert.equal(count(9_999), "9,999");
  assert.equal(count(12_345), "12.3k");
  assert.equal(count(4_560_000), "4.56M");
  assert.equal(bytes(1536), "1.5 KiB");
  assert.equal(bytes(512), "512 B");
});

test("what is not known is a dash, and a reward of 0 is not unknown", () => {
  assert.equal(reward(null), "–");
  assert.equal(reward(0), "0.00");
  assert.equal(dollars(0), "–");
  assert.equal(dollars(0.0012), "$0.0012");
  assert.equal(shortId("0123456789abcdef"), "89abcdef");
});
