// The table of rollouts. Only rows that are seen are in the page, however many there are.
import { signal } from "@preact/signals";
import { useCallback, useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { RolloutRow } from "../../api/types";
import { setParams } from "../../router";
import { VirtualList } from "../../ui/virtual";
import { nextOrder, type Order, type Sort } from "./filters";
import type { RolloutList } from "./list";
import { BlankRow, Row } from "./row";

const narrow = matchMedia("(max-width: 760px)");
const isNarrow = signal(narrow.matches);
narrow.addEventListener("change", (change) => (isNarrow.value = change.matches));

export const rowHeight = () => (isNarrow.value ? 84 : 37);

/** Their class, their name, what sorts by them, and what is not clear from the name. */
const COLUMNS: [string, string, Sort | null, string?][] = [
  ["c-state", "State", null],
  ["c-task", "Task", "task"],
  ["c-agent", "Agent", "agent"],
  ["c-reward number", "Reward", "reward"],
  ["c-calls number", "Turns", "calls", "Calls of the model"],
  [
    "c-tokens number",
    "Prompt → sampled",
    "tokens",
    "Tokens that the model was given, and that it wrote",
  ],
  ["c-trained number", "Trainable", null, "Sampled tokens that can be trained on"],
  ["c-cost number", "Cost", "cost"],
  ["c-time number", "Time", "wall_s"],
  ["c-started number", "Started", "started_at"],
  ["c-id", "Id", null],
];

interface Props {
  list: RolloutList;
  order: Order;
  selected: ReadonlySet<string>;
  toggle: (row: RolloutRow, index: number, isRange: boolean) => void;
  /** For moving to a row. */
  boxRef: { current: HTMLDivElement | null };
}

export function Table({ list, order, selected, toggle, boxRef }: Props) {
  const { store } = list;
  const height = rowHeight();
  const latest = useRef(toggle);
  latest.current = toggle;
  const onToggle = useCallback(
    (row: RolloutRow, index: number, isRange: boolean) => latest.current(row, index, isRange),
    [],
  );
  useEffect(() => {
    const box = boxRef.current;
    if (!box) return;
    box.scrollTop = list.scrollTop;
    const remember = () => (list.scrollTop = box.scrollTop);
    box.addEventListener("scroll", remember, { passive: true });
    return () => box.removeEventListener("scroll", remember);
  }, [list]);
  // Rows that come above what somebody reads do not move it.
  useLayoutEffect(() => {
    if (list.shift && boxRef.current) boxRef.current.scrollTop += list.shift * height;
    list.shift = 0;
  });
  return (
    <div
      class="rollouts-table"
      role="table"
      aria-label="Rollouts"
      aria-rowcount={store.total ?? -1}
    >
      <div role="rowgroup">
        <div class="rollout head" role="row" aria-rowindex={1}>
          <div class="c-check" role="columnheader">
            <span class="visually-hidden">Selected</span>
          </div>
          {COLUMNS.map(([name, title, sort, about]) => (
            <ColumnHeader
              key={title}
              name={name}
              title={title}
              about={about}
              sort={sort}
              order={order}
            />
          ))}
        </div>
      </div>
      <VirtualList
        boxRef={boxRef}
        role="rowgroup"
        class="rollouts-rows"
        label="Rollouts"
        count={store.total ?? 0}
        estimate={rowHeight}
        onRange={(first, last) => {
          list.seen = [first, last];
          store.need(first, last);
        }}
        render={(index) => {
          const row = store.row(index);
          if (!row) return <BlankRow />;
          const id = row.rollout_id;
          return (
            <Row
              key={id}
              row={row}
              index={index}
              isActive={id === list.activeId}
              isSelected={selected.has(id)}
              toggle={onToggle}
            />
          );
        }}
      />
    </div>
  );
}

interface HeaderProps {
  name: string;
  title: string;
  about: string | undefined;
  sort: Sort | null;
  order: Order;
}

function ColumnHeader({ name, title, about, sort, order }: HeaderProps) {
  if (!sort)
    return (
      <div class={name} role="columnheader" title={about}>
        {title}
      </div>
    );
  const isSorted = (order.sort ?? "started_at") === sort;
  const direction = isSorted ? (order.isAscending ? "ascending" : "descending") : undefined;
  return (
    <div class={name} role="columnheader" aria-sort={direction} title={about}>
      <button class="sort" onClick={() => setParams(nextOrder(order, sort))}>
        {title}
        <span class="arrow" aria-hidden="true">
          {isSorted ? (order.isAscending ? "↑" : "↓") : ""}
        </span>
      </button>
    </div>
  );
}
