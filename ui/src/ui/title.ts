// The window's title: what is shown, and its state, for whoever has many tabs.
import { useEffect } from "preact/hooks";
import { visible } from "./text";

export function useTitle(title: string) {
  useEffect(() => {
    document.title = `${visible(title)} · Rollcage`;
  }, [title]);
}
