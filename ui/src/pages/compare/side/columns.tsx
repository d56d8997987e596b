// Two transcripts in two columns, reply beside reply, with the place where they part.
import { useEffect, useMemo, useState } from "preact/hooks";
import type { RolloutRow } from "../../../api/types";
import { setParams } from "../../../router";
import { useKeys } from "../../../ui/keys";
import { Empty, Problem, Spinner } from "../../../ui/parts";
import { VirtualList } from "../../../ui/virtual";
import { align, firstDifference, nextDifference, type Pair } from "./align";
import { EntryCell } from "./entry";
import { useTranscript, type ReadTranscript } from "./transcript";

/** Pages are read before the reader comes to their end. */
const AHEAD = 20;

const DIFFERENCES: Record<string, string> = {
  prompt: "told differently",
  reply: "replies differ",
  result: "tools answered differently",
  missing: "only one has this",
};

interface Props {
  a: string;
  b: string;
  rowA: RolloutRow | null;
  rowB: RolloutRow | null;
  query: URLSearchParams;
}

export function Columns({ a, b, rowA, rowB, query }: Props) {
  const left = useTranscript(a, rowA);
  const right = useTranscript(b, rowB);
  const pairs = useMemo(
    () => align(left, right),
    [left.entries, left.isComplete, right.entries, right.isComplete],
  );
  const first = useMemo(() => firstDifference(pairs), [pairs]);
  const isAll = left.isComplete && right.isComplete;
  const readOn = () => {
    left.more();
    right.more();
  };
  const row = Number(query.get("row") ?? NaN);
  const move = useMoves(pairs, first, isAll, row, readOn);
  const side = query.get("side") === "b" ? "b" : "a";
  return (
    <div class={`side side-shows-${side}`}>
      <div class="side-bar">
        <SideChoice side={side} />
        <span class="small muted" role="status">
          {statusOf(left, right, pairs, first, isAll)}
        </span>
        <div class="row">
          <button class="small" disabled={isAll && first === null} onClick={move.toFirst}>
            {move.isSeeking && <Spinner label="Reading on" />} First difference
          </button>
          <button class="small" title="p" disabled={first === null} onClick={() => move.by(-1)}>
            Previous
          </button>
          <button class="small" title="n" disabled={first === null} onClick={() => move.by(1)}>
            Next
          </button>
        </div>
      </div>
      <Problem error={left.error ?? right.error} retry={left.error ? left.retry : right.retry} />
      {pairs.length === 0 ? (
        <Empty>
          {isAll ? "Neither has said anything yet." : <Spinner label="Loading the transcripts" />}
        </Empty>
      ) : (
        <VirtualList
          class="side-list"
          count={pairs.length}
          estimate={() => 140}
          isMeasured
          label="The two transcripts"
          scrollTo={row < pairs.length ? row : null}
          onRange={(_, last) => last > pairs.length - AHEAD && readOn()}
          render={(index) => (
            <PairRow
              pair={pairs[index]!}
              ids={[a, b]}
              isFirst={index === first}
              isChosen={index === row}
            />
          )}
        />
      )}
    </div>
  );
}

/** From difference to difference; the place is in the address. Reads on where what is read has no more of them. */
function useMoves(
  pairs: Pair[],
  first: number | null,
  isAll: boolean,
  row: number,
  readOn: () => void,
) {
  const [isSeeking, setSeeking] = useState(false);
  const to = (place: number) => setParams({ row: place });
  useEffect(() => {
    // Prompts and results that differ are the first difference only where no reply is.
    const isFound = first !== null && (isAll || pairs[first]?.difference === "reply");
    if (isSeeking && (isFound || isAll)) {
      setSeeking(false);
      if (first !== null) to(first);
    } else if (isSeeking || row >= pairs.length) readOn();
  }, [isSeeking, pairs, isAll, first, row]);
  const by = (step: 1 | -1) => {
    const place = nextDifference(pairs, Number.isNaN(row) ? -1 : row, step);
    if (place !== null) to(place);
    else if (step === 1) readOn();
  };
  useKeys((key) => {
    if (key === "n") by(1);
    else if (key === "p") by(-1);
    return key === "n" || key === "p";
  });
  return { isSeeking, toFirst: () => setSeeking(true), by };
}

function statusOf(
  left: ReadTranscript,
  right: ReadTranscript,
  pairs: Pair[],
  first: number | null,
  isAll: boolean,
): string {
  const differ = pairs.filter((pair) => pair.difference !== null).length;
  const known = isAll
    ? `${pairs.length} rows`
    : `${left.entries.length} of ${left.total} and ${right.entries.length} of ${right.total} entries read`;
  if (first === null) return isAll ? `${known}, all the same` : `${known}, the same so far`;
  return `${known}, ${differ} differ`;
}

/** On a narrow screen one side is seen at a time. */
function SideChoice({ side }: { side: "a" | "b" }) {
  return (
    <div class="row side-choice" role="group" aria-label="Which one is shown">
      {(["a", "b"] as const).map((name) => (
        <button
          key={name}
          class={`small ${side === name ? "chosen" : ""}`}
          aria-pressed={side === name}
          onClick={() => setParams({ side: name })}
        >
          {name.toUpperCase()}
        </button>
      ))}
    </div>
  );
}

function PairRow(props: {
  pair: Pair;
  ids: [string, string];
  isFirst: boolean;
  isChosen: boolean;
}) {
  const { pair, ids, isFirst, isChosen } = props;
  const { a, b, difference } = pair;
  return (
    <div
      class={`pair ${difference ? "differs" : ""} ${isFirst ? "first" : ""} ${isChosen ? "chosen-row" : ""}`}
    >
      {(isFirst || difference) && (
        <p class="pair-note small">
          {isFirst && <strong>First difference: </strong>}
          {difference && DIFFERENCES[difference]}
        </p>
      )}
      <div class="pair-side a">
        {a ? <EntryCell id={ids[0]} entry={a} other={b} side="a" /> : <Nothing letter="A" />}
      </div>
      <div class="pair-side b">
        {b ? <EntryCell id={ids[1]} entry={b} other={a} side="b" /> : <Nothing letter="B" />}
      </div>
    </div>
  );
}

function Nothing({ letter }: { letter: string }) {
  return <p class="muted small">{letter} has no such entry.</p>;
}
