// Where the focus goes when another page is shown: to its heading, as a new document would begin.
import { useEffect, useRef } from "preact/hooks";

/** For how long a page that is being loaded may show its heading. */
const PATIENCE_MS = 5000;

export function useHeadingFocus(place: string) {
  const last = useRef(place);
  useEffect(() => {
    if (last.current === place) return;
    last.current = place;
    const main = document.getElementById("main");
    const focus = () => {
      const heading = main?.querySelector("h1");
      if (!heading) return false;
      heading.tabIndex = -1;
      heading.focus({ preventScroll: true });
      scrollTo(0, 0);
      return true;
    };
    if (focus() || !main) return;
    const observer = new MutationObserver(() => focus() && observer.disconnect());
    observer.observe(main, { childList: true, subtree: true });
    const timer = setTimeout(() => observer.disconnect(), PATIENCE_MS);
    return () => {
      observer.disconnect();
      clearTimeout(timer);
    };
  }, [place]);
}
