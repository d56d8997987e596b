// pass@k: how likely one of k tries passes, a line for each series.
import { scaleLinear, scaleLog } from "d3-scale";
import { line } from "d3-shape";
import { useState } from "preact/hooks";
import type { GroupFigures } from "../../api/types";
import { AgentText, visible } from "../../ui/text";
import { keyName } from "./figures";
import { percent, SERIES_COLOURS, SeriesMark } from "./series";

const [WIDTH, HEIGHT] = [560, 300];
const PAD = { left: 52, right: 16, top: 12, bottom: 40 };

/** The tries that any of them has, from few to many. */
function triesOf(groups: GroupFigures[]): number[] {
  const all = groups.flatMap((group) => group.pass_at_k.map((point) => point.k));
  return [...new Set(all)].sort((a, b) => a - b);
}

export function PassChart({ groups, title }: { groups: GroupFigures[]; title: string }) {
  const [marked, setMarked] = useState<number | null>(null);
  const tries = triesOf(groups);
  const last = Math.max(2, tries.at(-1) ?? 2);
  const x = scaleLog([1, last], [PAD.left, WIDTH - PAD.right]).base(2);
  const y = scaleLinear([0, 1], [HEIGHT - PAD.bottom, PAD.top]);
  const path = line<{ k: number; value: number }>(
    (point) => x(point.k),
    (point) => y(point.value),
  );
  return (
    <div class="stack">
      <svg
        class="chart pass-chart"
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        role="img"
        aria-label="pass@k by number of tries; the table below has the same numbers"
      >
        {[0, 0.25, 0.5, 0.75, 1].map((value) => (
          <g key={value}>
            <line class="grid" x1={PAD.left} x2={WIDTH - PAD.right} y1={y(value)} y2={y(value)} />
            <text class="tick" x={PAD.left - 8} y={y(value) + 4} text-anchor="end">
              {percent(value)}
            </text>
          </g>
        ))}
        {(tries.length > 0 ? tries : [1, 2]).map((k) => (
          <g key={k}>
            <line class="grid" x1={x(k)} x2={x(k)} y1={PAD.top} y2={HEIGHT - PAD.bottom} />
            <text class="tick" x={x(k)} y={HEIGHT - PAD.bottom + 16} text-anchor="middle">
              {k}
            </text>
          </g>
        ))}
        <text
          class="axis"
          x={(PAD.left + WIDTH - PAD.right) / 2}
          y={HEIGHT - 6}
          text-anchor="middle"
        >
          k, tries at the same task
        </text>
        {groups.map((group, index) => {
          const isDim = marked !== null && marked !== index;
          return (
            <g
              key={keyName(group.key)}
              class={`series ${SERIES_COLOURS[index]} ${isDim ? "dim" : ""}`}
              onPointerEnter={() => setMarked(index)}
              onPointerLeave={() => setMarked(null)}
            >
              <path d={path(group.pass_at_k) ?? ""} />
              {group.pass_at_k.map((point) => (
                <circle key={point.k} cx={x(point.k)} cy={y(point.value)} r="3.5">
                  <title>
                    {`${visible(keyName(group.key))}: pass@${point.k} ${percent(point.value, 1)} over ${point.tasks} tasks`}
                  </title>
                </circle>
              ))}
            </g>
          );
        })}
      </svg>
      <PassTable groups={groups} title={title} tries={tries} mark={setMarked} />
    </div>
  );
}

/** The legend and the numbers in one. */
function PassTable(props: {
  groups: GroupFigures[];
  title: string;
  tries: number[];
  mark: (index: number | null) => void;
}) {
  const { groups, tries, mark } = props;
  return (
    <div class="scroll-x" tabIndex={0} role="region" aria-label="pass@k as a table">
      <table class="numbers">
        <thead>
          <tr>
            <th scope="col">{props.title}</th>
            {tries.map((k) => (
              <th key={k} scope="col" class="number">
                pass@{k}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {groups.map((group, index) => (
            <tr
              key={keyName(group.key)}
              onPointerEnter={() => mark(index)}
              onPointerLeave={() => mark(null)}
            >
              <th scope="row">
                <SeriesMark index={index} /> <AgentText text={keyName(group.key)} />
              </th>
              {tries.map((k) => {
                const point = group.pass_at_k.find((it) => it.k === k);
                return (
                  <td key={k} class="number" title={point && `over ${point.tasks} tasks`}>
                    {point ? percent(point.value, 1) : "–"}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
