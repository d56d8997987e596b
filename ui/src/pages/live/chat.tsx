// Talking with a live agent: its turns in order, and the place to write the next one.
import { post } from "../../api/client";
import type { LiveView, TurnQueued, TurnSummary } from "../../api/types";
import { Empty, Problem, Spinner } from "../../ui/parts";
import { agentPath } from "./api";
import { Composer, type TurnOptions } from "./composer";
import { useEndInView } from "./end-in-view";
import { shownTurns } from "./history";
import { TurnBlock } from "./turn";
import { useTurns, type Turns } from "./turns";

/** The newest turns show their steps at once. */
const READ_AT_ONCE = 8;

interface Props {
  agent: LiveView;
  /** Something happened: its state and counts are others now. */
  onChange: () => void;
}

export function Chat({ agent, onChange }: Props) {
  const { id } = agent;
  const turns = useTurns(id);
  const shown = shownTurns(turns.history);
  const open = shown.filter((turn) => !turn.end).map((turn) => turn.turn_id);
  const box = useEndInView(shown[0]?.turn_id);
  const changed = () => {
    turns.reload();
    onChange();
  };
  const send = async (text: string, options: TurnOptions) => {
    const body = { text, ...options };
    const { turn_id } = await post<TurnQueued>(agentPath(id, "/turns"), body);
    const turn: TurnSummary = {
      turn_id,
      trace_id: turn_id,
      session_id: null,
      text,
      started_at: Date.now() / 1000,
      finished_at: null,
      end: null,
    };
    turns.add(turn);
    box.toEnd();
    changed();
  };
  return (
    <section class="chat" aria-label="Conversation">
      <div class="chat-log" ref={box.ref} onScroll={box.onScroll} tabIndex={0} role="log">
        <div class="chat-turns">
          {!turns.history.isAll && <Earlier earlier={turns.earlier} />}
          {shown.map((turn, index) => {
            const place = open.indexOf(turn.turn_id);
            return (
              <div key={turn.turn_id}>
                {isNewSession(shown, index) && <p class="session-start small">New conversation</p>}
                <TurnBlock
                  id={id}
                  turn={turn}
                  place={place < 0 ? null : place}
                  isRead={index >= shown.length - READ_AT_ONCE}
                  onEnd={changed}
                />
              </div>
            );
          })}
          {shown.length === 0 && (
            <Empty>
              {turns.isFirst ? (
                <Spinner label="Loading the conversation" />
              ) : (
                "Nothing was said yet. Write below what it shall do."
              )}
            </Empty>
          )}
        </div>
      </div>
      <Problem error={turns.error} retry={turns.reload} />
      <Composer agent={agent} waiting={open.length} send={send} />
    </section>
  );
}

function Earlier({ earlier }: { earlier: Turns["earlier"] }) {
  return (
    <>
      <button class="small earlier" disabled={earlier.isReading} onClick={earlier.read}>
        {earlier.isReading && <Spinner />} Earlier turns
      </button>
      <Problem error={earlier.error} />
    </>
  );
}

/** Whether this turn is of another conversation than the one before. */
function isNewSession(turns: TurnSummary[], index: number): boolean {
  const session = turns[index]!.session_id;
  const before = turns.slice(0, index).findLast((turn) => turn.session_id)?.session_id;
  return Boolean(session && before && session !== before);
}
