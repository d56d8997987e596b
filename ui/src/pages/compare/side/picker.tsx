// Choosing the rollout to compare with: others of the same task.
import { useEffect, useState } from "preact/hooks";
import { get } from "../../../api/client";
import { useLoad } from "../../../api/load";
import type { RolloutPage, RolloutRow } from "../../../api/types";
import { ago, count, reward, seconds, shortId } from "../../../format";
import { Empty, Panel, Problem, Spinner, StateBadge } from "../../../ui/parts";
import { AgentText } from "../../../ui/text";

const PAGE = 50;

export function Picker({ row, choose }: { row: RolloutRow; choose: (id: string) => string }) {
  const [typed, setTyped] = useState("");
  const [search, setSearch] = useState("");
  useEffect(() => {
    const timer = window.setTimeout(() => setSearch(typed), 250);
    return () => clearTimeout(timer);
  }, [typed]);
  const query = { task: row.task_id, q: search, limit: PAGE };
  const found = useLoad((abort) => get<RolloutPage>("v1/rollouts", query, abort), [query]);
  const others = found.data?.rollouts.filter((it) => it.rollout_id !== row.rollout_id) ?? [];
  const isMore = (found.data?.total ?? 0) > PAGE;
  return (
    <Panel
      title={
        <>
          Rollouts of <AgentText text={row.task_id} />
        </>
      }
      actions={
        <input
          type="search"
          aria-label="Search among them"
          placeholder="agent, model, label, id"
          value={typed}
          onInput={(event) => setTyped(event.currentTarget.value)}
        />
      }
      class="flush-table"
      flush
    >
      <Problem error={found.error} retry={found.reload} />
      <div class="scroll-x" tabIndex={0} role="region" aria-label="Rollouts to compare with">
        <table>
          <thead>
            <tr>
              <th scope="col">Compare with</th>
              <th scope="col">State</th>
              <th scope="col" class="number">
                Reward
              </th>
              <th scope="col">Agent · model</th>
              <th scope="col" class="number">
                Turns
              </th>
              <th scope="col" class="number">
                Tokens
              </th>
              <th scope="col" class="number">
                Time
              </th>
              <th scope="col" class="number">
                Started
              </th>
            </tr>
          </thead>
          <tbody>
            {/* What it is compared with stands first, for the eye. */}
            {[row, ...others].map((it) => (
              <tr key={it.rollout_id}>
                <th scope="row" class="mono">
                  {it === row ? (
                    <span class="muted">{shortId(it.rollout_id)} (this one)</span>
                  ) : (
                    <a href={choose(it.rollout_id)}>{shortId(it.rollout_id)}</a>
                  )}
                </th>
                <td>
                  <StateBadge row={it} />
                </td>
                <td class="number">{reward(it.reward)}</td>
                <td class="nowrap">
                  <AgentText text={`${it.agent} · ${it.model}`} />
                </td>
                <td class="number">{count(it.calls)}</td>
                <td class="number">{count(it.prompt_tokens + it.completion_tokens)}</td>
                <td class="number">{seconds(it.wall_s)}</td>
                <td class="number">{ago(it.started_at)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {found.loading && !found.data && (
        <Empty>
          <Spinner label="Loading" />
        </Empty>
      )}
      {found.data && others.length === 0 && (
        <Empty>
          {search ? "None matches." : "There is no other rollout of this task yet: start it again."}
        </Empty>
      )}
      {isMore && <p class="small muted explain">The newest {PAGE}; search for others.</p>}
    </Panel>
  );
}
