// Comparing: figures over many rollouts, or two of them side by side.
import type { PageProps } from "../../app";
import "../../styles/compare.css";
import { Overview } from "./overview";
import { SideBySide } from "./side/page";

export default function ComparePage({ query }: PageProps) {
  const ids = (query.get("ids") ?? "").split(",").filter(Boolean);
  return (
    <div class="compare">
      {ids.length > 0 ? <SideBySide ids={ids} query={query} /> : <Overview query={query} />}
    </div>
  );
}
