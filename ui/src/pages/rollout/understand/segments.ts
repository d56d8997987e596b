// The graph of calls made small: calls that simply go on from each other become one segment.
import type { GraphEdge, GraphNode } from "../../../api/types";
import { roleName } from "./words";

export interface Segment {
  /** The first call's number, which names it. */
  id: number;
  role: string;
  reason: string | null;
  nodes: GraphNode[];
  /** How each call goes on from the one before it in the segment; null for the first, and for calls side by side. */
  links: (GraphEdge["link"] | null)[];
  /** Calls that have nothing to do with each other but their kind. */
  isBundle: boolean;
}

export interface SegmentEdge {
  from: number;
  to: number;
  link: GraphEdge["link"];
  /** The calls that are linked. */
  fromTurn: number;
  toTurn: number;
  /** How many links of this kind it stands for. */
  count: number;
}

export interface SegmentGraph {
  segments: Segment[];
  edges: SegmentEdge[];
}

/** Links along which a segment goes on. The others start a conversation. */
const ALONG = new Set<GraphEdge["link"]>(["continues", "retokenised", "changed", "left_out"]);

export function segments(nodes: GraphNode[], edges: GraphEdge[]): SegmentGraph {
  const byTurn = new Map(nodes.map((node) => [node.turn, node]));
  const into = new Map<number, GraphEdge[]>();
  const outOf = new Map<number, GraphEdge[]>();
  for (const edge of edges) {
    if (!byTurn.has(edge.from) || !byTurn.has(edge.to)) continue;
    push(into, edge.to, edge);
    push(outOf, edge.from, edge);
  }
  const isLeafAside = (turn: number) => {
    const { role } = byTurn.get(turn)!;
    if (outOf.has(turn)) return false;
    // An agent that renders its prompt anew each time has thousands of calls that go on from none.
    return role === "agent" ? !into.has(turn) && nodes.length > 1 : role !== "pending";
  };
  // Calls beside the work do not cut the conversation that they were made in.
  const goesOn = (turn: number) =>
    (outOf.get(turn) ?? []).filter((edge) => ALONG.has(edge.link) && !isLeafAside(edge.to));

  const found: Segment[] = [];
  const owner = new Map<number, Segment>();
  const bundles = new Map<string, Segment>();
  for (const node of [...nodes].sort((a, b) => a.turn - b.turn)) {
    const before = into.get(node.turn) ?? [];
    const edge = before.find((one) => ALONG.has(one.link));
    const old = edge && owner.get(edge.from);
    if (isLeafAside(node.turn)) {
      // One bundle for all of a kind beside the same segment.
      const key = `${old?.id ?? (before[0] ? owner.get(before[0].from)?.id : "")} ${node.role} ${node.reason}`;
      const bundle = bundles.get(key) ?? start(node, true);
      if (bundle.nodes.length === 0) found.push(bundle);
      bundles.set(key, bundle);
      add(bundle, node, null);
    } else if (edge && old && canFollow(old, node, edge.from, goesOn(edge.from))) {
      add(old, node, edge.link);
    } else {
      const segment = start(node, false);
      found.push(segment);
      add(segment, node, null);
    }
  }
  return { segments: found, edges: between(edges, owner) };

  function add(segment: Segment, node: GraphNode, link: GraphEdge["link"] | null) {
    segment.nodes.push(node);
    segment.links.push(link);
    owner.set(node.turn, segment);
  }
}

function start(node: GraphNode, isBundle: boolean): Segment {
  const reason = node.reason ?? null;
  return { id: node.turn, role: roleName(node), reason, nodes: [], links: [], isBundle };
}

/** The next call of a segment: the only one that goes on from its last call, and of the same role. */
function canFollow(segment: Segment, node: GraphNode, from: number, next: GraphEdge[]): boolean {
  return (
    !segment.isBundle &&
    segment.nodes.at(-1)!.turn === from &&
    next.length === 1 &&
    // A call without an answer is the conversation's until its role is known.
    (node.role === "pending" ||
      (segment.role === roleName(node) && segment.reason === (node.reason ?? null)))
  );
}

function between(edges: GraphEdge[], owner: Map<number, Segment>): SegmentEdge[] {
  const found = new Map<string, SegmentEdge>();
  for (const edge of edges) {
    const [from, to] = [owner.get(edge.from), owner.get(edge.to)];
    if (!from || !to || from === to) continue;
    const key = `${from.id} ${to.id} ${edge.link}`;
    const known = found.get(key);
    if (known) known.count += 1;
    else
      found.set(key, {
        from: from.id,
        to: to.id,
        link: edge.link,
        fromTurn: edge.from,
        toTurn: edge.to,
        count: 1,
      });
  }
  return [...found.values()];
}

export function push<K, V>(map: Map<K, V[]>, key: K, value: V) {
  const list = map.get(key);
  if (list) list.push(value);
  else map.set(key, [value]);
}

/** What of a segment is drawn: places in it, and how many calls are left out between them. */
export type Chip = { at: number } | { skipped: number; from: number };

const ENDS = 5;
const CHIPS_MAX = 24;

/** All calls of a short segment; of a long one both ends, what `isNotable` names, and gaps. */
export function chips(segment: Segment, isNotable: (at: number) => boolean): Chip[] {
  const total = segment.nodes.length;
  if (total <= CHIPS_MAX) return segment.nodes.map((_, at) => ({ at }));
  let room = CHIPS_MAX - 2 * ENDS;
  const shown: Chip[] = [];
  let next = 0;
  for (let at = 0; at < total; at += 1) {
    const isEnd = at < ENDS || at >= total - ENDS;
    if (!isEnd && !(room > 0 && isNotable(at))) continue;
    if (!isEnd) room -= 2;
    if (at > next) shown.push({ skipped: at - next, from: next });
    shown.push({ at });
    next = at + 1;
  }
  return shown;
}

/** At most so many segments: those that the fewest links lead to from the one with this turn, or from the first. */
export function around(graph: SegmentGraph, turn: number | null, most: number): SegmentGraph {
  const beside = new Map<number, number[]>();
  for (const { from, to } of graph.edges) {
    push(beside, from, to);
    push(beside, to, from);
  }
  const middle =
    graph.segments.find(({ nodes }) => nodes.some((node) => node.turn === turn)) ??
    graph.segments[0];
  const near = new Set(middle ? [middle.id] : []);
  // A set is walked in the order in which things are put into it, also those that are put while it is walked.
  for (const id of near)
    for (const next of beside.get(id) ?? []) if (near.size < most) near.add(next);
  return {
    segments: graph.segments.filter(({ id }) => near.has(id)),
    edges: graph.edges.filter(({ from, to }) => near.has(from) && near.has(to)),
  };
}
