// A rollout at a glance: how it came out and why, what a reader must know, its figures and its task.
import type { ComponentChildren } from "preact";
import { get, isSaved } from "../../api/client";
import { useLoad, useReload } from "../../api/load";
import type { Finding, RolloutFigures, RolloutResult, Task } from "../../api/types";
import { count, dollars, logprob, seconds, words } from "../../format";
import { link } from "../../router";
import { Empty, Facts, Panel, Problem } from "../../ui/parts";
import { AgentText } from "../../ui/text";
import { Fold, FoldedText } from "./folded";
import { Outcome } from "./outcome";
import type { TabProps } from "./page";
import { SpokenView, StreamedView } from "./transcript/entry";
import { unsaid } from "./live";
import { noTurns } from "./no-turns";
import type { Rollout } from "./use-rollout";
import { useTask } from "./use-task";

const REFRESH_MS = 2000;

export function OverviewTab({ rollout }: TabProps) {
  const { id, result, live } = rollout;
  const { task, isMissing } = useTask(rollout);
  const figures = useLoad(
    (abort) => get<RolloutFigures>(`v1/rollouts/${id}/figures`, {}, abort),
    [id],
  );
  useReload(figures.reload, `${result !== null} ${live.callCount}`, REFRESH_MS);
  const findings = result?.findings ?? figures.data?.findings ?? [];
  return (
    <div class="overview">
      <div class="stack">
        {result ? <Outcome result={result} /> : <Now rollout={rollout} />}
        {findings.length > 0 && <Findings findings={findings} />}
        {result?.agent_report.last_message && (
          <Panel
            title="Last message"
            actions={<a href={link(["rollout", id, "transcript"])}>Transcript</a>}
          >
            <FoldedText name="last" text={result.agent_report.last_message} lines={20} />
          </Panel>
        )}
        <TaskPanel task={task} isMissing={isMissing} />
      </div>
      <div class="stack">
        <Figures figures={figures.data} result={result} />
        {figures.error && figures.error.status !== 404 && (
          <Problem error={figures.error} retry={figures.reload} />
        )}
        {result && <About result={result} />}
      </div>
    </div>
  );
}

/** What is said right now. */
function Now({ rollout }: { rollout: Rollout }) {
  const { id, live } = rollout;
  const streamed = unsaid(live);
  const last = live.calls.at(-1);
  return (
    <Panel
      title="Now"
      flush
      actions={<a href={link(["rollout", id, "transcript"])}>Whole transcript</a>}
    >
      {streamed ? (
        <StreamedView streamed={streamed} />
      ) : last ? (
        <SpokenView call={last} live={live} />
      ) : (
        <Empty>{noTurns(rollout, "What the model says appears here as it is said.")}</Empty>
      )}
    </Panel>
  );
}

const LEVELS: Record<Finding["level"], [string, string]> = {
  FATAL: ["not for training", "bad"],
  WARN: ["warning", "part"],
  INFO: ["note", ""],
};

function Findings({ findings }: { findings: Finding[] }) {
  const order: Finding["level"][] = ["FATAL", "WARN", "INFO"];
  const sorted = [...findings].sort((a, b) => order.indexOf(a.level) - order.indexOf(b.level));
  return (
    <Panel title={`Findings (${findings.length})`} flush>
      <ul class="findings">
        {sorted.map((finding, place) => (
          <li key={place}>
            <span class={`badge ${LEVELS[finding.level][1]}`}>{LEVELS[finding.level][0]}</span>
            <div>
              <strong>{words(finding.code)}</strong>
              <div>
                <AgentText text={finding.text} />
              </div>
            </div>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

interface FiguresProps {
  figures: RolloutFigures | null;
  result: RolloutResult | null;
}

function Figures({ figures, result }: FiguresProps) {
  const tally = (counts: Record<string, number> | undefined) =>
    counts && Object.keys(counts).length > 0 ? <Tally counts={counts} /> : null;
  const usage = result?.usage;
  return (
    <Panel title="Figures">
      <div class="stack">
        <Facts
          facts={[
            [
              "Turns",
              <span title="Every request to the model: the agent's own work, turns beside it, discarded and failed ones">
                {figures ? count(figures.turns) : usage ? count(usage.calls) : "–"}
              </span>,
            ],
            [
              "Productive turns",
              figures && (
                <span title="Turns whose reply the agent went on from, or that end a conversation">
                  {count(figures.productive_turns)}
                </span>
              ),
            ],
            ["Prompt tokens", count(figures?.prompt_tokens ?? usage?.prompt_tokens)],
            ["Sampled tokens", count(figures?.completion_tokens ?? usage?.completion_tokens)],
            ["Cached", count(figures?.cached_tokens ?? usage?.cached_tokens)],
            ["Trainable", result ? count(result.usage.trainable_tokens) : null],
            ["Mean logprob", figures && logprob(figures.mean_logprob)],
            ["Median turn", figures && seconds(figures.latency_median_s)],
            ["Slowest turn", figures && seconds(figures.latency_max_s)],
            ["First turn after", result && seconds(result.timings.first_call_s)],
            [
              "Endpoint out of order",
              result?.timings.outage_s ? seconds(result.timings.outage_s) : null,
            ],
            ["Subagents", figures?.subagents || null],
            ["Forks", figures?.forks || null],
            ["Cost", result ? dollars(result.budget.spent.usd) : null],
          ]}
        />
        <Counts name="Finish reasons">{tally(figures?.finish_reasons)}</Counts>
        <Counts name="Tools">{tally(figures?.tools)}</Counts>
        <Counts name="Turns by role">{tally(figures?.roles)}</Counts>
      </div>
    </Panel>
  );
}

function Counts({ name, children }: { name: string; children: ComponentChildren }) {
  if (!children) return null;
  return (
    <div>
      <h3 class="counts-name">{name}</h3>
      {children}
    </div>
  );
}

function Tally({ counts }: { counts: Record<string, number> }) {
  const sorted = Object.entries(counts).sort(([, one], [, other]) => other - one);
  const most = sorted[0]?.[1] ?? 1;
  return (
    <ul class="tally">
      {sorted.map(([name, value]) => (
        <li key={name}>
          <span class="cut mono">
            <AgentText text={name} />
          </span>
          <span class="tally-bar" aria-hidden="true">
            <span style={{ width: `${(value / most) * 100}%` }} />
          </span>
          <span class="number">{count(value)}</span>
        </li>
      ))}
    </ul>
  );
}

function TaskPanel({ task, isMissing }: { task: Task | null; isMissing: boolean }) {
  if (!task)
    return isMissing ? null : <Panel title="Task">It is shown once the rollout has started.</Panel>;
  const files = Object.keys(task.files ?? {});
  return (
    <Panel title="Task">
      <div class="stack">
        <FoldedText name="instruction" text={task.instruction} lines={20} />
        {files.length > 0 && (
          <Fold name="task-files" title={`${files.length} files of the task`}>
            <ul class="plain-list mono">
              {files.map((path) => (
                <li key={path}>
                  <AgentText text={path} />
                </li>
              ))}
            </ul>
          </Fold>
        )}
        <Fold name="task-json" title="Everything that the task says">
          <div class="mono">
            <AgentText text={JSON.stringify(task, null, 2)} />
          </div>
        </Fold>
      </div>
    </Panel>
  );
}

function About({ result }: { result: RolloutResult }) {
  const { agent, endpoint } = result;
  const labels = Object.entries(result.labels ?? {});
  const text = (value: string | null | undefined) => (value ? <AgentText text={value} /> : null);
  return (
    <Panel title="About">
      <div class="stack">
        <Facts
          facts={[
            ["Agent", text(`${agent.name} ${agent.version}`)],
            ["Run as", result.driver === "serve" ? "a server" : "a command"],
            ["Model", text(endpoint.model)],
            [
              "Served as",
              endpoint.served_model === endpoint.model ? null : text(endpoint.served_model),
            ],
            ["Endpoint", text(endpoint.kind)],
          ]}
        />
        <div class="long-facts">
          <Facts
            facts={[
              ["Address", text(endpoint.base_url)],
              [
                "Group",
                result.group && !isSaved() ? (
                  <a href={link(["rollouts"], { group: result.group })}>
                    <AgentText text={result.group} />
                  </a>
                ) : (
                  text(result.group)
                ),
              ],
              ["Record", text(result.record)],
            ]}
          />
        </div>
        {labels.length > 0 && (
          <div class="row">
            {labels.map(([name, value]) => (
              <span key={name} class="badge">
                <AgentText text={`${name}=${value}`} />
              </span>
            ))}
          </div>
        )}
      </div>
    </Panel>
  );
}
