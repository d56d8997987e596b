// One live agent: the chat, its log, its health, and how to end it.
import { useState } from "preact/hooks";
import { address, post, remove } from "../../api/client";
import type { LiveView } from "../../api/types";
import { ago, bytes, count, dollars, shortId, time } from "../../format";
import { go, link } from "../../router";
import { Confirm } from "../../ui/dialog";
import { Copy, Empty, Facts, Panel, Problem, Spinner, Tabs } from "../../ui/parts";
import { AgentText } from "../../ui/text";
import { useTitle } from "../../ui/title";
import { agentPath, failure, loadAgents, usePolled } from "./api";
import { Chat } from "./chat";
import { HealthPanel } from "./health-panel";
import { Log } from "./log";
import { LiveBadge } from "./state";

const POLL_MS = 3000;

export function AgentPage({ id, query }: { id: string; query: URLSearchParams }) {
  // The list has everything but the password of the agent's own server, which has no place in a page.
  const agents = usePolled(loadAgents, POLL_MS, []);
  const agent = agents.data?.agents.find((it) => it.id === id || it.name === id);
  useTitle(agent ? `${agent.name || shortId(agent.id)}, ${agent.state}` : "Live agent");
  const view = query.get("view") === "log" ? "log" : "chat";
  if (!agent) {
    if (agents.error) return <Problem error={agents.error} retry={agents.reload} />;
    return (
      <Empty>
        {agents.data ? (
          <>
            There is no such live agent. <a href="#/live">All live agents</a>
          </>
        ) : (
          <Spinner label="Loading" />
        )}
      </Empty>
    );
  }
  const here = (params: Record<string, string>) => link(["live", agent.id], params);
  return (
    <>
      <div class="row spread">
        <div class="row">
          <a href="#/live" class="muted">
            Live agents
          </a>
          <span class="muted">/</span>
          <h1>
            <AgentText text={agent.name || shortId(agent.id)} />
          </h1>
          <LiveBadge state={agent.state} />
        </div>
        <Actions agent={agent} onChange={agents.reload} />
      </div>
      {agent.error && (
        <div class="notice bad">
          <AgentText text={agent.error} />
        </div>
      )}
      <div class="live-agent">
        <div class="stack">
          <Tabs
            label="Parts"
            current={view}
            tabs={[
              { id: "chat", name: "Chat", href: here({}) },
              { id: "log", name: "Log", href: here({ view: "log" }) },
            ]}
          />
          {view === "log" ? (
            <Log id={agent.id} />
          ) : (
            <Chat key={agent.id} agent={agent} onChange={agents.reload} />
          )}
        </div>
        <aside class="stack" aria-label="About the agent">
          <About agent={agent} />
          <HealthPanel agent={agent} />
          <Records agent={agent} />
        </aside>
      </div>
    </>
  );
}

function About({ agent }: { agent: LiveView }) {
  return (
    <Panel title="Agent">
      <Facts
        facts={[
          ["Agent", <AgentText text={`${agent.agent} ${agent.version}`} />],
          ["Model", <AgentText text={agent.model} />],
          ["Turns", count(agent.turns)],
          ["Open", agent.open_turns > 0 ? count(agent.open_turns) : ""],
          ["Model calls", count(agent.calls)],
          ["Prompt tokens", count(agent.prompt_tokens)],
          ["Sampled tokens", count(agent.completion_tokens)],
          ["Cost", agent.cost_usd === null ? "" : dollars(agent.cost_usd)],
          ["Memory", agent.memory_bytes === null ? "" : bytes(agent.memory_bytes)],
          ["Started", <span title={time(agent.created_at)}>{ago(agent.created_at)}</span>],
          ["Last turn", agent.last_turn_at ? ago(agent.last_turn_at) : ""],
          ["Restarts", agent.restarts > 0 ? count(agent.restarts) : ""],
        ]}
      />
    </Panel>
  );
}

function Records({ agent }: { agent: LiveView }) {
  const isReadable = agent.state === "stopped" || agent.state === "failed";
  return (
    <Panel title="Records">
      <p class="small muted">
        What it says to its model is recorded like a rollout's
        {isReadable ? "." : "; it can be read once the agent is stopped."}
      </p>
      <ul class="records mono">
        {agent.records.map((record) => (
          <li key={record}>
            {isReadable ? (
              <a href={link(["rollout", record])} title={record}>
                {shortId(record)}
              </a>
            ) : (
              <span title={record}>{shortId(record)}</span>
            )}
          </li>
        ))}
      </ul>
      <div class="row small">
        <span class="muted">In a terminal</span>
        <Copy
          text={`rollcage live chat ${agent.id} --server ${address("").replace(/\/$/, "")}`}
          label="Copy the command"
        />
      </div>
    </Panel>
  );
}

function Actions({ agent, onChange }: { agent: LiveView; onChange: () => void }) {
  const [asked, setAsked] = useState<"stop" | "remove" | null>(null);
  const [isStarting, setStarting] = useState(false);
  const [problem, setProblem] = useState("");
  const isStopped = agent.state === "stopped" || agent.state === "failed";
  const start = async () => {
    setStarting(true);
    setProblem("");
    try {
      await post(agentPath(agent.id, "/start"));
    } catch (error) {
      setProblem(failure(error));
    }
    setStarting(false);
    onChange();
  };
  return (
    <div class="row">
      {problem && (
        <span class="small bad-text" role="alert">
          {problem}
        </span>
      )}
      {isStopped ? (
        <>
          <button class="primary" disabled={isStarting} onClick={start}>
            {isStarting ? <Spinner /> : null} {isStarting ? "Starting…" : "Start again"}
          </button>
          <button class="danger" disabled={isStarting} onClick={() => setAsked("remove")}>
            Remove
          </button>
        </>
      ) : (
        <button class="danger" onClick={() => setAsked("stop")}>
          Stop
        </button>
      )}
      {asked === "stop" && (
        <Confirm
          title="Stop this agent?"
          action="Stop"
          isDanger
          run={async () => {
            await post(agentPath(agent.id, "/stop"));
            onChange();
          }}
          close={() => setAsked(null)}
        >
          <p>
            Its open turns are aborted, its files and conversations saved, its processes ended. It
            can be started again where it was.
          </p>
        </Confirm>
      )}
      {asked === "remove" && (
        <Confirm
          title="Remove this agent?"
          action="Remove"
          isDanger
          run={async () => {
            await remove(agentPath(agent.id));
            go("#/live");
          }}
          close={() => setAsked(null)}
        >
          <p>Its files and turns are deleted. The records of its model calls stay.</p>
        </Confirm>
      )}
    </div>
  );
}
