import { Empty } from "../../../ui/parts";

export default function Export(_: { id: string; query: URLSearchParams }) {
  return <Empty>Export</Empty>;
}
