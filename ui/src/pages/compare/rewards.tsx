// The distribution of rewards: one small histogram for each series.
import { scaleLinear } from "d3-scale";
import { useState } from "preact/hooks";
import type { GroupFigures } from "../../api/types";
import { reward } from "../../format";
import { AgentText, visible } from "../../ui/text";
import { keyName } from "./figures";
import type { Filters } from "../rollouts/filters";
import { listOf } from "./query";
import { Pager, VerdictBar } from "./series";

const [WIDTH, HEIGHT] = [190, 92];
const PAD = { left: 26, right: 4, top: 6, bottom: 18 };
const PAGE = 12;

const tenth = (index: number) => `${(index / 10).toFixed(1)} to ${((index + 1) / 10).toFixed(1)}`;

export function RewardCharts(props: { groups: GroupFigures[]; title: string; filters: Filters }) {
  const { groups, title, filters } = props;
  const [start, setStart] = useState(0);
  const from = start < groups.length ? start : 0;
  const shown = groups.slice(from, from + PAGE);
  return (
    <div class="stack">
      <p class="small muted">
        How many of the valid rollouts got which reward, from 0 to 1. The line below each: passed,
        partial, failed.
      </p>
      <div class="multiples">
        {shown.map((group) => (
          <figure key={keyName(group.key)}>
            <figcaption>
              <a class="cut" href={listOf(filters, group.key)} title={visible(keyName(group.key))}>
                <AgentText text={keyName(group.key)} />
              </a>
              <span class="muted small number">
                {group.valid} valid · mean {reward(group.mean_reward)}
              </span>
            </figcaption>
            <Histogram rewards={group.rewards} name={keyName(group.key)} />
            <VerdictBar {...group} />
          </figure>
        ))}
      </div>
      <Pager
        start={from}
        size={PAGE}
        total={groups.length}
        label="Distributions"
        onStart={setStart}
      />
      <details>
        <summary>As a table</summary>
        <RewardTable groups={shown} title={title} />
      </details>
    </div>
  );
}

function Histogram({ rewards, name }: { rewards: number[]; name: string }) {
  const most = Math.max(1, ...rewards);
  const x = scaleLinear([0, rewards.length || 10], [PAD.left, WIDTH - PAD.right]);
  const y = scaleLinear([0, most], [HEIGHT - PAD.bottom, PAD.top]);
  const floor = HEIGHT - PAD.bottom;
  return (
    <svg
      class="chart"
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      role="img"
      aria-label={`Rewards of ${visible(name)}`}
    >
      <line class="grid" x1={PAD.left} x2={WIDTH - PAD.right} y1={y(most)} y2={y(most)} />
      <line class="base" x1={PAD.left} x2={WIDTH - PAD.right} y1={floor} y2={floor} />
      <text class="tick" x={PAD.left - 5} y={y(most) + 4} text-anchor="end">
        {most}
      </text>
      {rewards.map((count, index) => (
        <rect
          key={index}
          class="bin"
          x={x(index) + 1}
          width={Math.max(1, x(index + 1) - x(index) - 2)}
          y={y(count)}
          height={floor - y(count)}
        >
          <title>{`${count} with a reward of ${tenth(index)}`}</title>
        </rect>
      ))}
      {[0, 0.5, 1].map((value) => (
        <text
          key={value}
          class="tick"
          x={x(value * (rewards.length || 10))}
          y={HEIGHT - 4}
          text-anchor={value === 0 ? "start" : value === 1 ? "end" : "middle"}
        >
          {value}
        </text>
      ))}
    </svg>
  );
}

function RewardTable({ groups, title }: { groups: GroupFigures[]; title: string }) {
  return (
    <div class="scroll-x" tabIndex={0} role="region" aria-label="Rewards as a table">
      <table class="numbers">
        <thead>
          <tr>
            <th scope="col">{title}</th>
            {Array.from({ length: 10 }, (_, index) => (
              <th key={index} scope="col" class="number">
                {tenth(index)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {groups.map((group) => (
            <tr key={keyName(group.key)}>
              <th scope="row">
                <AgentText text={keyName(group.key)} />
              </th>
              {group.rewards.map((count, index) => (
                <td key={index} class="number">
                  {count}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
