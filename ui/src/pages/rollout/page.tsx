import type { PageProps } from "../../app";

export default function RolloutPage(_: PageProps) {
  return <h1>Rollout</h1>;
}
