// A rollout's page: what it is, where it stands, and tabs for the rest.
import type { ComponentType } from "preact";
import { lazy, Suspense } from "preact/compat";
import { useMemo } from "preact/hooks";
import type { PageProps } from "../../app";
import { link } from "../../router";
import { Empty, Problem, Spinner, Tabs } from "../../ui/parts";
import { useTitle } from "../../ui/title";
import { CommandsTab } from "./commands";
import { FilesTab } from "./files";
import { Opened } from "./folded";
import { Header, verdictOf } from "./header";
import { LogTab } from "./log";
import { NetworkTab } from "./network";
import { OverviewTab } from "./overview";
import { ResourcesTab } from "./resources";
import { TranscriptTab } from "./transcript/tab";
import { type Rollout, useRollout } from "./use-rollout";
import "../../styles/rollout.css";
import "../../styles/transcript.css";

export interface TabProps {
  rollout: Rollout;
  query: URLSearchParams;
}

const TABS: [string, string, ComponentType<TabProps>][] = [
  ["overview", "Overview", OverviewTab],
  ["transcript", "Transcript", TranscriptTab],
  ["turns", "Turns", lazy(() => import("./understand/turns"))],
  ["tokens", "Tokens", lazy(() => import("./understand/tokens"))],
  ["graph", "Graph", lazy(() => import("./understand/graph"))],
  ["commands", "Commands", CommandsTab],
  ["files", "Files", FilesTab],
  ["network", "Network", NetworkTab],
  ["resources", "Resources", ResourcesTab],
  ["log", "Log", LogTab],
  ["export", "Export", lazy(() => import("./understand/export"))],
];

/** How much each tab has, where that is known without loading it. */
function countsOf({ result, progress }: Rollout): Record<string, number> {
  if (!result) return progress ? { turns: progress.calls } : {};
  const attempts = Object.values(result.network ?? {}).map((totals) => totals.attempts);
  return {
    turns: result.usage.calls,
    commands: result.setup_results.length + result.verify_results.length,
    network: attempts.reduce((sum, it) => sum + it, 0),
  };
}

export default function RolloutPage({ path: [id = "", tab = "overview"], query }: PageProps) {
  return <OneRollout key={id} id={id} tab={tab} query={query} />;
}

function OneRollout({ id, tab, query }: { id: string; tab: string; query: URLSearchParams }) {
  const rollout = useRollout(id);
  const { result, progress, error, isRemoved } = rollout;
  const task = result?.task_id ?? progress?.task_id;
  const state = result ? verdictOf(result) : (progress?.phase ?? progress?.status ?? "");
  useTitle(task ? `${state.toUpperCase()} ${task}` : "Rollout");
  const opened = useMemo(() => new Map<string, number>(), []);
  const Shown = TABS.find(([name]) => name === tab)?.[2];
  const counts = countsOf(rollout);
  const tabs = TABS.map(([name, title]) => ({
    id: name,
    name: title,
    href: link(["rollout", id, name]),
    count: counts[name],
  }));
  if (isRemoved)
    return (
      <Empty>
        This rollout was deleted. <a href={link(["rollouts"])}>All rollouts</a>
      </Empty>
    );
  if (!result && !progress)
    return error ? (
      <>
        <h1>Rollout</h1>
        <Problem error={error} retry={rollout.reload} />
        <Empty>
          <a href={link(["rollouts"])}>All rollouts</a>
        </Empty>
      </>
    ) : (
      <Empty>
        <Spinner label="Loading" />
      </Empty>
    );
  return (
    <div class="rollout-page" data-tab={tab}>
      <Header rollout={rollout} />
      {error && <Problem error={error} retry={rollout.reload} />}
      <Tabs tabs={tabs} current={tab} label="Parts of the rollout" />
      <Opened.Provider value={opened}>
        <Suspense
          fallback={
            <Empty>
              <Spinner label="Loading" />
            </Empty>
          }
        >
          {Shown ? <Shown rollout={rollout} query={query} /> : <Empty>There is no such tab.</Empty>}
        </Suspense>
      </Opened.Provider>
    </div>
  );
}
