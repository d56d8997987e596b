// A box that grows at its end: the end stays in view, unless the reader has scrolled up.
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

/** As near to the end as this counts as the end. */
const NEAR_PX = 60;

/** For a box with one element inside, which is what grows. `first` names what stands first, where that can change. */
export function useEndInView(first?: string) {
  const ref = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const fromEnd = useRef(0);
  const look = () => {
    const at = ref.current;
    if (!at) return;
    fromEnd.current = at.scrollHeight - at.scrollTop;
    isAtEnd.current = fromEnd.current - at.clientHeight < NEAR_PX;
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
    if (at && !isAtEnd.current) at.scrollTop = at.scrollHeight - fromEnd.current;
  }, [first]);
  return { ref, onScroll: look, toEnd };
}
