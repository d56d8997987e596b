// The list of rollouts: what people open first and keep open.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { PageProps } from "../../app";
import type { GroupFigures, RolloutRow } from "../../api/types";
import { count, dollars } from "../../format";
import { go, link, setParams } from "../../router";
import { isControl, useKeys } from "../../ui/keys";
import { Menu } from "../../ui/menu";
import { Problem, Spinner } from "../../ui/parts";
import { useTitle } from "../../ui/title";
import "../../styles/rollouts.css";
import { useCounts } from "./counts";
import { FILTER_NAMES, filtersOf, orderOf, type Filters } from "./filters";
import { useList, type RolloutList } from "./list";
import { rowElementId } from "./row";
import { Ask, SelectionBar } from "./selection";
import { rowHeight, Table } from "./table";
import { Chips, FilterMenus, Search, States } from "./toolbar";
import { Welcome } from "./welcome";

/** The most that one click selects. */
const SELECT_MAX = 500;

export function RolloutsPage({ query }: PageProps) {
  const filters = filtersOf(query);
  const order = orderOf(query);
  const [counts, recount] = useCounts(filters);
  const { list, isOld } = useList(filters, order, recount);
  const { store } = list;
  const box = useRef<HTMLDivElement>(null);
  const selection = useSelection(list);
  const [cancelled, setCancelled] = useState<RolloutRow | null>(null);
  const move = useMoves(list, box);
  useKeys((key, event) => {
    const active = list.activeId === null ? undefined : store.byName(list.activeId);
    const steps: Record<string, number> = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 };
    const page = Math.max(1, Math.floor((box.current?.clientHeight ?? 0) / rowHeight()) - 1);
    if (key in steps) return move(steps[key]!);
    if (key === "PageDown") return move(page);
    if (key === "PageUp") return move(-page);
    if (key === "Home") return move(-Infinity);
    if (key === "End") return move(Infinity);
    if (key === "Escape" && selection.rows.length > 0) selection.clear();
    else if (!active) return false;
    else if (key === "x" || key === "X")
      selection.toggle(active, store.indexOf(active.rollout_id), event.shiftKey);
    else if (key === "c" && active.status !== "ended") setCancelled(active);
    else if (key === "Enter" && !isControl(event)) go(link(["rollout", active.rollout_id]));
    else return false;
    return true;
  });
  const running = counts.facets ? (counts.facets.status.running ?? 0) : null;
  useTitle(running ? `${count(running)} running · Rollouts` : "Rollouts");
  const isFiltered = FILTER_NAMES.some((name) => filters[name]);
  const isEmpty = store.total === 0 && !isOld;
  return (
    <div class="rollouts fills">
      <Head filters={filters} all={counts.all} running={running} />
      {isEmpty && !isFiltered ? (
        <Welcome />
      ) : (
        <>
          <div class="toolbar">
            <Search text={filters.q ?? ""} />
            <div class="menus wide">
              <FilterMenus filters={filters} known={() => store.known()} />
            </div>
            <Menu label="Filters" name="Filters" class="narrow">
              {() => (
                <div class="menus">
                  <FilterMenus filters={filters} known={() => store.known()} />
                </div>
              )}
            </Menu>
          </div>
          <States filters={filters} facets={counts.facets} />
          <Chips filters={filters} />
          <Problem error={list.error} retry={() => list.refresh()} />
          <div
            class={isOld ? "panel rollouts-panel old" : "panel rollouts-panel"}
            aria-busy={isOld}
          >
            {store.total === null && !list.error && (
              <p class="rollouts-wait muted">
                <Spinner label="Loading" />
              </p>
            )}
            {isEmpty ? (
              <NothingFound />
            ) : (
              <Table
                list={list}
                order={order}
                selected={selection.ids}
                toggle={selection.toggle}
                boxRef={box}
              />
            )}
            {selection.rows.length > 0 && (
              <SelectionBar rows={selection.rows} clear={selection.clear} more={selection.more} />
            )}
          </div>
        </>
      )}
      {cancelled && (
        <Ask asked={{ kind: "cancel", rows: [cancelled] }} close={() => setCancelled(null)} />
      )}
    </div>
  );
}

interface HeadProps {
  filters: Filters;
  all: GroupFigures | null;
  running: number | null;
}

function Head({ filters, all, running }: HeadProps) {
  const share = all && all.valid > 0 ? `${Math.round((100 * all.passed) / all.valid)}%` : "–";
  const tokens = all ? all.prompt_tokens + all.completion_tokens : null;
  const facts: [string, string, string][] = [
    ["rollouts", all?.rollouts.toLocaleString("en") ?? "–", "All that match the filters"],
    ["running", count(running), "Now, whatever state is chosen below"],
    ["passed", share, "Of those whose reward is valid: 0.999 or more"],
    ["tokens", count(tokens), "Of prompts and sampled"],
    ["cost", dollars(all?.cost_usd), "Where prices are known"],
  ];
  return (
    <div class="rollouts-head">
      <h1>Rollouts</h1>
      <dl class="figures">
        {facts.map(([name, value, about]) => (
          <div key={name} title={about}>
            <dd>{value}</dd>
            <dt>{name}</dt>
          </div>
        ))}
      </dl>
      <div class="row">
        <a class="button" href={link(["compare"], filters)} title="Figures over all that match">
          Figures
        </a>
        <a class="button primary" href={link(["start"])}>
          Start a rollout
        </a>
      </div>
    </div>
  );
}

function NothingFound() {
  return (
    <div class="rollouts-none">
      <p>No rollout matches.</p>
      <button onClick={() => setParams(Object.fromEntries(FILTER_NAMES.map((name) => [name, ""])))}>
        Show all
      </button>
    </div>
  );
}

/** Moves the focus from row to row; returns whether there is any, so that the key is used. */
function useMoves(list: RolloutList, box: { current: HTMLDivElement | null }) {
  const wantsFocus = useRef(false);
  useLayoutEffect(() => {
    if (!wantsFocus.current || list.activeId === null) return;
    const element = document.getElementById(rowElementId(list.activeId));
    if (!element) return;
    wantsFocus.current = false;
    element.focus({ preventScroll: true });
  });
  // A click or a tab leads the keys as well.
  useEffect(() => {
    const follow = (event: FocusEvent) => {
      const id = (event.target as Element | null)?.id ?? "";
      if (!id.startsWith(rowElementId(""))) return;
      list.activeId = id.slice(rowElementId("").length);
      list.draw();
    };
    addEventListener("focusin", follow);
    return () => removeEventListener("focusin", follow);
  }, [list]);
  return (by: number): boolean => {
    const total = list.store.total ?? 0;
    if (total === 0 || !box.current) return false;
    const from = list.activeId === null ? -1 : list.store.indexOf(list.activeId);
    const first = from < 0 ? list.seen[0] - (by > 0 ? 1 : 0) : from;
    const target = Math.min(total - 1, Math.max(0, first + by));
    const height = rowHeight();
    const { scrollTop, clientHeight } = box.current;
    if (target * height < scrollTop) box.current.scrollTop = target * height;
    else if ((target + 1) * height > scrollTop + clientHeight)
      box.current.scrollTop = (target + 1) * height - clientHeight;
    const focus = ([row]: RolloutRow[]) => {
      if (!row) return;
      list.activeId = row.rollout_id;
      wantsFocus.current = true;
      list.draw();
    };
    list.store.between(target, target).then(focus, (error: unknown) => list.fail(error));
    return true;
  };
}

function useSelection(list: RolloutList) {
  const [ids, setIds] = useState<ReadonlySet<string>>(new Set());
  const last = useRef<number | null>(null);
  useEffect(() => setIds(new Set()), [list]);
  const rows = [...ids].map((id) => list.store.byName(id)).filter((row) => row !== undefined);
  const select = async (from: number, to: number) => {
    try {
      const found = await list.store.between(from, to);
      setIds((old) => new Set([...old, ...found.map((row) => row.rollout_id)]));
    } catch (error) {
      list.fail(error);
    }
  };
  const toggle = (row: RolloutRow, index: number, isRange: boolean) => {
    const start = last.current;
    last.current = index;
    if (isRange && start !== null) {
      void select(Math.min(start, index), Math.max(start, index));
      return;
    }
    setIds((old) => {
      const next = new Set(old);
      if (!next.delete(row.rollout_id)) next.add(row.rollout_id);
      return next;
    });
  };
  const total = list.store.total ?? 0;
  const title = total > SELECT_MAX ? `Select the first ${SELECT_MAX}` : `Select all ${total}`;
  const run = () => void select(0, Math.min(total, SELECT_MAX) - 1);
  const more = rows.length < Math.min(total, SELECT_MAX) ? { title, run } : null;
  return { ids, rows, toggle, clear: () => setIds(new Set()), more };
}
