// A list of which only what is seen is in the page.
import {
  elementScroll,
  observeElementOffset,
  observeElementRect,
  Virtualizer,
} from "@tanstack/virtual-core";
import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useLayoutEffect, useReducer, useRef } from "preact/hooks";

interface Props {
  count: number;
  /** About how high a row is; rows are measured where `isMeasured`. */
  estimate: (index: number) => number;
  isMeasured?: boolean;
  render: (index: number) => ComponentChildren;
  /** Brings this row into view when it changes. */
  scrollTo?: number | null;
  /** Where it is brought; the centre when nothing is said. `auto` moves nothing where the row is seen already. */
  align?: "start" | "center" | "auto";
  /** Changes when that row has got its content, so that it is brought into view once more. */
  settled?: unknown;
  /** Stays at the end as rows are added, as long as the reader is there. */
  follow?: boolean;
  /** Changes when the last row grows, for following it. */
  grown?: unknown;
  /** Which rows are seen, for loading them. */
  onRange?: (first: number, last: number) => void;
  label: string;
  class?: string;
  role?: "region" | "table" | "list" | "log" | "rowgroup";
  /** The element that scrolls, for whoever moves it. */
  boxRef?: RefObject<HTMLDivElement | null>;
}

export function VirtualList(props: Props) {
  const { count, estimate, isMeasured, render, scrollTo, follow, onRange, label } = props;
  const ownBox = useRef<HTMLDivElement>(null);
  const box = props.boxRef ?? ownBox;
  const [, draw] = useReducer((n: number) => n + 1, 0);
  const virtual = useRef<Virtualizer<HTMLDivElement, Element>>(undefined);
  const options = {
    count,
    getScrollElement: () => box.current,
    estimateSize: estimate,
    observeElementRect,
    observeElementOffset,
    scrollToFn: elementScroll,
    overscan: 8,
    onChange: draw as () => void,
  };
  virtual.current ??= new Virtualizer(options);
  const list = virtual.current;
  list.setOptions(options);
  useLayoutEffect(() => list._didMount(), []);
  useLayoutEffect(() => list._willUpdate());
  useEffect(() => {
    if (scrollTo !== null && scrollTo !== undefined)
      list.scrollToIndex(scrollTo, { align: props.align ?? "center" });
  }, [scrollTo, props.settled]);
  const isAtEnd = useRef(true);
  useEffect(() => {
    if (follow && isAtEnd.current && count > 0) list.scrollToIndex(count - 1, { align: "end" });
  }, [count, follow, props.grown]);
  const items = list.getVirtualItems();
  const [first, last] = [items[0]?.index ?? 0, items.at(-1)?.index ?? 0];
  useEffect(() => onRange?.(first, last), [first, last, count]);
  const onScroll = () => {
    const at = box.current;
    if (at) isAtEnd.current = at.scrollHeight - at.scrollTop - at.clientHeight < 80;
  };
  return (
    <div
      ref={box}
      class={`virtual ${props.class ?? ""}`}
      tabIndex={0}
      role={props.role ?? "region"}
      aria-label={label}
      onScroll={onScroll}
    >
      <div style={{ height: `${list.getTotalSize()}px` }} role="presentation">
        {items.map((item) => (
          <div
            key={item.key}
            data-index={item.index}
            ref={isMeasured ? list.measureElement : undefined}
            style={{ transform: `translateY(${item.start}px)` }}
            role="presentation"
          >
            {render(item.index)}
          </div>
        ))}
      </div>
    </div>
  );
}
