// What a rollout used: processor, memory and disk by phase, and its budget against its limits.
import type { RolloutResult, Task } from "../../api/types";
import { bytes, dollars, seconds } from "../../format";
import { Empty, Facts, Panel } from "../../ui/parts";
import { AgentText } from "../../ui/text";
import { budgetLines, type BudgetLine } from "./budget-lines";
import type { TabProps } from "./page";
import { inOrder } from "./phases";
import { TableBox } from "./table-box";
import { useTask } from "./use-task";

export function ResourcesTab({ rollout }: TabProps) {
  const { result } = rollout;
  const { task } = useTask(rollout);
  if (!result) return <Empty>What it used is known once it has ended.</Empty>;
  return (
    <div class="stack">
      <PhaseUsage result={result} task={task} />
      <div class="columns">
        <Budget result={result} task={task} />
        <Sandbox result={result} />
      </div>
    </div>
  );
}

function PhaseUsage({ result, task }: { result: RolloutResult; task: Task | null }) {
  const { usage, timings } = result;
  const phases = inOrder(usage.phases ?? {});
  const spent: Record<string, number> = {
    setup: timings.setup_s,
    agent: timings.agent_s,
    verify: timings.verify_s,
  };
  const memory = task?.limits?.memory_mb ?? null;
  return (
    <Panel title="By phase" flush>
      <TableBox label="Use by phase">
        <thead>
          <tr>
            <th>Phase</th>
            <th class="number">Time</th>
            <th class="number">Processor</th>
            <th class="number">Memory, peak</th>
            <th class="number">Files at its end</th>
            <th class="number">Killed for memory</th>
            <th class="number">Received</th>
            <th class="number">Sent</th>
          </tr>
        </thead>
        <tbody>
          {phases.map(([phase, used]) => (
            <tr key={phase}>
              <td>{phase}</td>
              <td class="number">{seconds(spent[phase])}</td>
              <td class="number">{seconds(used.cpu_s)}</td>
              <td class="number">{bytes(used.memory_peak_bytes)}</td>
              <td class="number">{bytes(used.disk_used_bytes)}</td>
              <td class={`number ${used.oom_kills ? "bad-text" : ""}`}>{used.oom_kills ?? "–"}</td>
              <td class="number">{bytes(used.network_bytes_in)}</td>
              <td class="number">{bytes(used.network_bytes_out)}</td>
            </tr>
          ))}
          <tr class="table-sum">
            <td>all</td>
            <td class="number">{seconds(result.wall_s)}</td>
            <td class="number">{seconds(usage.cpu_s)}</td>
            <td class="number">
              {bytes(usage.memory_peak_bytes)}
              {memory !== null && <span class="muted"> of {bytes(memory * 1024 * 1024)}</span>}
            </td>
            <td />
            <td class={`number ${usage.oom_kills ? "bad-text" : ""}`}>{usage.oom_kills ?? "–"}</td>
            <td />
            <td />
          </tr>
        </tbody>
      </TableBox>
    </Panel>
  );
}

function Budget({ result, task }: { result: RolloutResult; task: Task | null }) {
  const { budget, usage } = result;
  const unanswered = usage.calls - budget.spent.calls;
  return (
    <Panel title="Budget">
      <div class="stack">
        {budgetLines(result, task).map((line) => (
          <Meter key={line.name} line={line} />
        ))}
        {budget.stopped_by && (
          <p class="notice part small">
            Ended by its limit on <AgentText text={budget.stopped_by.replaceAll("_", " ")} />.
          </p>
        )}
        {budget.stops > 0 && (
          <p class="muted small">
            {budget.stops} {budget.stops === 1 ? "turn was" : "turns were"} answered by a limit
            instead of the model.
          </p>
        )}
        {unanswered > 0 && (
          <p class="muted small">
            A turn that the model answered is one model call. {unanswered.toLocaleString("en")} of{" "}
            {usage.calls.toLocaleString("en")} turns it did not answer; they cost none.
          </p>
        )}
      </div>
    </Panel>
  );
}

function shown(line: BudgetLine, value: number): string {
  if (line.unit === "s") return seconds(value);
  return line.unit === "usd" ? dollars(value) : value.toLocaleString("en");
}

function Meter({ line }: { line: BudgetLine }) {
  const { name, used, limit } = line;
  const share = limit ? Math.min(1, used / limit) : 0;
  return (
    <div class="meter">
      <span>{name}</span>
      <span class="number">
        {shown(line, used)}
        <span class="muted"> {limit === null ? "· no limit" : `of ${shown(line, limit)}`}</span>
      </span>
      {limit !== null && (
        <div class="meter-bar" aria-hidden="true">
          <span class={share >= 1 ? "full" : ""} style={{ width: `${share * 100}%` }} />
        </div>
      )}
    </div>
  );
}

function Sandbox({ result }: { result: RolloutResult }) {
  const { sandbox, endpoint } = result;
  const tiers: Record<string, string> = { root: "as root", user: "user namespaces" };
  return (
    <Panel title="Sandbox">
      <Facts
        facts={[
          ["Kind", sandbox.kind],
          ["Made with", tiers[sandbox.tier] ?? sandbox.tier],
          ["Memory limit by", sandbox.memory],
          ["Process limit by", sandbox.pids],
          ["Processor limit by", sandbox.cpu],
          ["Stood ready", sandbox.warm ? "yes" : "no"],
          ["Context", endpoint.context_tokens?.toLocaleString("en") ?? null],
          ["Logprobs of", endpoint.logprobs],
        ]}
      />
    </Panel>
  );
}
