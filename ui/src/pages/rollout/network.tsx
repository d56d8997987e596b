// What something inside the sandbox tried to reach.
import { useState } from "preact/hooks";
import { get, isSaved } from "../../api/client";
import { useLoad, useReload } from "../../api/load";
import { firstItems } from "../../api/pages";
import type { NetworkPage, RolloutResult } from "../../api/types";
import { bytes, seconds } from "../../format";
import { Empty, Panel, Problem, Spinner } from "../../ui/parts";
import { AgentText } from "../../ui/text";
import type { TabProps } from "./page";
import { inOrder } from "./phases";
import { TableBox } from "./table-box";

type Attempt = NetworkPage["attempts"][number];

const PAGE = 100;

export function NetworkTab({ rollout: { id, result } }: TabProps) {
  // Attempts are written down when the sandbox is closed.
  if (!result) return <Empty>What was tried is told when the rollout has ended.</Empty>;
  return <Network id={id} result={result} />;
}

function Network({ id, result }: { id: string; result: RolloutResult }) {
  const [wanted, setWanted] = useState(PAGE);
  const [isRefusedOnly, setRefusedOnly] = useState(false);
  const { data, error, reload } = useLoad(
    (abort) => {
      const path = `v1/rollouts/${id}/network`;
      const load = (start: number) => get<NetworkPage>(path, { start, limit: PAGE }, abort);
      return firstItems(wanted, load, (page) => page.attempts);
    },
    [id],
  );
  useReload(reload, wanted);
  const attempts = data?.items ?? [];
  const shown = attempts.filter((it) => !isRefusedOnly || it.verdict === "refused");
  return (
    <div class="stack">
      <Totals result={result} />
      <Problem error={error} {...(isSaved() ? {} : { retry: reload })} />
      <Panel
        title="Attempts"
        flush
        actions={
          <label class="row small">
            <input
              type="checkbox"
              checked={isRefusedOnly}
              onChange={() => setRefusedOnly(!isRefusedOnly)}
            />
            Only refused
          </label>
        }
      >
        {!data ? (
          <Empty>{error ? "They could not be read." : <Spinner label="Loading" />}</Empty>
        ) : shown.length === 0 ? (
          <Empty>
            {isRefusedOnly && attempts.length > 0
              ? "Nothing was refused."
              : "Nothing inside tried to reach anything. Requests to the model go another way and are not listed."}
          </Empty>
        ) : (
          <AttemptTable attempts={shown} startedAt={result.started_at} />
        )}
        {data && attempts.length < data.last.total && (
          <button class="plain small files-more" onClick={() => setWanted(wanted + PAGE)}>
            Show more of {data.last.total.toLocaleString("en")} attempts
          </button>
        )}
      </Panel>
    </div>
  );
}

function Totals({ result }: { result: RolloutResult }) {
  const phases = inOrder(result.network ?? {});
  if (phases.length === 0) return null;
  return (
    <Panel title="By phase" flush>
      <TableBox label="Network use by phase">
        <thead>
          <tr>
            <th>Phase</th>
            <th class="number">Attempts</th>
            <th class="number">Refused</th>
            <th class="number">Received</th>
            <th class="number">Sent</th>
          </tr>
        </thead>
        <tbody>
          {phases.map(([phase, totals]) => (
            <tr key={phase}>
              <td>{phase}</td>
              <td class="number">{totals.attempts.toLocaleString("en")}</td>
              <td class={`number ${totals.refused > 0 ? "bad-text" : ""}`}>
                {totals.refused.toLocaleString("en")}
              </td>
              <td class="number">{bytes(totals.bytes_in)}</td>
              <td class="number">{bytes(totals.bytes_out)}</td>
            </tr>
          ))}
        </tbody>
      </TableBox>
    </Panel>
  );
}

function AttemptTable({ attempts, startedAt }: { attempts: Attempt[]; startedAt: number }) {
  return (
    <TableBox label="Attempts to reach something">
      <thead>
        <tr>
          <th class="number">After</th>
          <th>Phase</th>
          <th>Verdict</th>
          <th>Kind</th>
          <th>Host</th>
          <th class="number">Port</th>
          <th class="number">Received</th>
          <th class="number">Sent</th>
        </tr>
      </thead>
      <tbody>
        {attempts.map((attempt, place) => (
          <tr key={place}>
            <td class="number">{seconds(Math.max(0, attempt.at - startedAt))}</td>
            <td>{attempt.phase || "–"}</td>
            <td>
              <span class={`badge ${attempt.verdict === "allowed" ? "good" : "bad"}`}>
                {attempt.verdict}
              </span>
            </td>
            <td>{attempt.kind}</td>
            <td>
              <span class="mono">
                <AgentText text={attempt.host} />
              </span>
              {attempt.reason && (
                <div class="muted small">
                  <AgentText text={attempt.reason} />
                </div>
              )}
            </td>
            <td class="number">{attempt.port || "–"}</td>
            <td class="number">{bytes(attempt.bytes_in)}</td>
            <td class="number">{bytes(attempt.bytes_out)}</td>
          </tr>
        ))}
      </tbody>
    </TableBox>
  );
}
