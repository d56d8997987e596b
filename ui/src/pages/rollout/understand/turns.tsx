import { Empty } from "../../../ui/parts";

export default function Turns(_: { id: string; query: URLSearchParams }) {
  return <Empty>Turns</Empty>;
}
