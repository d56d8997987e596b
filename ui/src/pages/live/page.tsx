import type { PageProps } from "../../app";

export default function LivePage(_: PageProps) {
  return <h1>Live</h1>;
}
