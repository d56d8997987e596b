// Keys that belong to a whole page.
import { useEffect, useRef } from "preact/hooks";

/** Whether a key typed here means a character, or belongs to a dialog or an open menu. */
export function isTyping(event: KeyboardEvent): boolean {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return true;
  const at = event.target instanceof Element ? event.target : null;
  if (at?.closest("input:not([type=checkbox]), select, textarea, [contenteditable], .menu-panel"))
    return true;
  return document.querySelector("dialog[open]") !== null;
}

/** Whether Enter or space on what has the focus already does something. */
export const isControl = (event: KeyboardEvent) =>
  event.target instanceof Element &&
  event.target.closest("a, button, summary, input, label") !== null;

/** Calls `press` for keys that nobody types; it returns true where the key was its own. */
export function useKeys(press: (key: string, event: KeyboardEvent) => boolean) {
  const latest = useRef(press);
  latest.current = press;
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      if (!event.defaultPrevented && !isTyping(event) && latest.current(event.key, event))
        event.preventDefault();
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, []);
}
