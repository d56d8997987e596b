// Live agents: servers that stay, and are talked to.
import type { PageProps } from "../../app";
import "../../styles/live.css";
import { AgentPage } from "./agent";
import { AgentList } from "./list";

export default function LivePage({ path, query }: PageProps) {
  const [id] = path;
  return (
    <div class="live">
      {id ? <AgentPage key={id} id={id} query={query} /> : <AgentList query={query} />}
    </div>
  );
}
