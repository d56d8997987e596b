// The files that two rollouts left, as differences.
import { useMemo, useState } from "preact/hooks";
import { get } from "../../../api/client";
import { useLoad } from "../../../api/load";
import type { ChangesPage, RolloutRow } from "../../../api/types";
import { count } from "../../../format";
import { Empty, Panel, Problem, Spinner } from "../../../ui/parts";
import { AgentText, visible } from "../../../ui/text";
import { pairFiles, type FilePair } from "./align";
import { firstLines, lineHunks, LINES_SHOWN, type Hunk } from "./difference";

const PAGE = 128;
/** Opened at once; more would only make the page long. */
const OPEN_AT_FIRST = 5;

const KINDS: Record<FilePair["kind"], [string, string]> = {
  differs: ["differs", "part"],
  only_a: ["only in A", "info"],
  only_b: ["only in B", "info"],
  unknown: ["not compared", ""],
  same: ["the same", ""],
};

interface Props {
  a: string;
  b: string;
  rowA: RolloutRow | null;
  rowB: RolloutRow | null;
}

export function FilesBeside({ a, b, rowA, rowB }: Props) {
  // Files are collected at the end: read again when one of them comes there.
  const [left, right] = [useChanges(a, rowA?.status), useChanges(b, rowB?.status)];
  const pairs = useMemo(
    () => (left.data && right.data ? pairFiles(left.data.files, right.data.files) : []),
    [left.data, right.data],
  );
  const shown = pairs.filter((pair) => pair.kind !== "same");
  const same = pairs.length - shown.length;
  const isCut = [left.data, right.data].some((page) => page && page.total > page.files.length);
  const error = left.error ?? right.error;
  const isOpen = [rowA, rowB].some((row) => row && row.status !== "ended");
  if (!left.data || !right.data) {
    if (error) return <Problem error={error} retry={left.error ? left.reload : right.reload} />;
    return (
      <Empty>
        <Spinner label="Loading the files" />
      </Empty>
    );
  }
  return (
    <div class="stack">
      {isOpen && (
        <p class="notice">One of them has not ended: files are collected once an agent is done.</p>
      )}
      {shown.map((pair, index) => (
        <FileDiff key={pair.path} pair={pair} isOpen={index < OPEN_AT_FIRST} />
      ))}
      {shown.length === 0 && (
        <Panel>
          <Empty>
            {pairs.length > 0 ? "All files are the same." : "No text files were kept of either."}
          </Empty>
        </Panel>
      )}
      <p class="small muted">
        {same > 0 && `${same} ${same === 1 ? "file is" : "files are"} the same.`}
        {isCut && ` Only the first ${PAGE} files of each are compared.`}
      </p>
    </div>
  );
}

function useChanges(id: string, status: RolloutRow["status"] | undefined) {
  const path = `v1/rollouts/${encodeURIComponent(id)}/changes`;
  return useLoad(
    (abort) => get<ChangesPage>(path, { start: 0, limit: PAGE }, abort),
    [id, status ?? ""],
  );
}

function FileDiff({ pair, isOpen }: { pair: FilePair; isOpen: boolean }) {
  const [opened, setOpened] = useState(isOpen);
  const [name, badge] = KINDS[pair.kind];
  return (
    <details
      class="panel file-diff"
      open={opened}
      onToggle={(event) => setOpened(event.currentTarget.open)}
    >
      <summary class="row">
        <span class="mono">
          <AgentText text={pair.path} />
        </span>
        <span class={`badge ${badge}`}>{name}</span>
        {pair.isCut && <span class="small muted">cut: only the kept part is compared</span>}
      </summary>
      {opened && <DiffLines pair={pair} />}
    </details>
  );
}

function DiffLines({ pair }: { pair: FilePair }) {
  const [most, setMost] = useState(LINES_SHOWN);
  const isKnown = pair.kind !== "unknown" && (pair.a !== null || pair.b !== null);
  const hunks = useMemo(
    () => (isKnown ? lineHunks(pair.a ?? "", pair.b ?? "") : []),
    [pair.a, pair.b, isKnown],
  );
  if (!isKnown) {
    return <p class="small muted explain">It is no text, or too long: its content was not kept.</p>;
  }
  if (!hunks) {
    return (
      <p class="small muted explain">
        The two are too different to be compared line by line. Each rollout's own page has its file.
      </p>
    );
  }
  if (hunks.length === 0) return <p class="small muted explain">It is empty.</p>;
  const shown = firstLines(hunks, most);
  return (
    <>
      <HunkTable path={pair.path} hunks={shown.hunks} />
      {shown.total > most && (
        <p class="row small muted explain">
          {count(most)} of {count(shown.total)} lines are shown.
          <button class="plain small" onClick={() => setMost(most + LINES_SHOWN)}>
            Show more
          </button>
        </p>
      )}
    </>
  );
}

function HunkTable({ path, hunks }: { path: string; hunks: Hunk[] }) {
  return (
    <div
      class="side-diff scroll-x"
      tabIndex={0}
      role="region"
      aria-label={`Difference of ${visible(path)}`}
    >
      <table>
        <tbody>
          {hunks.map((hunk, index) => (
            <HunkRows
              key={index}
              lines={hunk.lines}
              oldStart={hunk.oldStart}
              newStart={hunk.newStart}
            />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function HunkRows(props: Hunk) {
  let [a, b] = [props.oldStart, props.newStart];
  const isOfBoth = !props.lines.every((line) => line[0] === props.lines[0]?.[0]);
  return (
    <>
      {isOfBoth && (
        <tr class="gap">
          <td colSpan={4}>
            line {a} in A, line {b} in B
          </td>
        </tr>
      )}
      {props.lines.map((line, index) => {
        const kind = line[0] === "-" ? "a" : line[0] === "+" ? "b" : line[0] === "\\" ? "gap" : "";
        const isA = kind === "a" || kind === "";
        const isB = kind === "b" || kind === "";
        return (
          <tr key={index} class={kind}>
            <td class="number">{isA ? a++ : ""}</td>
            <td class="number">{isB ? b++ : ""}</td>
            <td
              class="sign"
              aria-label={kind === "a" ? "only in A" : kind === "b" ? "only in B" : ""}
            >
              {kind === "a" ? "A" : kind === "b" ? "B" : ""}
            </td>
            <td>
              <AgentText text={line.slice(1)} />
            </td>
          </tr>
        );
      })}
    </>
  );
}
