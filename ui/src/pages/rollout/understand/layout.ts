// Where the segments of the graph are drawn.
import { graphlib, layout as arrange } from "@dagrejs/dagre";
import { type Chip, chips, type Segment, type SegmentEdge, type SegmentGraph } from "./segments";
import { LINKS } from "./words";

export const CHIP = { width: 40, height: 22, gap: 4, perRow: 8 };
const PADDING = 10;
const HEAD = 22;

export interface Box {
  segment: Segment;
  chips: Chip[];
  x: number;
  y: number;
  width: number;
  height: number;
}

interface Point {
  x: number;
  y: number;
}

export interface Line {
  edge: SegmentEdge;
  points: Point[];
  /** Where its name stands; null where it has none. */
  label: Point | null;
}

export interface Picture {
  boxes: Box[];
  lines: Line[];
  width: number;
  height: number;
}

/** Beyond this many segments a picture would take seconds, and nobody could read it. */
export const SEGMENTS_MAX = 400;
/** Of such a graph so many are drawn. */
export const SEGMENTS_AROUND = 100;

export function picture(
  graph: SegmentGraph,
  direction: "LR" | "TB",
  notable: Set<number>,
): Picture {
  const drawing = new graphlib.Graph({ multigraph: true });
  drawing.setGraph({
    rankdir: direction,
    nodesep: 26,
    ranksep: 56,
    edgesep: 16,
    marginx: 16,
    marginy: 16,
  });
  drawing.setDefaultEdgeLabel(() => ({}));
  const sized = graph.segments.map((segment) => sizeOf(segment, notable));
  for (const box of sized)
    drawing.setNode(`${box.segment.id}`, { width: box.width, height: box.height });
  const asides = new Set(graph.segments.filter((one) => one.isBundle).map((one) => one.id));
  for (const edge of graph.edges) {
    // The work itself is drawn as straight as it can be; what is beside it gives way.
    const weight = asides.has(edge.to) ? 1 : 6;
    const size = labelOf(edge) ? { width: 84, height: 16 } : {};
    drawing.setEdge(`${edge.from}`, `${edge.to}`, { weight, ...size, labelpos: "c" }, edge.link);
  }
  arrange(drawing);
  const boxes = sized.map((box) => {
    const { x, y } = drawing.node(`${box.segment.id}`) as { x: number; y: number };
    return { ...box, x: x - box.width / 2, y: y - box.height / 2 };
  });
  const lines = graph.edges.map((edge) => {
    const label = drawing.edge({ v: `${edge.from}`, w: `${edge.to}`, name: edge.link }) as {
      points?: Point[];
      x?: number;
      y?: number;
    };
    const [from, to] = [edge.from, edge.to].map((id) =>
      boxes.find((box) => box.segment.id === id)!,
    );
    const between = (label.points ?? []).slice(1, -1);
    const points = [end(from!, direction, 1), ...between, end(to!, direction, 0)];
    const middle = labelOf(edge) ? { x: label.x ?? 0, y: label.y ?? 0 } : null;
    return { edge, points, label: middle };
  });
  const { width = 0, height = 0 } = drawing.graph() as { width?: number; height?: number };
  return { boxes, lines, width: Math.max(width, 200), height: Math.max(height, 100) };
}

/** Calls that simply go on need no name. */
export const labelOf = (edge: SegmentEdge) =>
  edge.link === "continues" ? "" : LINKS[edge.link][0];

/** The middle of the side where lines leave (1) or arrive (0). */
function end(box: Box, direction: "LR" | "TB", side: 0 | 1): Point {
  return direction === "LR"
    ? { x: box.x + side * box.width, y: box.y + box.height / 2 }
    : { x: box.x + box.width / 2, y: box.y + side * box.height };
}

function sizeOf(segment: Segment, notable: Set<number>): Omit<Box, "x" | "y"> {
  const isNotable = (at: number) => {
    const link = segment.links[at];
    const isOdd = link !== null && link !== undefined && link !== "continues";
    return isOdd || notable.has(segment.nodes[at]!.turn);
  };
  const shown = chips(segment, isNotable);
  const columns = Math.min(CHIP.perRow, Math.max(shown.length, 5));
  const rows = Math.ceil(shown.length / CHIP.perRow);
  return {
    segment,
    chips: shown,
    width: columns * (CHIP.width + CHIP.gap) - CHIP.gap + 2 * PADDING,
    height: HEAD + rows * (CHIP.height + CHIP.gap) - CHIP.gap + 2 * PADDING,
  };
}

/** The place of a chip in its box. */
export const chipPlace = (index: number) => ({
  x: PADDING + (index % CHIP.perRow) * (CHIP.width + CHIP.gap),
  y: PADDING + HEAD + Math.floor(index / CHIP.perRow) * (CHIP.height + CHIP.gap),
});
