// A box that grows at its end: the end stays in view, unless the reader has scrolled up.
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

/** As near to the end as this counts as the end. */
const NEAR_PX = 60;

export interface Place {
  top: number;
  /** How much is below what is seen. */
  below: number;
}

/**
 * Whether the end is followed from now on. A scroll is told of late: when the content has grown since, being away from the
 * end does not mean that the reader went away, only going up does.
 */
export function isFollowing(was: boolean, before: Place, now: Place): boolean {
  if (now.below < NEAR_PX) return true;
  return was && now.top >= before.top;
}

/** For a box with one element inside, which is what grows. `first` names what stands first, where that can change. */
export function useEndInView(first?: string) {
  const ref = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const place = useRef<Place>({ top: 0, below: 0 });
  const look = () => {
    const at = ref.current;
    if (!at) return;
    const top = at.scrollTop;
    const now = { top, below: at.scrollHeight - top - at.clientHeight };
    isAtEnd.current = isFollowing(isAtEnd.current, place.current, now);
    place.current = now;
  };
  const toEnd = () => {
    isAtEnd.current = true;
    ref.current?.scrollTo({ top: ref.current.scrollHeight });
  };
  useEffect(() => {
    const content = ref.current?.firstElementChild;
    if (!content) return;
    const observer = new ResizeObserver(() => {
      if (isAtEnd.current) toEnd();
      else look();
    });
    observer.observe(content);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    const at = ref.current;
    // What was added before the first must not push away what is read.
    if (at && !isAtEnd.current)
      at.scrollTop = at.scrollHeight - at.clientHeight - place.current.below;
  }, [first]);
  return { ref, onScroll: look, toEnd };
}
