// Whether an agent's server answers.
import type { LiveView } from "../../api/types";
import { Panel } from "../../ui/parts";
import { hasServer, loadHealth, usePolled } from "./api";
import { aboutHealth } from "./health";
import { aboutState } from "./state";

/** One small request to the agent's server each time, and only while the page is seen. */
const POLL_MS = 5000;

export function HealthPanel({ agent }: { agent: LiveView }) {
  return (
    <Panel title="Health">
      {hasServer(agent.state) ? (
        <ServerHealth key={agent.id} id={agent.id} />
      ) : (
        <p>Its server does not run.</p>
      )}
      <p class="small muted">{aboutState(agent.state)}.</p>
    </Panel>
  );
}

function ServerHealth({ id }: { id: string }) {
  const { data, error } = usePolled((abort) => loadHealth(id, abort), POLL_MS, [id]);
  // What was known before a question that failed may be other now.
  const known = error ? null : data;
  return (
    <p class={error || (known && !known.healthy) ? "bad-text" : ""} role="status">
      {known && aboutHealth(known)}
      {error && `Not known: ${error.message}`}
      {!known && !error && "Asking…"}
    </p>
  );
}
