// What the agent printed, and the proxy's log of requests to the model.
import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "../../api/client";
import { useLoad } from "../../api/load";
import { setParams } from "../../router";
import { Copy, Empty, Panel, Problem, Spinner } from "../../ui/parts";
import { TerminalText } from "../../ui/text";
import type { TabProps } from "./page";
import { ending } from "./text-lines";

const LOGS: [string, string][] = [
  ["agent", "Agent"],
  ["agent_stderr", "Standard error"],
  ["proxy", "Model requests"],
];
const LINES = 400;
const POLL_MS = 3000;

export function LogTab({ rollout, query }: TabProps) {
  const { id, result } = rollout;
  const wanted = query.get("log") ?? "agent";
  const name = LOGS.some(([log]) => log === wanted) ? wanted : "agent";
  const [lines, setLines] = useState(LINES);
  const isEarly = name === "proxy" && !result;
  const { data, error, loading, reload } = useLoad(
    (abort) =>
      isEarly ? Promise.resolve("") : get<string>(`v1/rollouts/${id}/logs`, { name }, abort),
    [id, name, result !== null],
  );
  // A slow answer is waited for: asking again would throw it away.
  useEffect(() => {
    if (result || isEarly || loading) return;
    const timer = setTimeout(reload, POLL_MS);
    return () => clearTimeout(timer);
  }, [result === null, isEarly, loading]);
  const text = data ?? "";
  const box = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  useEffect(() => {
    isAtEnd.current = true;
  }, [name]);
  useEffect(() => {
    const log = box.current;
    if (log && isAtEnd.current) log.scrollTop = log.scrollHeight;
  }, [text, name]);
  const onScroll = () => {
    const log = box.current;
    if (log) isAtEnd.current = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  };
  const shown = ending(text, lines);
  return (
    <Panel
      title="Log"
      flush
      actions={
        <>
          <div class="row" role="group" aria-label="Which log">
            {LOGS.map(([log, title]) => (
              <button
                key={log}
                class="small"
                aria-pressed={log === name}
                onClick={() => setParams({ log: log === "agent" ? null : log })}
              >
                {title}
              </button>
            ))}
          </div>
          <Copy text={text} />
        </>
      }
    >
      <Problem error={error} retry={reload} />
      {data === null && !error ? (
        <Empty>
          <Spinner label="Loading" />
        </Empty>
      ) : text === "" ? (
        <Empty>
          {isEarly
            ? "This log is there once the rollout has ended."
            : result
              ? "Nothing was printed."
              : "Nothing has been printed yet."}
        </Empty>
      ) : (
        <div
          class="log"
          ref={box}
          onScroll={onScroll}
          tabIndex={0}
          role="region"
          aria-label="The log's text"
        >
          {shown.length < text.length && (
            <button class="plain small" onClick={() => setLines(lines * 4)}>
              Show earlier lines
            </button>
          )}
          <TerminalText text={shown} />
        </div>
      )}
    </Panel>
  );
}
