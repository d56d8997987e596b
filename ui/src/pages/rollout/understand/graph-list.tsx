// The graph in words.
import { useMemo } from "preact/hooks";
import { link } from "../../../router";
import { VirtualList } from "../../../ui/virtual";
import { push, type Segment, type SegmentEdge, type SegmentGraph } from "./segments";
import { LINKS, reasonWords } from "./words";

export function GraphList({ id, graph }: { id: string; graph: SegmentGraph }) {
  const from = useMemo(() => {
    const found = new Map<number, SegmentEdge[]>();
    for (const edge of graph.edges) push(found, edge.to, edge);
    return found;
  }, [graph]);
  const turnLink = (turn: number) => (
    <a href={link(["rollout", id, "turns"], { turn })}>turn {turn}</a>
  );
  const item = (segment: Segment) => (
    <div role="listitem" class="graph-item">
      <strong>{segment.role}</strong> {turnLink(segment.nodes[0]!.turn)}
      {segment.nodes.length > 1 && (
        <>
          {segment.isBundle ? " and others up to " : " to "}
          {turnLink(segment.nodes.at(-1)!.turn)} ({segment.nodes.length.toLocaleString("en")} turns)
        </>
      )}
      <span class="muted">
        {" "}
        {reasonWords({ ...segment.nodes[0]!, reason: segment.reason })}
        {segment.nodes.some((node) => node.is_trained) ? "; trained on" : ""}
      </span>
      {(from.get(segment.id) ?? []).map((edge) => (
        <div key={`${edge.from} ${edge.link}`} class="small">
          {turnLink(edge.toTurn)} {LINKS[edge.link][0]} {turnLink(edge.fromTurn)}
          {edge.count > 1 ? `, and ${edge.count - 1} more` : ""}
          <span class="muted"> {LINKS[edge.link][1]}</span>
        </div>
      ))}
    </div>
  );
  return (
    <VirtualList
      class="graph-items"
      role="list"
      label="Parts of the graph"
      count={graph.segments.length}
      estimate={() => 52}
      isMeasured
      render={(index) => {
        const segment = graph.segments[index];
        return segment ? item(segment) : null;
      }}
    />
  );
}
