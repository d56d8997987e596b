// Two rollouts side by side: how they came out, where they parted, and what they left.
import { link } from "../../../router";
import { Panel, Problem, Tabs } from "../../../ui/parts";
import { useTitle } from "../../../ui/title";
import { Columns } from "./columns";
import { FilesBeside } from "./files";
import { Head } from "./head";
import { Picker } from "./picker";
import { useRow } from "./rows";

export function SideBySide({ ids, query }: { ids: string[]; query: URLSearchParams }) {
  const [first, second] = ids;
  return second && second !== first ? (
    <Two key={`${first} ${second}`} a={first!} b={second} query={query} />
  ) : (
    <One id={first!} />
  );
}

function One({ id }: { id: string }) {
  const row = useRow(id);
  return (
    <>
      <h1>Compare with another</h1>
      <Problem error={row.error} retry={row.reload} />
      {row.data && (
        <Picker row={row.data} choose={(other) => link(["compare"], { ids: `${id},${other}` })} />
      )}
    </>
  );
}

function Two({ a, b, query }: { a: string; b: string; query: URLSearchParams }) {
  const [left, right] = [useRow(a), useRow(b)];
  useTitle(left.data ? `${left.data.task_id} side by side` : "Side by side");
  const view = query.get("view") === "files" ? "files" : "transcript";
  const here = (params: Record<string, string>) =>
    link(["compare"], { ids: `${a},${b}`, ...params });
  const isOtherTask = left.data && right.data && left.data.task_id !== right.data.task_id;
  return (
    <>
      <div class="row spread">
        <h1>Side by side</h1>
        <div class="row">
          <a class="button small" href={link(["compare"], { ids: `${b},${a}`, view })}>
            Swap
          </a>
          <a class="button small" href={link(["compare"], { ids: a })}>
            Another one beside A
          </a>
        </div>
      </div>
      <Problem error={left.error} retry={left.reload} />
      <Problem error={right.error} retry={right.reload} />
      {isOtherTask && (
        <p class="notice part">
          These are rollouts of different tasks; their turns need not match.
        </p>
      )}
      <Head a={left.data} b={right.data} />
      <Tabs
        label="What is compared"
        current={view}
        tabs={[
          { id: "transcript", name: "Transcripts", href: here({}) },
          { id: "files", name: "Files at the end", href: here({ view: "files" }) },
        ]}
      />
      {view === "files" ? (
        <FilesBeside a={a} b={b} rowA={left.data} rowB={right.data} />
      ) : (
        <Panel class="side-panel" flush>
          <Columns a={a} b={b} rowA={left.data} rowB={right.data} query={query} />
        </Panel>
      )}
    </>
  );
}
