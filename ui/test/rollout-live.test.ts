import assert from "node:assert/strict";
import { test } from "node:test";
import type { RolloutEvent } from "../src/api/types";
import { endedCommands, liveCommands } from "../src/pages/rollout/command-list";
import { fold, NOTHING, outputOf, unsaid } from "../src/pages/rollout/live";
import { doing, endedSegments, inOrder, liveSegments } from "../src/pages/rollout/phases";

type Told = Record<string, unknown> & { event: string };

/** Events one second after the other, from number `first` on. */
function events(told: Told[], first = 1): RolloutEvent[] {
  return told.map(
    (it, place) =>
      ({ rollout: "r", seq: first + place, at: 100 + first + place, ...it }) as RolloutEvent,
  );
}

const reply = (kind: string, more: object): Told => ({
  event: "reply",
  reply: { trace_id: "t", seq: 1, turn_id: "1", session_id: null, kind, ...more },
});

const START = events([
  { event: "queued" },
  { event: "entered", phase: "sandbox" },
  { event: "entered", phase: "setup" },
  { event: "command_started", phase: "setup", number: 1, of: 2, cmd: "make" },
]);

test("phases are told in words while they pass", () => {
  assert.equal(doing(NOTHING, null), null);
  assert.equal(doing(fold(NOTHING, START.slice(0, 1)), null), "waiting for a free slot…");
  const live = fold(NOTHING, START);
  assert.equal(doing(live, null), "setup [1/2]: make");
  const later = [
    { event: "command", phase: "setup", number: 1, of: 2, cmd: "make", exit_code: 0 },
    { event: "entered", phase: "agent" },
    { event: "call", exchange: 0, status: 200, prompt_tokens: 1, completion_tokens: 1 },
    { event: "entered", phase: "collect" },
    { event: "finished", ended: "completed", reward: 1, wall_s: 12.34, error: null },
  ];
  const told = events(later, 5);
  const steps = told.map((_, place) => doing(fold(live, told.slice(0, place + 1)), null));
  assert.deepEqual(steps, [
    "setting up…",
    "the agent starts…",
    "the agent works: 1 turn answered",
    "collecting…",
    "done in 12.3 s",
  ]);
});

test("a phase lasts until the next one, the current one until now", () => {
  const segments = liveSegments(fold(NOTHING, START), null, 110);
  const of = (phase: string) => segments.find((it) => it.phase === phase);
  assert.deepEqual(of("prepare"), { phase: "prepare", seconds: null, state: "skipped" });
  assert.deepEqual(of("sandbox"), { phase: "sandbox", seconds: 1, state: "done" });
  assert.deepEqual(of("setup"), { phase: "setup", seconds: 7, state: "active" });
  assert.deepEqual(of("verify"), { phase: "verify", seconds: null, state: "ahead" });
  assert.ok(!segments.some((it) => it.phase === "kept"));
});

test("a result's phases that were not reached have no time", () => {
  const timings = { sandbox_s: 0.1, setup_s: 2, agent_s: 0, verify_s: 0, collect_s: 0.2 };
  const more = { first_call_s: null, outage_s: 0 };
  const result = { timings: { ...timings, ...more }, setup_results: [], verify_results: [] };
  const segments = endedSegments(result);
  assert.deepEqual(
    segments.map((it) => it.seconds),
    [0.1, 2, null, null, 0.2],
  );
  const command = { cmd: "make", exit_code: 2, stdout: "", stderr: "", timed_out: false };
  const broken = { ...result, timings: { ...result.timings, setup_s: 0 } };
  const setup_results = [
    { ...command, duration_s: 1 },
    { ...command, duration_s: 2 },
  ];
  assert.equal(endedSegments({ ...broken, setup_results })[1]?.seconds, 3);
});

test("phases are listed in the order in which they come", () => {
  const phases = inOrder({ agent: 2, verify: 3, setup: 1 }).map(([phase]) => phase);
  assert.deepEqual(phases, ["setup", "agent", "verify"]);
});

test("events are taken once, and missed ones are noticed", () => {
  const once = fold(NOTHING, START);
  assert.deepEqual(fold(once, START), once);
  assert.equal(once.gaps, 0);
  const after = fold(once, events([{ event: "entered", phase: "agent" }], 9));
  assert.equal(after.gaps, 1);
  assert.equal(after.seq, 9);
});

test("folding does not change what was folded before", () => {
  const before = fold(NOTHING, START);
  const copy = structuredClone(before);
  fold(before, events([{ event: "entered", phase: "agent" }], 5));
  assert.deepEqual(before, copy);
});

test("streamed text is shown until its model call is answered", () => {
  const told = events([reply("delta", { text: "Hel" }), reply("delta", { text: "lo" })]);
  const live = fold(NOTHING, told);
  assert.equal(unsaid(live)?.text, "Hello");
  const call = { event: "call", exchange: 0, status: 200, text: "Hello there" };
  const answered = fold(live, events([call], 3));
  assert.equal(unsaid(answered), null);
  assert.equal(answered.calls[0]?.text, "Hello there");
  const late = fold(answered, events([reply("delta", { text: " there" })], 4));
  assert.equal(unsaid(late), null);
  const next = fold(answered, events([reply("delta", { text: "Now" })], 4));
  assert.equal(unsaid(next)?.text, "Now");
});

test("a tool of a served agent is shown once, in its latest state", () => {
  const tool = (status: string, output: string | null) =>
    reply("tool", { call_id: "c", name: "bash", status, input: {}, output });
  const live = fold(NOTHING, events([tool("running", null), tool("completed", "ok")]));
  const shown = live.streamed?.tools.map(({ status, output }) => [status, output]);
  assert.deepEqual(shown, [["completed", "ok"]]);
});

test("commands that ran, run, and will run", () => {
  const live = fold(NOTHING, START);
  const commands = liveCommands(live, null, "setup", ["make", "make test"]);
  assert.deepEqual(
    commands.map(({ cmd, state }) => [cmd, state]),
    [
      ["make", "running"],
      ["make test", "waiting"],
    ],
  );
  const failed = { cmd: "make", exit_code: 2, stdout: "", stderr: "no", duration_s: 1 };
  const ended = endedCommands([{ ...failed, timed_out: false }], ["make", "make test"]);
  assert.deepEqual(
    ended.map(({ state, exitCode }) => [state, exitCode]),
    [
      ["ended", 2],
      ["not run", null],
    ],
  );
});

/** A rollout whose first events the server no longer has. */
const LATE = fold(
  NOTHING,
  events(
    [{ event: "call", exchange: 4000, status: 200, prompt_tokens: 1, completion_tokens: 1 }],
    5000,
  ),
);
const AT_WORK = {
  status: "running",
  phase: "agent" as const,
  calls: 4001,
  idle: false,
  endpoint: "vllm",
};

test("phases that ended before the first event known are done", () => {
  const states = liveSegments(LATE, AT_WORK, 9000).map((it) => [it.phase, it.state, it.seconds]);
  assert.deepEqual(states, [
    ["prepare", "done", null],
    ["sandbox", "done", null],
    ["setup", "done", null],
    ["agent", "active", null],
    ["verify", "ahead", null],
    ["collect", "ahead", null],
  ]);
  assert.equal(doing(LATE, AT_WORK), "the agent works: 4,001 turns answered");
  const started = fold(NOTHING, events([{ event: "entered", phase: "agent" }]));
  const oracle = { ...AT_WORK, calls: 0, endpoint: "none" };
  assert.equal(doing(started, oracle), "the agent works…");
});

test("a phase whose end was missed has no time, and rows may know a later one", () => {
  const before = fold(NOTHING, START);
  const after = fold(before, events([{ event: "turn_started", number: 2 }], 5000));
  const setup = liveSegments(after, AT_WORK, 9000).find((it) => it.phase === "setup");
  assert.deepEqual(setup, { phase: "setup", seconds: null, state: "done" });
  const later = fold(after, events([{ event: "entered", phase: "verify" }], 5001));
  const spent = liveSegments(later, AT_WORK, 5111).map((it) => [it.phase, it.seconds]);
  assert.deepEqual(Object.fromEntries(spent).setup, null);
  assert.deepEqual(Object.fromEntries(spent).verify, 10);
});

test("commands are not run only where that is sure", () => {
  const states = (live: typeof LATE, where: typeof AT_WORK | null, phase: "setup" | "verify") =>
    liveCommands(live, where, phase, ["one", "two", "three"]).map((it) => it.state);
  assert.deepEqual(states(LATE, AT_WORK, "setup"), ["unknown", "unknown", "unknown"]);
  assert.deepEqual(states(LATE, AT_WORK, "verify"), ["waiting", "waiting", "waiting"]);
  assert.deepEqual(states(NOTHING, null, "setup"), ["unknown", "unknown", "unknown"]);
  const verify = { phase: "verify", of: 3 };
  const late = fold(
    LATE,
    events(
      [
        { event: "entered", phase: "verify" },
        { event: "command", ...verify, number: 2, cmd: "two", exit_code: 1 },
      ],
      6000,
    ),
  );
  assert.deepEqual(states(late, AT_WORK, "verify"), ["unknown", "ended", "waiting"]);
  const failed = fold(
    fold(NOTHING, START),
    events(
      [
        { event: "command", phase: "setup", number: 1, of: 2, cmd: "make", exit_code: 2 },
        { event: "entered", phase: "collect" },
      ],
      5,
    ),
  );
  assert.deepEqual(states(failed, null, "setup"), ["ended", "not run", "not run"]);
  assert.deepEqual(states(failed, null, "verify"), ["not run", "not run", "not run"]);
});

test("a served agent's tool is shown with the call that asked for it, and its output there", () => {
  const call = {
    event: "call",
    exchange: 0,
    status: 200,
    tool_calls: [{ id: "c", name: "bash", arguments: "{}" }],
  };
  const tool = (id: string, output: string | null) =>
    reply("tool", { call_id: id, name: "bash", status: "running", input: {}, output });
  const live = fold(NOTHING, events([tool("c", null), call, tool("c", "ok"), tool("d", null)]));
  assert.deepEqual(
    unsaid(live)?.tools.map(({ id }) => id),
    ["d"],
  );
  assert.equal(outputOf(live, "c"), "ok");
  assert.equal(outputOf(live, null), null);
});
