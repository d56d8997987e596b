// What an agent's server printed, with its end in view.
import { get } from "../../api/client";
import { Empty, Panel, Problem, Spinner } from "../../ui/parts";
import { TerminalText } from "../../ui/text";
import { agentPath, usePolled } from "./api";
import { useEndInView } from "./end-in-view";

const POLL_MS = 3000;
/** More of a log makes the page slow, and its end is what is wanted. */
const LOG_CHARS = 200_000;

export function Log({ id }: { id: string }) {
  const log = usePolled((abort) => get<string>(agentPath(id, "/logs"), {}, abort), POLL_MS, [id]);
  const box = useEndInView();
  const text = log.data ?? "";
  return (
    <Panel title="What its server printed" flush>
      <Problem error={log.error} retry={log.reload} />
      {text.length > LOG_CHARS && <p class="small muted explain">Only the end is shown.</p>}
      <div
        class="live-log"
        tabIndex={0}
        role="region"
        aria-label="Log"
        ref={box.ref}
        onScroll={box.onScroll}
      >
        <div>
          {text ? (
            <TerminalText text={text.slice(-LOG_CHARS)} />
          ) : (
            <Empty>{log.loading ? <Spinner label="Loading" /> : "Nothing yet."}</Empty>
          )}
        </div>
      </div>
    </Panel>
  );
}
