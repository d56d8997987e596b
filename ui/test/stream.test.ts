import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";
import type { RolloutEvent } from "../src/api/types";

/** A stream whose server is this test. */
class FakeSource extends EventTarget {
  static readonly all: FakeSource[] = [];
  static get last() {
    return FakeSource.all.at(-1)!;
  }
  readonly url: string;
  isClosed = false;
  onerror: (() => void) | null = null;

  constructor(url: string) {
    super();
    this.url = url;
    FakeSource.all.push(this);
  }

  close() {
    this.isClosed = true;
  }

  tell(name: string, data: unknown = {}) {
    this.dispatchEvent(new MessageEvent(name, { data: JSON.stringify(data) }));
  }
}

let isSignedIn = true;
let asked = 0;
const page = new EventTarget();
Object.assign(globalThis, {
  window: globalThis,
  document: Object.assign(page, { baseURI: "http://host/web/", hidden: false }),
  addEventListener: () => {},
  EventSource: FakeSource,
  fetch: async () => {
    asked++;
    const headers = { "content-type": "application/json" };
    return new Response(JSON.stringify({ signed_in: isSignedIn }), { headers });
  },
});
mock.timers.enable({ apis: ["setTimeout"] });
const { connection, startStream, streamFailures, watch } = await import("../src/api/stream");
const { needsToken } = await import("../src/api/client");
await import("../src/api/session");

/** Lets what is planned for the next moment happen. */
const settle = () => new Promise((done) => setImmediate(done));
const event = (rollout: string, seq: number) => ({ rollout, seq }) as unknown as RolloutEvent;
const watchOf = () => new URL(FakeSource.last.url).searchParams.getAll("watch");

startStream();
beforeEach(async () => {
  isSignedIn = true;
  needsToken.value = false;
  page.dispatchEvent(new Event("visibilitychange"));
  await settle();
  FakeSource.last.tell("hello");
});

test("a connection that is silent for long is replaced, and one that beats is not", async () => {
  const first = FakeSource.last;
  for (let n = 0; n < 5; n++) {
    mock.timers.tick(30_000);
    first.tell("beat");
  }
  assert.equal(connection.value, "live");
  assert.equal(first.isClosed, false);
  mock.timers.tick(40_001);
  assert.ok(first.isClosed);
  assert.equal(connection.value, "lost");
  mock.timers.tick(501);
  assert.notEqual(FakeSource.last, first);
  FakeSource.last.tell("hello");
  assert.equal(connection.value, "live");
});

test("a lost stream asks whether the token still counts", async () => {
  const [failures, before] = [streamFailures.value, asked];
  isSignedIn = false;
  FakeSource.last.onerror?.();
  assert.equal(streamFailures.value, failures + 1);
  await settle();
  await settle();
  assert.equal(asked, before + 1);
  assert.equal(needsToken.value, true, "the page asks for a token");
  const { length } = FakeSource.all;
  mock.timers.tick(60_000);
  assert.equal(FakeSource.all.length, length, "nothing is asked without one");
});

test("whoever watches later is told all that it asks for, and nobody anything twice", async () => {
  const [early, late]: [number[], number[]] = [[], []];
  const stops = [watch("a", 0, ({ seq }) => early.push(seq))];
  await settle();
  assert.deepEqual(watchOf(), ["a:0"]);
  for (const seq of [1, 2, 3]) FakeSource.last.tell("event", event("a", seq));
  stops.push(watch("a", 1, ({ seq }) => late.push(seq)));
  await settle();
  assert.deepEqual(watchOf(), ["a:1"]);
  for (const seq of [2, 3, 4]) FakeSource.last.tell("event", event("a", seq));
  assert.deepEqual(early, [1, 2, 3, 4]);
  assert.deepEqual(late, [2, 3, 4]);
  stops.forEach((stop) => stop());
  await settle();
  assert.deepEqual(watchOf(), []);
});
