// What rollouts used, by group: a table to sort, with a bar behind each number.
import { useMemo, useState } from "preact/hooks";
import type { GroupFigures } from "../../api/types";
import { count, dollars, reward, seconds } from "../../format";
import { setParams } from "../../router";
import { AgentText, visible } from "../../ui/text";
import { COLUMN_VALUES, keyName, sortGroups, type SortColumn } from "./figures";
import type { Filters } from "../rollouts/filters";
import { listOf } from "./query";
import { Pager, percent, VerdictBar } from "./series";

const PAGE = 25;

interface Column {
  id: Exclude<SortColumn, "name">;
  name: string;
  about: string;
  show: (value: number) => string;
  /** The column's total is shown with the mean of one rollout. */
  hasMean?: boolean;
}

const COLUMNS: Column[] = [
  { id: "rollouts", name: "Rollouts", about: "All, ended or not", show: count },
  { id: "pass", name: "Passed", about: "Share of the valid ones", show: (it) => percent(it) },
  { id: "reward", name: "Mean reward", about: "Of the valid ones", show: reward },
  { id: "calls", name: "Calls", about: "Model calls", show: count, hasMean: true },
  { id: "prompt", name: "Prompt tokens", about: "Over all calls", show: count, hasMean: true },
  { id: "completion", name: "Sampled tokens", about: "Over all calls", show: count, hasMean: true },
  {
    id: "trainable",
    name: "Trainable",
    about: "Tokens with a loss mask of 1",
    show: count,
    hasMean: true,
  },
  {
    id: "cost",
    name: "Cost",
    about: "US dollars, where the price is known",
    show: dollars,
    hasMean: true,
  },
  {
    id: "wall",
    name: "Mean time",
    about: "From start to end, of those that have ended",
    show: seconds,
  },
];

/** `cost` sorts upwards, `-cost` downwards. */
function sortOf(query: URLSearchParams): [SortColumn, boolean] {
  const wanted = query.get("sort") ?? "-pass";
  const isDescending = wanted.startsWith("-");
  const id = isDescending ? wanted.slice(1) : wanted;
  const isKnown = id === "name" || id in COLUMN_VALUES;
  return isKnown ? [id as SortColumn, isDescending] : ["pass", true];
}

export function UsageTable(props: {
  groups: GroupFigures[];
  title: string;
  filters: Filters;
  query: URLSearchParams;
}) {
  const { groups, title, filters, query } = props;
  const [start, setStart] = useState(0);
  const [column, isDescending] = sortOf(query);
  const sorted = useMemo(
    () => sortGroups(groups, column, isDescending),
    [groups, column, isDescending],
  );
  const most = useMemo(
    () =>
      COLUMNS.map(({ id }) =>
        groups.reduce((sum, group) => Math.max(sum, COLUMN_VALUES[id](group) ?? 0), 0),
      ),
    [groups],
  );
  const from = start < sorted.length ? start : 0;
  const head = { column, isDescending };
  return (
    <>
      <div class="scroll-x" tabIndex={0} role="region" aria-label="Tokens, cost and time">
        <table class="usage">
          <thead>
            <tr>
              <Head id="name" name={title} about="" {...head} />
              {COLUMNS.map((it) => (
                <Head key={it.id} {...it} {...head} />
              ))}
            </tr>
          </thead>
          <tbody>
            {sorted.slice(from, from + PAGE).map((group) => (
              <tr key={keyName(group.key)}>
                <th scope="row" title={visible(keyName(group.key))}>
                  <a class="cut" href={listOf(filters, group.key)}>
                    <AgentText text={keyName(group.key)} />
                  </a>
                  <VerdictBar {...group} />
                </th>
                {COLUMNS.map((it, index) => (
                  <Value key={it.id} column={it} group={group} most={most[index]!} />
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <Pager
        start={from}
        size={PAGE}
        total={sorted.length}
        label="Tokens, cost and time"
        onStart={setStart}
      />
    </>
  );
}

function Head(props: {
  id: SortColumn;
  name: string;
  about: string;
  column: SortColumn;
  isDescending: boolean;
}) {
  const isSorted = props.column === props.id;
  // Names go up first, numbers down.
  const next = isSorted ? !props.isDescending : props.id !== "name";
  const arrow = !isSorted ? "" : props.isDescending ? " ↓" : " ↑";
  return (
    <th
      scope="col"
      class={props.id === "name" ? "" : "number"}
      aria-sort={!isSorted ? undefined : props.isDescending ? "descending" : "ascending"}
    >
      <button
        class="plain sort"
        title={props.about}
        onClick={() => setParams({ sort: `${next ? "-" : ""}${props.id}` })}
      >
        {props.name}
        {arrow}
      </button>
    </th>
  );
}

function Value(props: { column: Column; group: GroupFigures; most: number }) {
  const { column, group, most } = props;
  const value = COLUMN_VALUES[column.id](group);
  if (value === null) return <td class="number muted">–</td>;
  const part = most > 0 ? Math.max(0, value / most) : 0;
  return (
    <td class="number bar-cell">
      {column.show(value)}
      {column.hasMean && group.rollouts > 0 && (
        <span class="muted small mean">{column.show(rounded(value / group.rollouts))} each</span>
      )}
      <span class="bar" aria-hidden="true" style={{ width: `${100 * part}%` }} />
    </td>
  );
}

/** Means of counts without digits that say nothing. */
const rounded = (value: number) => (value >= 10 ? Math.round(value) : Number(value.toPrecision(2)));
