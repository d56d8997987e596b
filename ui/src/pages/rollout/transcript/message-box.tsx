// A served agent that has nothing to do takes another message, or is finalized.
import { useState } from "preact/hooks";
import { isSaved, post } from "../../../api/client";
import { AgentText } from "../../../ui/text";
import type { Rollout } from "../use-rollout";

export function MessageBox({ rollout }: { rollout: Rollout }) {
  const { id, progress, live } = rollout;
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  const isServed = progress?.driver === "serve" && progress.phase === "agent";
  if (!isServed || isSaved()) return null;
  const isIdle = progress.idle || live.isIdle;
  const act = async (what: () => Promise<unknown>) => {
    setBusy(true);
    setProblem("");
    try {
      await what();
      setText("");
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
    setBusy(false);
  };
  const send = () => act(() => post(`v1/rollouts/${id}/messages`, { text }));
  const canSend = !isBusy && text.trim() !== "";
  return (
    <form
      class="message-box"
      onSubmit={(submit) => {
        submit.preventDefault();
        if (canSend) void send();
      }}
    >
      <p class="small muted">
        {isIdle
          ? "The agent has nothing to do. Send it a message, or finalize the rollout: it is verified and collected then."
          : "The agent works. A message waits until it has nothing to do."}
      </p>
      {live.turnError && (
        <p class="notice part small">
          The agent failed over the last message: <AgentText text={live.turnError} />
        </p>
      )}
      <textarea
        rows={2}
        aria-label="Message to the agent"
        placeholder="Message to the agent"
        value={text}
        onInput={(input) => setText(input.currentTarget.value)}
        onKeyDown={(press) => {
          if (press.key === "Enter" && (press.ctrlKey || press.metaKey) && canSend) void send();
        }}
      />
      <div class="row">
        <button type="submit" class="primary" disabled={!canSend}>
          Send
        </button>
        <button
          type="button"
          disabled={isBusy}
          onClick={() => act(() => post(`v1/rollouts/${id}/finalize`))}
        >
          Finalize
        </button>
        {problem && (
          <span class="notice bad small" role="alert">
            {problem}
          </span>
        )}
      </div>
    </form>
  );
}
