import type { PageProps } from "../../app";

export default function StartPage(_: PageProps) {
  return <h1>Start</h1>;
}
