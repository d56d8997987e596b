// Which part of the graph's picture is seen, and how large. Pure.
import type { Box, Picture } from "./layout";

export interface View {
  x: number;
  y: number;
  scale: number;
}

interface Size {
  width: number;
  height: number;
}

export const SMALLEST = 0.1;
const LARGEST = 3;

/** All of the picture, but no smaller than `least`: then from where the work starts. */
export function fitted(
  picture: Picture,
  size: Size,
  direction: "LR" | "TB",
  least = SMALLEST,
): View {
  const whole = Math.min(1.2, size.width / picture.width, size.height / picture.height);
  const scale = Math.max(whole, least);
  const work = picture.boxes.find((one) => !one.segment.isBundle) ?? picture.boxes[0]!;
  const place = (room: number, length: number, start: number, extent: number, isAlong: boolean) => {
    if (length * scale <= room) return (room - length * scale) / 2;
    return isAlong ? 8 - start * scale : room / 2 - (start + extent / 2) * scale;
  };
  return {
    x: place(size.width, picture.width, work.x, work.width, direction === "LR"),
    y: place(size.height, picture.height, work.y, work.height, direction === "TB"),
    scale,
  };
}

/** Larger or smaller around a point of the window. */
export function zoomed(view: View, factor: number, at: { x: number; y: number }): View {
  const scale = Math.min(LARGEST, Math.max(SMALLEST, view.scale * factor));
  const grown = scale / view.scale;
  return { scale, x: at.x - (at.x - view.x) * grown, y: at.y - (at.y - view.y) * grown };
}

/** The same view, moved where a box would not be seen. */
export function showing(view: View, box: Box, size: Size): View {
  const [x, y] = [
    (box.x + box.width / 2) * view.scale + view.x,
    (box.y + box.height / 2) * view.scale + view.y,
  ];
  const isSeen = x > 40 && y > 40 && x < size.width - 40 && y < size.height - 40;
  return isSeen
    ? view
    : { ...view, x: view.x + size.width / 2 - x, y: view.y + size.height / 2 - y };
}

/** A graph that grows is arranged anew: what the reader looks at stays where it is. */
export function kept(view: View, before: Picture, after: Picture, size: Size): View {
  const places = new Map(after.boxes.map((box) => [box.segment.id, box]));
  const distance = (box: Box) =>
    Math.hypot(
      (box.x + box.width / 2) * view.scale + view.x - size.width / 2,
      (box.y + box.height / 2) * view.scale + view.y - size.height / 2,
    );
  let nearest: Box | null = null;
  for (const box of before.boxes)
    if (places.has(box.segment.id) && (!nearest || distance(box) < distance(nearest)))
      nearest = box;
  if (!nearest) return view;
  const now = places.get(nearest.segment.id)!;
  return {
    ...view,
    x: view.x - (now.x - nearest.x) * view.scale,
    y: view.y - (now.y - nearest.y) * view.scale,
  };
}
