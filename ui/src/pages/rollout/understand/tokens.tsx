import { Empty } from "../../../ui/parts";

export default function Tokens(_: { id: string; query: URLSearchParams }) {
  return <Empty>Tokens</Empty>;
}
