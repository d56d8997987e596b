// How the turns of a rollout go on from each other, as a picture and as a list.
import { useMemo } from "preact/hooks";
import { get } from "../../../api/client";
import { useLoad } from "../../../api/load";
import type { GraphEdge, GraphNode, GraphPage, RolloutFigures } from "../../../api/types";
import { words } from "../../../format";
import { setParams } from "../../../router";
import { Empty, Problem, Spinner } from "../../../ui/parts";
import "../../../styles/understand.css";
import { GraphList } from "./graph-list";
import { GraphView } from "./graph-view";
import { noTurns } from "../no-turns";
import type { TabProps } from "../page";
import { numberParam, useIsNarrow } from "./place";
import { picture, SEGMENTS_AROUND, SEGMENTS_MAX } from "./layout";
import { useGrowth } from "./live";
import { TurnNumber } from "./parts";
import { around, segments } from "./segments";

const PAGE = 5000;

async function loadGraph(id: string, abort: AbortSignal) {
  const nodes: GraphNode[] = [];
  const edges: GraphEdge[] = [];
  for (;;) {
    const query = { start: nodes.length, limit: PAGE };
    const page = await get<GraphPage>(`v1/rollouts/${id}/graph`, query, abort);
    nodes.push(...page.nodes);
    edges.push(...page.edges);
    if (nodes.length >= page.total || page.nodes.length === 0) return { nodes, edges };
  }
}

export default function Graph({ rollout, query }: TabProps) {
  const { id } = rollout;
  const loaded = useLoad((abort) => loadGraph(id, abort), [id]);
  const figures = useLoad(
    (abort) => get<RolloutFigures>(`v1/rollouts/${id}/figures`, {}, abort),
    [id],
  );
  useGrowth(id, () => {
    loaded.reload();
    figures.reload();
  });
  const turn = numberParam(query, "turn");
  const direction = useIsNarrow() ? "TB" : "LR";
  const graph = useMemo(
    () => (loaded.data ? segments(loaded.data.nodes, loaded.data.edges) : null),
    [loaded.data],
  );
  const isPart = graph !== null && graph.segments.length > SEGMENTS_MAX;
  const drawn = useMemo(() => {
    if (!graph) return null;
    const part = isPart ? around(graph, turn, SEGMENTS_AROUND) : graph;
    const notable = new Set(part.edges.flatMap((edge) => [edge.fromTurn, edge.toTurn]));
    if (turn !== null) notable.add(turn);
    return picture(part, direction, notable);
  }, [graph, direction, turn]);
  if (!graph && loaded.error) return <Problem error={loaded.error} retry={loaded.reload} />;
  if (!graph || !drawn || !loaded.data)
    return (
      <Empty>
        <Spinner label="Loading the graph" />
      </Empty>
    );
  if (loaded.data.nodes.length === 0)
    return <Empty>{noTurns(rollout, "The graph grows with each turn.")}</Empty>;
  return (
    <div class="understand stack">
      <Roles figures={figures.data} />
      {isPart && (
        <div class="notice row spread">
          <span>
            The turns fork into {graph.segments.length.toLocaleString("en")} parts, too many to
            draw. The picture has the {drawn.boxes.length} nearest to turn {turn ?? 0}; the list has
            all.
          </span>
          <TurnNumber
            label="Show around turn"
            turn={turn ?? 0}
            total={loaded.data.nodes.length}
            choose={(next) => setParams({ turn: next })}
          />
        </div>
      )}
      <GraphView id={id} picture={drawn} turn={turn} direction={direction} />
      <details class="panel graph-list" open={isPart}>
        <summary>
          {isPart ? "All of it" : "The same"} as a list:{" "}
          {graph.segments.length.toLocaleString("en")}{" "}
          {graph.segments.length === 1 ? "part" : "parts"}
        </summary>
        <GraphList id={id} graph={graph} />
      </details>
    </div>
  );
}

/** What the server counted. */
function Roles({ figures }: { figures: RolloutFigures | null }) {
  if (!figures) return <p class="small muted graph-roles">&nbsp;</p>;
  const roles = Object.entries(figures.roles).map(
    ([role, count]) => `${count.toLocaleString("en")} ${words(role)}`,
  );
  const parts = [
    `${figures.turns.toLocaleString("en")} ${figures.turns === 1 ? "turn" : "turns"}: ${roles.join(", ")}`,
    `${figures.productive_turns.toLocaleString("en")} productive`,
    figures.forks > 0 && `${figures.forks} ${figures.forks === 1 ? "fork" : "forks"}`,
    figures.subagents > 0 &&
      `${figures.subagents} ${figures.subagents === 1 ? "subagent" : "subagents"}`,
  ];
  return <p class="small muted graph-roles">{parts.filter(Boolean).join(" · ")}</p>;
}
