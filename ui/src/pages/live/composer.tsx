// The place to write what an agent is told next.
import { useState } from "preact/hooks";
import type { LiveView } from "../../api/types";
import { failure } from "./api";

export interface TurnOptions {
  is_new_session?: boolean;
  permissions?: string;
}

export function Composer(props: {
  agent: LiveView;
  waiting: number;
  send: (text: string, options: TurnOptions) => Promise<void>;
}) {
  const { agent, waiting, send } = props;
  const [text, setText] = useState("");
  const [isNew, setNew] = useState(false);
  const [permissions, setPermissions] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const canTalk = agent.state !== "stopped" && agent.state !== "failed";
  const submit = async () => {
    if (!text.trim() || isBusy || !canTalk) return;
    setBusy(true);
    setProblem("");
    try {
      const options: TurnOptions = {};
      if (isNew) options.is_new_session = true;
      if (permissions) options.permissions = permissions;
      await send(text, options);
      setText("");
      setNew(false);
    } catch (error) {
      setProblem(failure(error));
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
      {problem && (
        <p class="notice bad" role="alert">
          {problem}
        </p>
      )}
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
