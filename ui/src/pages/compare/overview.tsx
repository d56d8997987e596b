// Figures over many rollouts: what passes, how surely, and what it costs.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { useLoad, type Loaded } from "../../api/load";
import { onRows, streamStarts } from "../../api/stream";
import type { GroupFigures, RolloutRow } from "../../api/types";
import { count, dollars, reward, seconds } from "../../format";
import { setParams } from "../../router";
import { Empty, Facts, Panel, Problem, Spinner } from "../../ui/parts";
import { useTitle } from "../../ui/title";
import { passShare, SERIES, seriesTitle, sortGroups } from "./figures";
import { FilterBar } from "./filters";
import { GroupTable } from "./groups";
import { HeatTable, OrderChoice, orderOf } from "./heat";
import { PassChart } from "./passchart";
import { filtersOf, matches, type Filters } from "../rollouts/filters";
import { loadFigures, type Figures } from "./query";
import { RewardCharts } from "./rewards";
import { percent, SERIES_COLOURS } from "./series";
import { UsageTable } from "./usage";

/** Figures are read again at most this often while rollouts end. */
const REFRESH_MS = 4000;

export function Overview({ query }: { query: URLSearchParams }) {
  useTitle("Compare");
  const filters = filtersOf(query);
  const wanted = query.get("by");
  const by = SERIES.find(([name]) => name === wanted)?.[0] ?? "agent,model";
  const title = seriesTitle(by);
  // Tasks are the rows of the table of success; its columns are the series, where those are no tasks.
  const columns = by === "task" || by === "group" ? "agent,model" : by;
  const series = useLoad((abort) => loadFigures(by, filters, abort), [by, filters]);
  const tasks = useLoad(
    (abort) => loadFigures(`task,${columns}`, filters, abort),
    [columns, filters],
  );
  const groups = useLoad((abort) => loadFigures("group,task", filters, abort), [filters]);
  useFresh([series, tasks, groups], filters);
  const all = series.data?.all;
  const sorted = series.data ? sortGroups(series.data.groups, "pass", true) : [];
  return (
    <>
      <div class="row spread">
        <h1>Compare</h1>
        <SeriesChoice by={by} />
      </div>
      <FilterBar filters={filters} />
      <Problem error={series.error} retry={series.reload} />
      {(filters.verdict || filters.ended) && (
        <p class="notice part" role="status">
          Only rollouts with a certain outcome are counted here: shares and pass@k say nothing then.
          Remove that filter to compare.
        </p>
      )}
      {all && all.rollouts === 0 ? (
        <Nothing isFiltered={Object.keys(filters).length > 0} />
      ) : (
        <>
          <Summary all={all} />
          <div class="compare-charts">
            <Panel title="pass@k">
              <Part loaded={series} height={420}>
                {() => <PassPart groups={sorted} title={title} />}
              </Part>
            </Panel>
            <Panel title="Rewards">
              <Part loaded={series} height={420}>
                {() => <RewardCharts groups={sorted} title={title} filters={filters} />}
              </Part>
            </Panel>
          </div>
          <Panel
            title="Success by task"
            actions={<OrderChoice order={orderOf(query)} />}
            class="flush-table"
            flush
          >
            <Part loaded={tasks} height={300}>
              {(data) => (
                <HeatTable groups={data.groups} filters={filters} order={orderOf(query)} />
              )}
            </Part>
          </Panel>
          <Panel title="Tokens, cost and time" class="flush-table" flush>
            <Part loaded={series} height={200}>
              {(data) => (
                <UsageTable groups={data.groups} title={title} filters={filters} query={query} />
              )}
            </Part>
          </Panel>
          <GroupPanel loaded={groups} filters={filters} query={query} />
        </>
      )}
    </>
  );
}

/** Reads figures again when rollouts that they count end, not more often than people can read. */
function useFresh(loads: Loaded<unknown>[], filters: Filters) {
  const starts = streamStarts.value;
  const latest = useRef({ loads, filters });
  latest.current = { loads, filters };
  const reload = () => latest.current.loads.forEach((load) => load.reload());
  useEffect(() => {
    let timer = 0;
    const run = () => {
      timer = 0;
      // Answers that are on their way are waited for.
      if (latest.current.loads.some((load) => load.loading)) plan();
      else reload();
    };
    const plan = () => {
      timer ||= window.setTimeout(run, REFRESH_MS);
    };
    const now = () => Date.now() / 1000;
    const read = (row: RolloutRow) => {
      if (row.status === "ended" && matches(row, latest.current.filters, now())) plan();
    };
    const stop = onRows(read, plan);
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, []);
  useEffect(() => {
    // The first start is the page's own.
    if (starts > 1) reload();
  }, [starts]);
}

function SeriesChoice({ by }: { by: string }) {
  return (
    <label class="row">
      <span class="muted">Compare by</span>
      <select value={by} onChange={(event) => setParams({ by: event.currentTarget.value })}>
        {SERIES.map(([value, name]) => (
          <option key={value} value={value}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}

function Nothing({ isFiltered }: { isFiltered: boolean }) {
  return (
    <Panel>
      <Empty>
        {isFiltered ? (
          "No rollout matches. Clear a filter above."
        ) : (
          <>
            Nothing to compare yet: <a href="#/start">start some rollouts</a>, several of the same
            task, with more than one agent or model.
          </>
        )}
      </Empty>
    </Panel>
  );
}

function Summary({ all }: { all?: GroupFigures }) {
  const share = all ? passShare(all) : null;
  const facts: [string, string][] = [
    ["Rollouts", count(all?.rollouts)],
    ["Valid", count(all?.valid)],
    ["Passed", share === null ? "–" : percent(share, 1)],
    ["Mean reward", reward(all?.mean_reward)],
    ["Tasks", count(all?.tasks)],
    ["Model calls", count(all?.calls)],
    ["Prompt tokens", count(all?.prompt_tokens)],
    ["Sampled tokens", count(all?.completion_tokens)],
    ["Trainable", count(all?.trainable_tokens)],
    ["Cost", dollars(all?.cost_usd)],
    ["Mean time", seconds(all?.mean_wall_s)],
  ];
  return (
    <Panel class="compare-summary">
      <Facts facts={facts} />
      <p class="small muted">
        A rollout is valid when its reward says something about agent and model: it was graded, and
        neither sandbox, endpoint nor verifier broke. Success is counted among the valid ones.
      </p>
    </Panel>
  );
}

function PassPart({ groups, title }: { groups: GroupFigures[]; title: string }) {
  const most = SERIES_COLOURS.length;
  const measured = groups.filter((group) => group.pass_at_k.length > 0);
  if (measured.length === 0) return <Empty>No valid reward yet.</Empty>;
  return (
    <>
      <p class="small muted">
        pass@k is the chance that at least one of k tries at a task passes: estimated for each task
        without bias from its n valid tries, 1 − C(n−c, k) / C(n, k), and averaged over the tasks
        that have at least k.
      </p>
      <PassChart groups={measured.slice(0, most)} title={title} />
      {measured.length > most && (
        <p class="small muted">
          The {most} most successful of {measured.length}; narrow the filters for the others.
        </p>
      )}
    </>
  );
}

function GroupPanel(props: { loaded: Loaded<Figures>; filters: Filters; query: URLSearchParams }) {
  return (
    <Panel title="Groups" class="flush-table" flush>
      <p class="small muted explain">
        Tries that were asked for together. Training that compares tries with each other (GRPO)
        learns from how far a try's reward lies from its group's, its advantage. Where all rewards
        are equal there is none, and the tokens teach nothing.
      </p>
      <Part loaded={props.loaded} height={200}>
        {(data) => <GroupTable groups={data.groups} filters={props.filters} query={props.query} />}
      </Part>
    </Panel>
  );
}

/** What a load came to. Keeps its height while it loads, so that nothing below jumps. */
function Part(props: {
  loaded: Loaded<Figures>;
  height: number;
  children: (data: Figures) => ComponentChildren;
}) {
  const { data, error, reload } = props.loaded;
  if (!data) {
    return (
      <div class="waiting" style={{ minHeight: `${props.height}px` }}>
        {error ? <Problem error={error} retry={reload} /> : <Spinner label="Loading figures" />}
      </div>
    );
  }
  return (
    <>
      {props.children(data)}
      {data.total > data.groups.length && (
        <p class="small muted explain" role="status">
          These are the newest {count(data.groups.length)} of {count(data.total)} combinations;
          narrow the filters to see the others.
        </p>
      )}
    </>
  );
}
