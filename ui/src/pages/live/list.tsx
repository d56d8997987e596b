// All live agents of the caller, and the form that starts one.
import type { LiveView } from "../../api/types";
import { ago, bytes, count, dollars, shortId, time } from "../../format";
import { link } from "../../router";
import { Empty, Panel, Problem, Spinner } from "../../ui/parts";
import { AgentText, visible } from "../../ui/text";
import { useTitle } from "../../ui/title";
import { loadAgents, usePolled } from "./api";
import { StartForm } from "./start";
import { LiveBadge } from "./state";

const POLL_MS = 3000;

export function AgentList({ query }: { query: URLSearchParams }) {
  useTitle("Live agents");
  const agents = usePolled(loadAgents, POLL_MS, []);
  const list = agents.data?.agents ?? [];
  const isEmpty = agents.data !== null && list.length === 0;
  const isStarting = query.has("new") || isEmpty;
  return (
    <>
      <div class="row spread">
        <h1>Live agents</h1>
        {!isStarting && (
          <a class="button" href={link(["live"], { new: 1 })}>
            Start an agent
          </a>
        )}
      </div>
      <p class="muted">
        A live agent is a server that stays, in a sandbox of its own, and is driven turn by turn. It
        sleeps when nobody talks to it, and wakes up with the next message.
      </p>
      <Problem error={agents.error} retry={agents.reload} />
      {isStarting && <StartForm canClose={!isEmpty} onStarted={agents.reload} />}
      {!agents.data && !agents.error && (
        <Empty>
          <Spinner label="Loading" />
        </Empty>
      )}
      {list.length > 0 && <AgentTable agents={list} />}
    </>
  );
}

function AgentTable({ agents }: { agents: LiveView[] }) {
  return (
    <Panel flush>
      <div class="scroll-x" tabIndex={0} role="region" aria-label="Live agents">
        <table class="agents">
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">State</th>
              <th scope="col">Agent · model</th>
              <th scope="col" class="number">
                Turns
              </th>
              <th scope="col" class="number">
                Calls
              </th>
              <th scope="col" class="number">
                Tokens in → out
              </th>
              <th scope="col" class="number">
                Cost
              </th>
              <th scope="col" class="number">
                Memory
              </th>
              <th scope="col" class="number">
                Last turn
              </th>
              <th scope="col" class="number">
                Started
              </th>
            </tr>
          </thead>
          <tbody>
            {agents.map((agent) => (
              <AgentRow key={agent.id} agent={agent} />
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}

function AgentRow({ agent }: { agent: LiveView }) {
  return (
    <tr>
      <th scope="row" title={visible(agent.name || agent.id)}>
        <a href={link(["live", agent.id])}>
          <AgentText text={agent.name || shortId(agent.id)} />
        </a>
        {agent.error && (
          <div class="small bad-text cut" title={visible(agent.error)}>
            <AgentText text={agent.error} />
          </div>
        )}
      </th>
      <td>
        <LiveBadge state={agent.state} />
      </td>
      <td class="nowrap">
        <AgentText text={`${agent.agent} · ${agent.model}`} />
      </td>
      <td class="number">
        {count(agent.turns)}
        {agent.open_turns > 0 && <span class="muted"> ({agent.open_turns} open)</span>}
      </td>
      <td class="number">{count(agent.calls)}</td>
      <td class="number">
        {count(agent.prompt_tokens)} → {count(agent.completion_tokens)}
      </td>
      <td class="number">{dollars(agent.cost_usd)}</td>
      <td class="number">{bytes(agent.memory_bytes)}</td>
      <td class="number">{agent.last_turn_at ? ago(agent.last_turn_at) : "–"}</td>
      <td class="number" title={time(agent.created_at)}>
        {ago(agent.created_at)}
      </td>
    </tr>
  );
}
