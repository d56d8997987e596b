// What a rollout is and what can be done with it.
import { useState } from "preact/hooks";
import { address, isSaved, post, remove } from "../../api/client";
import type { RolloutResult, Verdict } from "../../api/types";
import { ago, count, dollars, reward, seconds, shortId, time } from "../../format";
import { go, link } from "../../router";
import { slowClock } from "../../ui/clock";
import { Confirm } from "../../ui/dialog";
import { Copy, StateBadge, VerdictBadge } from "../../ui/parts";
import { AgentText } from "../../ui/text";
import { Timeline } from "./timeline";
import type { Rollout } from "./use-rollout";

const PASS = 0.999;

export function verdictOf(result: Pick<RolloutResult, "reward" | "reward_valid">): Verdict {
  if (result.reward === null || !result.reward_valid) return "invalid";
  if (result.reward >= PASS) return "pass";
  return result.reward > 0 ? "partial" : "fail";
}

export function Header({ rollout }: { rollout: Rollout }) {
  const { id, result, progress } = rollout;
  const task = result?.task_id ?? progress?.task_id ?? "";
  return (
    <section class="panel rollout-head" aria-label="Rollout">
      <div class="rollout-title">
        {result && <VerdictBadge verdict={verdictOf(result)} />}
        {progress && <StateBadge row={progress} />}
        <h1 class="cut">
          <AgentText text={task || "Rollout"} />
        </h1>
        <code class="muted small" title={id}>
          {shortId(id)}
        </code>
        <Actions rollout={rollout} />
      </div>
      <Meta rollout={rollout} />
      <Timeline rollout={rollout} />
    </section>
  );
}

function Meta({ rollout: { result, progress } }: { rollout: Rollout }) {
  const startedAt = result?.started_at ?? progress?.started_at ?? null;
  const cost = result ? result.budget.spent.usd : (progress?.cost_usd ?? 0);
  const usage = result?.usage ?? progress;
  const facts: [name: string, value: string, about?: string][] = [
    ["Reward", result ? reward(result.reward) : "–"],
    [
      "Turns",
      count(usage?.calls ?? null),
      result
        ? "Requests to the model, each with its answer; failed ones count, too"
        : "Requests to the model that have been answered",
    ],
    [
      "Tokens",
      `${count(usage?.prompt_tokens ?? null)} → ${count(usage?.completion_tokens ?? null)}`,
      "Tokens of all prompts → sampled tokens",
    ],
  ];
  if (cost) facts.push(["Cost", dollars(cost)]);
  if (result) facts.push(["Time", seconds(result.wall_s)]);
  const agent = result ? `${result.agent.name} ${result.agent.version}` : (progress?.agent ?? "");
  const model = result?.endpoint.model ?? progress?.model ?? "";
  const endpoint = result?.endpoint.kind ?? progress?.endpoint ?? "";
  const driver = result?.driver ?? progress?.driver;
  return (
    <dl class="rollout-meta">
      {facts.map(([name, value, about]) => (
        <div key={name} title={about}>
          <dt>{name}</dt>
          <dd class="number">{value}</dd>
        </div>
      ))}
      {result && result.findings.length > 0 && (
        <div>
          <dt>Findings</dt>
          <dd>
            <a href={link(["rollout", result.rollout_id])}>{result.findings.length}</a>
          </dd>
        </div>
      )}
      <div class="wide">
        <dt>Agent</dt>
        <dd>
          <AgentText text={agent} />
          {driver && (
            <span class="muted"> · {driver === "serve" ? "as a server" : "as a command"}</span>
          )}
        </dd>
      </div>
      <div class="wide">
        <dt>Model</dt>
        <dd>
          <AgentText text={model || "–"} />
          {endpoint && endpoint !== model && (
            <span class="muted">
              {" · "}
              <AgentText text={endpoint} />
            </span>
          )}
        </dd>
      </div>
      {startedAt !== null && (
        <div class="wide">
          <dt>Started</dt>
          <dd title={new Date(startedAt * 1000).toISOString()}>
            {time(startedAt)} <span class="muted">· {ago(startedAt, slowClock.value)}</span>
          </dd>
        </div>
      )}
    </dl>
  );
}

function Actions({ rollout }: { rollout: Rollout }) {
  const { id, result, progress } = rollout;
  const [asked, setAsked] = useState<"cancel" | "delete" | "finalize" | null>(null);
  const close = () => setAsked(null);
  if (isSaved()) return null;
  // A served agent is finalized where it is talked to, beside its transcript.
  const canFinalize = progress?.phase === "kept";
  return (
    <div class="row rollout-actions">
      {canFinalize && (
        <button class="small" onClick={() => setAsked("finalize")}>
          Finalize
        </button>
      )}
      {progress && (
        <button class="small danger cancel" onClick={() => setAsked("cancel")}>
          Cancel
        </button>
      )}
      <a class="button small" href={link(["start"], { from: id })}>
        Run again
      </a>
      <a class="button small" href={link(["compare"], { ids: id })}>
        Compare with…
      </a>
      {result && (
        <a class="button small" href={address(`v1/rollouts/${id}/page`)} download>
          Save as page
        </a>
      )}
      <Copy text={id} label="Copy id" />
      <Copy text={() => Promise.resolve(location.href)} label="Copy link" />
      {result && (
        <button class="small danger" onClick={() => setAsked("delete")}>
          Delete
        </button>
      )}
      {asked === "cancel" && (
        <Confirm
          title="Cancel this rollout?"
          action="Cancel the rollout"
          isDanger
          close={close}
          run={() => post(`v1/rollouts/${id}/cancel`).then(rollout.reload)}
        >
          <p>The agent is ended at once. What was captured until then stays, without a reward.</p>
        </Confirm>
      )}
      {asked === "finalize" && (
        <Confirm
          title="Finalize this rollout?"
          action="Finalize"
          close={close}
          run={() => post(`v1/rollouts/${id}/finalize`)}
        >
          <p>What the agent left is verified and collected.</p>
        </Confirm>
      )}
      {asked === "delete" && (
        <Confirm
          title="Delete this rollout?"
          action="Delete"
          isDanger
          close={close}
          run={() => remove(`v1/rollouts/${id}`).then(() => go(link(["rollouts"])))}
        >
          <p>Everything that was kept of it is removed: turns, tokens, files and logs.</p>
        </Confirm>
      )}
    </div>
  );
}
