import type { PageProps } from "../../app";

export function RolloutsPage(_: PageProps) {
  return <h1>Rollouts</h1>;
}
