// The time for what ages on the page. Whoever reads a signal is drawn again as it ticks; nothing else is.
import { signal } from "@preact/signals";

const now = () => Date.now() / 1000;

/** Unix seconds, each second. */
export const clock = signal(now());
/** Unix seconds, each half minute. */
export const slowClock = signal(now());

setInterval(() => {
  if (!document.hidden) clock.value = now();
}, 1000);
setInterval(() => {
  slowClock.value = now();
}, 30_000);
