// Talking with a live agent: its turns in order, and the place to write the next one.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get, post } from "../../api/client";
import type { LiveTurnPage, LiveView, TurnQueued, TurnSummary } from "../../api/types";
import { Empty, Problem, Spinner } from "../../ui/parts";
import { agentPath, usePolled } from "./api";
import { TurnBlock } from "./turn";

const PAGE = 30;
const POLL_MS = 4000;
/** The newest turns show their steps at once. */
const READ_AT_ONCE = 8;

interface Props {
  agent: LiveView;
  /** Something happened: its state and counts are others now. */
  onChange: () => void;
}

export function Chat({ agent, onChange }: Props) {
  const [limit, setLimit] = useState(PAGE);
  const [sent, setSent] = useState<TurnSummary[]>([]);
  const { id } = agent;
  const turns = usePolled(
    (abort) => get<LiveTurnPage>(agentPath(id, "/turns"), { limit }, abort),
    POLL_MS,
    [id],
  );
  const known = turns.data?.turns ?? [];
  const unknown = sent.filter((turn) => !known.some((it) => it.turn_id === turn.turn_id));
  const shown = [...known.toReversed(), ...unknown];
  const open = shown.filter((turn) => !turn.end).map((turn) => turn.turn_id);
  const box = useFollow();
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
    setSent((old) => [...old, turn]);
    box.toEnd();
    changed();
  };
  return (
    <section class="chat" aria-label="Conversation">
      <div class="chat-log" ref={box.ref} onScroll={box.onScroll} tabIndex={0} role="log">
        <div class="chat-turns">
          {turns.data?.next_offset != null && (
            <button
              class="small earlier"
              onClick={() => {
                setLimit(limit + PAGE);
                turns.reload();
              }}
            >
              Earlier turns
            </button>
          )}
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
              {turns.loading && !turns.data ? (
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

/** Whether this turn is of another conversation than the one before. */
function isNewSession(turns: TurnSummary[], index: number): boolean {
  const session = turns[index]!.session_id;
  const before = turns.slice(0, index).findLast((turn) => turn.session_id)?.session_id;
  return Boolean(session && before && session !== before);
}

/** Keeps the end in view as it grows, unless the reader has scrolled up. */
function useFollow() {
  const ref = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const toEnd = () => {
    isAtEnd.current = true;
    ref.current?.scrollTo({ top: ref.current.scrollHeight });
  };
  const onScroll = () => {
    const at = ref.current;
    if (at) isAtEnd.current = at.scrollHeight - at.scrollTop - at.clientHeight < 60;
  };
  useEffect(() => {
    const content = ref.current?.firstElementChild;
    if (!content) return;
    const observer = new ResizeObserver(() => isAtEnd.current && toEnd());
    observer.observe(content);
    return () => observer.disconnect();
  }, []);
  return { ref, onScroll, toEnd };
}

interface TurnOptions {
  is_new_session?: boolean;
  permissions?: string;
}

function Composer(props: {
  agent: LiveView;
  waiting: number;
  send: (text: string, options: TurnOptions) => Promise<void>;
}) {
  const { agent, waiting, send } = props;
  const [text, setText] = useState("");
  const [isNew, setNew] = useState(false);
  const [permissions, setPermissions] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const canTalk = agent.state !== "stopped" && agent.state !== "failed";
  const submit = async () => {
    if (!text.trim() || isBusy || !canTalk) return;
    setBusy(true);
    setError(null);
    try {
      const options: TurnOptions = {};
      if (isNew) options.is_new_session = true;
      if (permissions) options.permissions = permissions;
      await send(text, options);
      setText("");
      setNew(false);
    } catch (problem) {
      setError(problem as ApiError);
    }
    setBusy(false);
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        void submit();
      }}
    >
      <Problem error={error} />
      <textarea
        rows={3}
        aria-label="What to say to the agent"
        placeholder={placeholderOf(agent)}
        disabled={!canTalk}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
          event.preventDefault();
          void submit();
        }}
      />
      <div class="row">
        <label class="row small">
          <input
            type="checkbox"
            checked={isNew}
            disabled={!canTalk}
            onChange={(event) => setNew(event.currentTarget.checked)}
          />
          New conversation
        </label>
        <label class="row small">
          <span class="muted">When it asks</span>
          <select
            value={permissions}
            disabled={!canTalk}
            onChange={(event) => setPermissions(event.currentTarget.value)}
          >
            <option value="">as the agent was started</option>
            <option value="allow">allow everything</option>
            <option value="ask">ask me here</option>
            <option value="reject">refuse everything</option>
          </select>
        </label>
        <button class="primary send" disabled={!canTalk || isBusy || !text.trim()}>
          {waiting > 0 ? "Queue" : "Send"}
        </button>
      </div>
    </form>
  );
}

function placeholderOf(agent: LiveView): string {
  if (agent.state === "stopped") return "It is stopped. Start it again to go on.";
  if (agent.state === "failed") return "It could not be started.";
  if (agent.state === "sleeping") return "Write to it; it wakes up. Enter sends.";
  return "Write to it. Enter sends, Shift+Enter makes a new line.";
}
