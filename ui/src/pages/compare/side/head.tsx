// How two rollouts came out; what differs stands out.
import type { ComponentChildren } from "preact";
import type { RolloutRow } from "../../../api/types";
import { count, dollars, reward, seconds, shortId, time, words } from "../../../format";
import { link } from "../../../router";
import { Panel, StateBadge } from "../../../ui/parts";
import { AgentText, visible } from "../../../ui/text";

interface Fact {
  name: string;
  show: (row: RolloutRow) => ComponentChildren;
  /** What is compared; the difference is told where it is a number. */
  value: (row: RolloutRow) => string | number | null;
  format?: (value: number) => string;
}

const FACTS: Fact[] = [
  { name: "State", show: (row) => <StateBadge row={row} />, value: (row) => row.verdict },
  {
    name: "Reward",
    show: (row) => reward(row.reward),
    value: (row) => row.reward,
    format: (it) => it.toFixed(2),
  },
  { name: "Ended", show: (row) => (row.ended ? words(row.ended) : "–"), value: (row) => row.ended },
  number("Turns", (row) => row.calls, count),
  number("Prompt tokens", (row) => row.prompt_tokens, count),
  number("Sampled", (row) => row.completion_tokens, count),
  // Known once it has ended.
  number("Trainable", (row) => (row.status === "ended" ? row.trainable_tokens : null), count),
  // Nothing where the price is not known.
  number("Cost", (row) => row.cost_usd || null, dollars),
  number("Time", (row) => row.wall_s, seconds),
];

function number(
  name: string,
  value: (row: RolloutRow) => number | null,
  format: (value: number) => string,
): Fact {
  const show = (row: RolloutRow) => {
    const known = value(row);
    return known === null ? "–" : format(known);
  };
  return { name, show, value, format };
}

export function Head({ a, b }: { a: RolloutRow | null; b: RolloutRow | null }) {
  return (
    <Panel class="flush-table" flush>
      <div class="scroll-x" tabIndex={0} role="region" aria-label="How the two came out">
        <table class="side-head">
          <thead>
            <tr>
              <th scope="col">Rollout</th>
              {FACTS.map((fact) => (
                <th key={fact.name} scope="col">
                  {fact.name}
                </th>
              ))}
              <th scope="col">Started</th>
            </tr>
          </thead>
          <tbody>
            <RolloutLine letter="A" row={a} other={b} />
            <RolloutLine letter="B" row={b} other={a} />
            <tr class="against">
              <th scope="row">B against A</th>
              {FACTS.map((fact) => (
                <td key={fact.name}>{a && b ? against(fact, a, b) : ""}</td>
              ))}
              <td />
            </tr>
          </tbody>
        </table>
      </div>
    </Panel>
  );
}

function RolloutLine(props: { letter: string; row: RolloutRow | null; other: RolloutRow | null }) {
  const { letter, row, other } = props;
  const isOther = (fact: Fact) => row && other && fact.value(row) !== fact.value(other);
  return (
    <tr>
      <th scope="row">
        <div class="side-name">
          <span class={`side-letter ${letter.toLowerCase()}`}>{letter}</span>
          {row ? <Named row={row} /> : "…"}
        </div>
      </th>
      {FACTS.map((fact) => (
        <td key={fact.name} class={isOther(fact) ? "differs" : ""}>
          {row ? fact.show(row) : "…"}
        </td>
      ))}
      <td>{row ? time(row.started_at) : "…"}</td>
    </tr>
  );
}

function Named({ row }: { row: RolloutRow }) {
  return (
    <div>
      <div>
        <a class="mono" href={link(["rollout", row.rollout_id])} title={row.rollout_id}>
          {shortId(row.rollout_id)}
        </a>{" "}
        <AgentText text={row.task_id} />
      </div>
      <div class="small muted">
        <AgentText text={`${row.agent} · ${row.model}`} />
      </div>
      {row.error && (
        <div class="small side-error cut" title={visible(row.error)}>
          <AgentText text={row.error} />
        </div>
      )}
    </div>
  );
}

/** `+1,200 (+34%)`. */
function against(fact: Fact, a: RolloutRow, b: RolloutRow): string {
  const [left, right] = [fact.value(a), fact.value(b)];
  if (left === right) return "same";
  if (typeof left !== "number" || typeof right !== "number" || !fact.format) return "differs";
  const change = right - left;
  const sign = change > 0 ? "+" : "−";
  const share = left !== 0 ? ` (${sign}${Math.abs(Math.round((100 * change) / left))}%)` : "";
  return `${sign}${fact.format(Math.abs(change))}${share}`;
}
