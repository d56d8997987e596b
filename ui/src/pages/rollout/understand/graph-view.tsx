// The picture of the graph, which can be moved and zoomed.
import { curveBasis, line } from "d3-shape";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { GraphEdge } from "../../../api/types";
import { link } from "../../../router";
import { type Box, CHIP, chipPlace, type Line, type Picture } from "./layout";
import type { Chip } from "./segments";
import { fitted, kept, showing, type View, zoomed } from "./view";
import { LINKS, reasonWords } from "./words";

const KINDS = Object.keys(LINKS) as GraphEdge["link"][];
const path = line<{ x: number; y: number }>(
  (at) => at.x,
  (at) => at.y,
).curve(curveBasis);

/** At first nothing is drawn smaller than can be read. */
const READABLE = 0.55;

interface Props {
  id: string;
  picture: Picture;
  turn: number | null;
  direction: "LR" | "TB";
}

export function GraphView({ id, picture, turn, direction }: Props) {
  const svg = useRef<SVGSVGElement>(null);
  const [view, setView] = useState<View>({ x: 0, y: 0, scale: 1 });
  const drag = useRef<{ x: number; y: number; hasMoved: boolean } | null>(null);

  /** Whether the reader has chosen what is seen, which a growing graph must not change. */
  const isChosen = useRef(false);
  const drawn = useRef<Picture | null>(null);
  const sizeOf = () => svg.current?.getBoundingClientRect() ?? new DOMRect();

  const fit = () => {
    isChosen.current = false;
    if (sizeOf().width > 0) setView(fitted(picture, sizeOf(), direction));
  };
  const zoom = (factor: number, at?: { x: number; y: number }) => {
    isChosen.current = true;
    const size = sizeOf();
    const point = at
      ? { x: at.x - size.left, y: at.y - size.top }
      : { x: size.width / 2, y: size.height / 2 };
    setView((old) => zoomed(old, factor, point));
  };
  const pan = (x: number, y: number) => {
    isChosen.current = true;
    setView((old) => ({ ...old, x: old.x + x, y: old.y + y }));
  };

  const box = picture.boxes.find((one) => one.segment.nodes.some((node) => node.turn === turn));
  // Another turn or another layout is another question; growth is not.
  useLayoutEffect(() => {
    isChosen.current = false;
  }, [direction, turn]);
  useLayoutEffect(() => {
    const [before, size] = [drawn.current, sizeOf()];
    drawn.current = picture;
    if (size.width === 0) return;
    setView((old) => {
      if (before && isChosen.current) return kept(old, before, picture, size);
      const all = fitted(picture, size, direction, READABLE);
      return box ? showing(all, box, size) : all;
    });
  }, [picture, direction, turn]);

  // A wheel alone scrolls the page; only with a modifier, or inside a picture that has the focus, does it zoom.
  useEffect(() => {
    const at = svg.current!;
    const wheel = (event: WheelEvent) => {
      if (!event.ctrlKey && !event.metaKey && !at.parentElement!.contains(document.activeElement))
        return;
      event.preventDefault();
      zoom(Math.exp(-event.deltaY / 400), { x: event.clientX, y: event.clientY });
    };
    at.addEventListener("wheel", wheel, { passive: false });
    return () => at.removeEventListener("wheel", wheel);
  }, []);

  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const acts: Record<string, () => void> = {
      "+": () => zoom(1.25),
      "=": () => zoom(1.25),
      "-": () => zoom(0.8),
      "0": () => fit(),
      ArrowLeft: () => pan(60, 0),
      ArrowRight: () => pan(-60, 0),
      ArrowUp: () => pan(0, 60),
      ArrowDown: () => pan(0, -60),
    };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };
  const onPointerDown = (event: PointerEvent) => {
    if (event.button === 0) drag.current = { x: event.clientX, y: event.clientY, hasMoved: false };
  };
  const onPointerMove = (event: PointerEvent) => {
    const from = drag.current;
    if (!from) return;
    const [x, y] = [event.clientX - from.x, event.clientY - from.y];
    if (!from.hasMoved && Math.hypot(x, y) < 5) return;
    // Only now: a captured pointer clicks no link.
    if (!from.hasMoved) svg.current?.setPointerCapture(event.pointerId);
    drag.current = { x: event.clientX, y: event.clientY, hasMoved: true };
    pan(x, y);
  };
  return (
    <section
      class="panel graph-panel"
      tabIndex={0}
      role="region"
      aria-label="Graph of the turns: arrow keys move it, plus and minus zoom, 0 shows all"
      onKeyDown={onKeyDown}
    >
      <svg
        ref={svg}
        role="group"
        aria-label="The turns in segments"
        onPointerDown={onPointerDown}
        onPointerMove={onPointerMove}
        onPointerUp={() => (drag.current = null)}
        onPointerCancel={() => (drag.current = null)}
        onDragStart={(event) => event.preventDefault()}
      >
        <defs>
          {KINDS.map((kind) => (
            <marker
              key={kind}
              id={`arrow-${kind}`}
              class={`edge-${kind}`}
              viewBox="0 0 8 8"
              refX="7"
              refY="4"
              markerWidth="7"
              markerHeight="7"
              orient="auto-start-reverse"
            >
              <path d="M0 0.5 L7.5 4 L0 7.5 z" />
            </marker>
          ))}
        </defs>
        <g transform={`translate(${view.x} ${view.y}) scale(${view.scale})`}>
          {picture.lines.map((one) => (
            <EdgeView key={`${one.edge.from} ${one.edge.to} ${one.edge.link}`} line={one} />
          ))}
          {picture.boxes.map((one) => (
            <BoxView key={one.segment.id} id={id} box={one} turn={turn} />
          ))}
        </g>
      </svg>
      <footer class="graph-legend small">
        {KINDS.map((kind) => (
          <span key={kind} title={LINKS[kind][1]}>
            <svg width="26" height="8" aria-hidden="true">
              <path class={`edge edge-${kind}`} d="M1 4 H25" />
            </svg>
            {LINKS[kind][0]}
          </span>
        ))}
        <span>
          <svg width="14" height="10" aria-hidden="true">
            <rect class="trained-mark" x="0" y="3" width="14" height="4" rx="1" />
          </svg>
          trained on
        </span>
        <div class="graph-tools">
          <button class="small" onClick={() => zoom(1.25)} aria-label="Zoom in">
            +
          </button>
          <button class="small" onClick={() => zoom(0.8)} aria-label="Zoom out">
            −
          </button>
          <button class="small" onClick={() => fit()}>
            Fit
          </button>
        </div>
      </footer>
    </section>
  );
}

function EdgeView({ line: { edge, points, label } }: { line: Line }) {
  const [name, about] = LINKS[edge.link];
  const many = edge.count > 1 ? ` ×${edge.count}` : "";
  return (
    <g class={`edge-group edge-${edge.link}`}>
      <title>
        {`Turn ${edge.toTurn}${many ? ` and ${edge.count - 1} more` : ""}: ${name} turn ${edge.fromTurn}. ${about}.`}
      </title>
      <path
        class={`edge edge-${edge.link}`}
        d={path(points) ?? ""}
        marker-end={`url(#arrow-${edge.link})`}
      />
      <path class="edge-target" d={path(points) ?? ""} />
      {label && (
        <text x={label.x} y={label.y + 4} text-anchor="middle">
          {name}
          {many}
        </text>
      )}
    </g>
  );
}

function BoxView({ id, box, turn }: { id: string; box: Box; turn: number | null }) {
  const { segment } = box;
  const [first, last] = [segment.nodes[0]!.turn, segment.nodes.at(-1)!.turn];
  const turns = `${segment.nodes.length} ${segment.nodes.length === 1 ? "turn" : "turns"}`;
  const range = segment.isBundle || first === last ? turns : `${first}–${last} · ${turns}`;
  const about = reasonWords({
    role: segment.nodes[0]!.role,
    reason: segment.reason,
    is_subagent: segment.nodes[0]!.is_subagent,
  });
  return (
    <g class={`segment role-${segment.role}`} transform={`translate(${box.x} ${box.y})`}>
      <title>{about}</title>
      <rect class="box" width={box.width} height={box.height} rx="8" />
      <text class="name" x="10" y="20">
        {segment.role}
      </text>
      <text class="range" x={box.width - 10} y="20" text-anchor="end">
        {range}
      </text>
      {box.chips.map((chip, index) => (
        <ChipView key={index} id={id} box={box} chip={chip} index={index} turn={turn} />
      ))}
    </g>
  );
}

interface ChipProps {
  id: string;
  box: Box;
  chip: Chip;
  index: number;
  turn: number | null;
}

function ChipView({ id, box: { segment }, chip, index, turn }: ChipProps) {
  const { x, y } = chipPlace(index);
  const node = segment.nodes["at" in chip ? chip.at : chip.from]!;
  const isGap = "skipped" in chip;
  const before = isGap ? null : segment.links[chip.at];
  const isOdd = before !== null && before !== undefined && before !== "continues";
  const trained = node.is_trained ? ", trained on" : "";
  const label = isGap
    ? `${chip.skipped} more turns from ${node.turn} on`
    : `Turn ${node.turn}, ${node.role}${trained}${isOdd ? `, ${LINKS[before][0]} from the one before: ${LINKS[before][1]}` : ""}`;
  const isHere = !isGap && node.turn === turn;
  return (
    <a
      href={link(["rollout", id, "turns"], { turn: node.turn })}
      aria-label={label}
      class={`turn-chip ${isGap ? "gap" : ""} ${isHere ? "here" : ""} ${node.role === "pending" ? "pending" : ""}`}
    >
      <title>{label}</title>
      <rect x={x} y={y} width={CHIP.width} height={CHIP.height} rx="5" />
      {isOdd && (
        <path class={`joint edge-${before}`} d={`M${x - 3} ${y + 3} v${CHIP.height - 6}`} />
      )}
      {!isGap && node.is_trained && (
        <rect
          class="trained-mark"
          x={x + 6}
          y={y + CHIP.height - 4}
          width={CHIP.width - 12}
          height="2.5"
          rx="1"
        />
      )}
      <text x={x + CHIP.width / 2} y={y + 15} text-anchor="middle">
        {isGap ? `+${chip.skipped}` : node.turn}
      </text>
    </a>
  );
}
