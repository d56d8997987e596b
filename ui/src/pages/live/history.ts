// The turns of a chat that are known: the newest ones, as they are polled, earlier ones page by page, and those that were
// sent from here and that the server has not listed yet. Pure functions.
import type { LiveTurnPage, TurnSummary } from "../../api/types";

export interface History {
  /** Without gaps, the oldest first. */
  known: TurnSummary[];
  sent: TurnSummary[];
  /** Whether there is nothing before `known`. */
  isAll: boolean;
}

export const NO_HISTORY: History = { known: [], sent: [], isAll: true };

const without = (turns: TurnSummary[], others: TurnSummary[]) => {
  const ids = new Set(others.map((turn) => turn.turn_id));
  return turns.filter((turn) => !ids.has(turn.turn_id));
};

/** With the page that begins at the newest turn. */
export function withNewest(history: History, { turns, next_offset }: LiveTurnPage): History {
  const sent = without(history.sent, turns);
  const newest = turns.toReversed();
  const before = without(history.known, turns);
  const isJoined = before.length < history.known.length || history.known.length === 0;
  // Turns that ended between two pages, or that were missed, would be told wrongly: they are read again on demand.
  const isSure = isJoined && before.every((turn) => turn.end);
  if (!isSure || next_offset === null) return { known: newest, sent, isAll: next_offset === null };
  return {
    known: [...before, ...newest],
    sent,
    isAll: before.length > 0 ? history.isAll : false,
  };
}

/** With the page at `offset`, which was the length of `known` then. New turns may have moved it, so that it overlaps. */
export function withEarlier(history: History, offset: number, page: LiveTurnPage): History {
  const { turns, next_offset } = page;
  // What it should follow on was dropped meanwhile.
  if (history.known.length < offset) return history;
  const earlier = without(turns.toReversed(), history.known);
  return { ...history, known: [...earlier, ...history.known], isAll: next_offset === null };
}

export const withSent = (history: History, turn: TurnSummary): History =>
  history.known.some((it) => it.turn_id === turn.turn_id)
    ? history
    : { ...history, sent: [...history.sent, turn] };

export const shownTurns = ({ known, sent }: History): TurnSummary[] => [...known, ...sent];
