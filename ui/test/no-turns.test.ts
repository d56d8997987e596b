import assert from "node:assert/strict";
import { test } from "node:test";
import { noTurns } from "../src/pages/rollout/no-turns";

type Known = Parameters<typeof noTurns>[0];
const running = (status: string, endpoint: string) =>
  ({ result: null, progress: { status, endpoint, agent: "oracle" } }) as unknown as Known;
const ended = (mode: string, kind: string) =>
  ({
    result: { mode, endpoint: { kind }, agent: { name: "nop" } },
    progress: null,
  }) as unknown as Known;

test("what is missing is said as it is: never, not yet, or not captured", () => {
  const words = (known: Known) => noTurns(known, "Later.");
  assert.match(words(running("queued", "vllm")), /waits for a free slot. Later\.$/);
  assert.match(words(running("running", "vllm")), /not asked the model yet. Later\.$/);
  assert.match(words(running("running", "none")), /oracle asks no model/);
  assert.match(words(ended("transparent_proxy", "none")), /nop asks no model/);
  assert.match(words(ended("black_box", "vllm")), /not captured/);
  assert.equal(words(ended("transparent_proxy", "vllm")), "The agent never asked the model.");
});
