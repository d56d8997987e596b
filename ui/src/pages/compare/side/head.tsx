// How two rollouts came out; what differs stands out.
import type { ComponentChildren } from "preact";
import type { RolloutRow } from "../../../api/types";
import { count, dollars, reward, seconds, shortId, time, words } from "../../../format";
import { link } from "../../../router";
import { Panel, StateBadge } from "../../../ui/parts";
import { AgentText } from "../../../ui/text";

interface Fact {
  name: string;
  show: (row: RolloutRow) => ComponentChildren;
  /** What is compared; the difference is told where it is a number. */
  value: (row: RolloutRow) => string | number | null;
  format?: (value: number) => string;
}

const text = (value: string | null | undefined) => (value ? <AgentText text={value} /> : "–");

const FACTS: Fact[] = [
  { name: "State", show: (row) => <StateBadge row={row} />, value: (row) => row.verdict },
  {
    name: "Reward",
    show: (row) => reward(row.reward),
    value: (row) => row.reward,
    format: (it) => it.toFixed(2),
  },
  { name: "Ended", show: (row) => (row.ended ? words(row.ended) : "–"), value: (row) => row.ended },
  { name: "Task", show: (row) => text(row.task_id), value: (row) => row.task_id },
  { name: "Agent", show: (row) => text(row.agent), value: (row) => row.agent },
  { name: "Model", show: (row) => text(row.model), value: (row) => row.model },
  { name: "Turns", show: (row) => count(row.calls), value: (row) => row.calls, format: count },
  {
    name: "Prompt tokens",
    show: (row) => count(row.prompt_tokens),
    value: (row) => row.prompt_tokens,
    format: count,
  },
  {
    name: "Sampled tokens",
    show: (row) => count(row.completion_tokens),
    value: (row) => row.completion_tokens,
    format: count,
  },
  {
    name: "Trainable",
    show: (row) => count(row.trainable_tokens),
    value: (row) => row.trainable_tokens,
    format: count,
  },
  {
    name: "Cost",
    show: (row) => dollars(row.cost_usd),
    value: (row) => row.cost_usd || null,
    format: dollars,
  },
  { name: "Time", show: (row) => seconds(row.wall_s), value: (row) => row.wall_s, format: seconds },
  { name: "Started", show: (row) => time(row.started_at), value: () => null },
  { name: "Error", show: (row) => text(row.error), value: (row) => row.error },
];

export function Head({ a, b }: { a: RolloutRow | null; b: RolloutRow | null }) {
  // A row that says nothing of either is left out.
  const facts = FACTS.filter(({ name }) => name !== "Error" || a?.error || b?.error);
  return (
    <Panel class="flush-table" flush>
      <div class="scroll-x" tabIndex={0} role="region" aria-label="How the two came out">
        <table class="side-head">
          <thead>
            <tr>
              <td />
              <RolloutHead letter="A" row={a} />
              <RolloutHead letter="B" row={b} />
              <th scope="col">B against A</th>
            </tr>
          </thead>
          <tbody>
            {facts.map((fact) => (
              <FactRow key={fact.name} fact={fact} a={a} b={b} />
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}

function RolloutHead({ letter, row }: { letter: string; row: RolloutRow | null }) {
  return (
    <th scope="col">
      <span class={`side-letter ${letter.toLowerCase()}`}>{letter}</span>{" "}
      {row ? (
        <a class="mono" href={link(["rollout", row.rollout_id])} title={row.rollout_id}>
          {shortId(row.rollout_id)}
        </a>
      ) : (
        "…"
      )}
    </th>
  );
}

function FactRow({ fact, a, b }: { fact: Fact; a: RolloutRow | null; b: RolloutRow | null }) {
  const [left, right] = [a && fact.value(a), b && fact.value(b)];
  const isOther = a !== null && b !== null && left !== right;
  return (
    <tr class={isOther ? "differs" : ""}>
      <th scope="row">{fact.name}</th>
      <td>{a ? fact.show(a) : "…"}</td>
      <td>{b ? fact.show(b) : "…"}</td>
      <td class="muted">{isOther ? against(left, right, fact.format) : ""}</td>
    </tr>
  );
}

/** `+1,200 (+34%)`. */
function against(
  left: string | number | null,
  right: string | number | null,
  format?: (value: number) => string,
): string {
  if (typeof left !== "number" || typeof right !== "number" || !format) return "differs";
  const change = right - left;
  const sign = change > 0 ? "+" : "−";
  const share = left !== 0 ? ` (${sign}${Math.abs(Math.round((100 * change) / left))}%)` : "";
  return `${sign}${format(Math.abs(change))}${share}`;
}
