// Success by task and by agent and model: colour and number in each cell.
import { useMemo, useState } from "preact/hooks";
import type { GroupFigures } from "../../api/types";
import { reward } from "../../format";
import { setParams } from "../../router";
import { AgentText, visible } from "../../ui/text";
import {
  heatTable,
  passShare,
  sortTasks,
  type HeatColumn,
  type HeatOrder,
  type HeatRow,
} from "./figures";
import type { Filters } from "../rollouts/filters";
import { listOf } from "./query";
import { Pager, percent } from "./series";

const PAGE = 40;
export const ORDERS: [HeatOrder, string][] = [
  ["spread", "most different first"],
  ["hardest", "hardest first"],
  ["easiest", "easiest first"],
  ["name", "by name"],
];

export function orderOf(query: URLSearchParams): HeatOrder {
  const wanted = query.get("order");
  return ORDERS.find(([name]) => name === wanted)?.[0] ?? "spread";
}

export function OrderChoice({ order }: { order: HeatOrder }) {
  return (
    <label class="row small">
      Tasks
      <select value={order} onChange={(event) => setParams({ order: event.currentTarget.value })}>
        {ORDERS.map(([name, title]) => (
          <option key={name} value={name}>
            {title}
          </option>
        ))}
      </select>
    </label>
  );
}

export function HeatTable(props: { groups: GroupFigures[]; filters: Filters; order: HeatOrder }) {
  const { groups, filters, order } = props;
  const [start, setStart] = useState(0);
  const table = useMemo(() => heatTable(groups), [groups]);
  const rows = useMemo(() => sortTasks(table.rows, order), [table, order]);
  const from = start < rows.length ? start : 0;
  return (
    <>
      <div class="scroll-x" tabIndex={0} role="region" aria-label="Success by task">
        <table class="heat">
          <thead>
            <tr>
              <th scope="col">Task</th>
              <th scope="col" class="number">
                All
              </th>
              {table.columns.map((column) => (
                <th key={column.name} scope="col" class="number">
                  <a href={listOf(filters, column.key)}>
                    <ColumnName column={column} />
                  </a>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.slice(from, from + PAGE).map((row) => (
              <Row key={row.task} row={row} columns={table.columns} filters={filters} />
            ))}
          </tbody>
        </table>
      </div>
      <Pager start={from} size={PAGE} total={rows.length} label="Tasks" onStart={setStart} />
    </>
  );
}

/** The agent above, the model below. */
function ColumnName({ column }: { column: HeatColumn }) {
  const { agent, model } = column.key;
  const lines = [agent, model].filter((it) => it !== undefined);
  return (
    <>
      {lines.map((name, index) => (
        <span
          key={index}
          class={`column-line cut ${index > 0 ? "muted" : ""}`}
          title={visible(name)}
        >
          <AgentText text={name || "–"} />
        </span>
      ))}
    </>
  );
}

function Row(props: { row: HeatRow; columns: HeatColumn[]; filters: Filters }) {
  const { row, columns, filters } = props;
  return (
    <tr>
      <th scope="row" class="cut" title={visible(row.task)}>
        <a href={listOf(filters, { task: row.task })}>
          <AgentText text={row.task || "tasks without a name"} />
        </a>
      </th>
      <td class="number muted">{row.valid > 0 ? percent(row.passed / row.valid) : "–"}</td>
      {row.cells.map((cell, index) => {
        const column = columns[index]!;
        if (!cell) return <td key={column.name} class="nothing" aria-label="no rollout" />;
        return (
          <td key={column.name} class="cell" style={heatStyle(passShare(cell))}>
            <a
              href={listOf(filters, { task: row.task, ...column.key })}
              title={`${cell.rollouts} rollouts, ${cell.valid} valid, ${cell.passed} passed, mean reward ${reward(cell.mean_reward)}`}
            >
              <strong>
                {cell.passed}/{cell.valid}
              </strong>
              <span>{reward(cell.mean_reward)}</span>
            </a>
          </td>
        );
      })}
    </tr>
  );
}

/** From the colour of failures over that of partial successes to that of passes. */
function heatStyle(share: number | null): Record<string, string> {
  if (share === null) return {};
  const [from, to, part] =
    share < 0.5 ? ["--heat-0", "--heat-1", share * 2] : ["--heat-1", "--heat-2", share * 2 - 1];
  const mixed = `color-mix(in oklab, var(${to}) ${Math.round(part * 100)}%, var(${from}))`;
  return { backgroundColor: mixed };
}
