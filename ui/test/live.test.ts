import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError } from "../src/api/client";
import type { LiveTurnPage, Reply, TurnSummary } from "../src/api/types";
import { isProbablySettled, saidOf, secondsLeft, timeLeft } from "../src/pages/live/asked";
import { isFollowing } from "../src/pages/live/end-in-view";
import { aboutHealth, readHealth } from "../src/pages/live/health";
import {
  NO_HISTORY,
  shownTurns,
  withEarlier,
  withNewest,
  withSent,
  type History,
} from "../src/pages/live/history";

const final = { kind: "final" } as Reply;

function turn(number: number, end: Reply | null = final): TurnSummary {
  const turn_id = `t${number}`;
  const times = { started_at: number, finished_at: end ? number : null };
  return { turn_id, trace_id: turn_id, session_id: "s", text: turn_id, ...times, end };
}

/** What a server with these turns answers. */
function page(all: TurnSummary[], offset = 0, limit = 30): LiveTurnPage {
  const newest = all.toReversed();
  const next = offset + limit;
  return {
    turns: newest.slice(offset, next),
    next_offset: next < newest.length ? next : null,
  };
}

const turns = (count: number) => Array.from({ length: count }, (_, at) => turn(at));
const names = (history: History) => shownTurns(history).map((it) => it.turn_id);

test("a turn that was sent is shown once, and stays where it is after 31 more", () => {
  const all: TurnSummary[] = [];
  let history = withNewest(NO_HISTORY, page(all));
  for (let at = 0; at < 40; at += 1) {
    history = withSent(history, turn(at, null));
    assert.equal(names(history).at(-1), `t${at}`);
    all.push(turn(at));
    history = withNewest(history, page(all));
  }
  assert.deepEqual(
    names(history),
    all.map((it) => it.turn_id),
  );
  assert.deepEqual(history.sent, []);
  assert.ok(shownTurns(history).every((it) => it.end));
  assert.equal(history.isAll, true);
});

test("a turn that the server has listed already is not added again", () => {
  const history = withNewest(NO_HISTORY, page(turns(1)));
  assert.equal(withSent(history, turn(0, null)), history);
});

test("earlier turns come page by page to the first, also beyond 500", () => {
  const all = turns(700);
  let history = withNewest(NO_HISTORY, page(all));
  let pages = 0;
  while (!history.isAll) {
    const offset = history.known.length;
    // Somebody else says something meanwhile, which moves all offsets.
    all.push(turn(all.length));
    history = withEarlier(history, offset, page(all, offset));
    history = withNewest(history, page(all));
    pages += 1;
  }
  assert.ok(pages < 40);
  assert.deepEqual(
    names(history),
    all.map((it) => it.turn_id),
  );
});

test("turns that were missed leave no gap", () => {
  const all = turns(60);
  let history = withNewest(NO_HISTORY, page(all));
  history = withEarlier(history, 30, page(all, 30));
  assert.equal(history.isAll, true);
  all.push(...Array.from({ length: 31 }, (_, at) => turn(60 + at)));
  const late = page(all, 60);
  history = withNewest(history, page(all));
  assert.deepEqual(
    names(history),
    all.slice(-30).map((it) => it.turn_id),
  );
  assert.equal(history.isAll, false);
  assert.equal(withEarlier(history, 60, late), history, "a page of before does not fit any more");
});

test("a turn whose end was missed is not shown as open for ever", () => {
  const all = [...turns(29), turn(29, null)];
  let history = withNewest(NO_HISTORY, page(all));
  all[29] = turn(29);
  all.push(...Array.from({ length: 40 }, (_, at) => turn(30 + at)));
  history = withNewest(history, page(all));
  assert.ok(shownTurns(history).every((it) => it.end));
});

test("a clock that runs ahead does not settle a question alone", () => {
  assert.equal(secondsLeft(100, 95_500), 5);
  assert.equal(secondsLeft(100, 200_000), 0);
  assert.equal(isProbablySettled(0, false), false);
  assert.equal(isProbablySettled(5, true), false);
  assert.equal(isProbablySettled(0, true), true);
  assert.match(timeLeft(7), /in 7 s/);
  assert.match(timeLeft(0), /this computer's clock/);
  assert.equal(saidOf("reject", 3), "You refused.");
  assert.match(saidOf("once", 0), /You allowed it once\. If the time/);
});

test("an agent that is not healthy is no error, and an error is no health", () => {
  const sick = { healthy: false, server: "silent", version: null, state: "unhealthy" };
  assert.equal(readHealth(503, sick), sick);
  assert.match(aboutHealth(readHealth(503, sick)), /does not answer/);
  const well = { healthy: true, server: "healthy", version: "1.2", state: "idle" };
  assert.equal(aboutHealth(readHealth(200, well)), "Its server answers. Version 1.2.");
  const refused = (status: number, body: unknown) => {
    try {
      readHealth(status, body);
    } catch (error) {
      return error as ApiError;
    }
    return assert.fail("it is no health");
  };
  const gone = refused(404, { error: { code: "not_found", message: "no such agent" } });
  assert.deepEqual([gone.status, gone.code, gone.message], [404, "not_found", "no such agent"]);
  assert.equal(refused(401, null).message, "HTTP 401");
  assert.equal(refused(503, "a proxy's page").message, "HTTP 503");
});

test("the end is followed until the reader goes up, and again from the end on", () => {
  const at = (top: number, below: number) => ({ top, below });
  assert.equal(isFollowing(true, at(500, 0), at(500, 300)), true, "it has grown");
  assert.equal(isFollowing(true, at(500, 0), at(600, 300)), true, "it has grown on the way");
  assert.equal(isFollowing(true, at(500, 0), at(300, 200)), false, "gone up");
  assert.equal(isFollowing(false, at(300, 200), at(400, 100)), false, "on the way back");
  assert.equal(isFollowing(false, at(400, 100), at(495, 5)), true, "back at the end");
  assert.equal(isFollowing(true, at(500, 0), at(200, 0)), true, "it has become shorter");
});
