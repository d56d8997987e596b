import { Empty } from "../../../ui/parts";

export default function Graph(_: { id: string; query: URLSearchParams }) {
  return <Empty>Graph</Empty>;
}
