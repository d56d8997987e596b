// Every turn of a rollout, which is one model call, as a table, and one of them in full.
import { get } from "../../../api/client";
import type { TurnPage, TurnRow } from "../../../api/types";
import { count, logprob, seconds } from "../../../format";
import { setParams } from "../../../router";
import { useKeys } from "../../../ui/keys";
import { Empty, Problem, Spinner } from "../../../ui/parts";
import { AgentText } from "../../../ui/text";
import { VirtualList } from "../../../ui/virtual";
import "../../../styles/understand.css";
import { noTurns } from "../no-turns";
import type { TabProps } from "../page";
import { numberParam, useIsNarrow } from "./place";
import { useGrowth } from "./live";
import { usePages } from "./pages";
import { LogprobBar, RoleBadge, TurnNumber } from "./parts";
import { TurnView } from "./turn";
import { finishWords, flawWords } from "./words";

const PAGE = 200;

export default function Turns({ rollout, query }: TabProps) {
  const { id } = rollout;
  const turns = usePages<TurnRow>(
    PAGE,
    async (start, limit, abort) => {
      const page = await get<TurnPage>(`v1/rollouts/${id}/turns`, { start, limit }, abort);
      return { items: page.turns, total: page.total };
    },
    [id],
  );
  useGrowth(id, () => turns.refresh());
  const isNarrow = useIsNarrow();
  const total = turns.total ?? 0;
  const wanted = numberParam(query, "turn");
  const chosen = wanted ?? (total > 0 ? 0 : null);
  const choose = (turn: number) => setParams({ turn });
  useKeys((key) => {
    const step = key === "j" ? 1 : key === "k" ? -1 : 0;
    if (step === 0 || total === 0) return false;
    choose(Math.min(total - 1, Math.max(0, (chosen ?? 0) + step)));
    return true;
  });
  if (turns.total === null && turns.error)
    return <Problem error={turns.error} retry={turns.retry} />;
  if (turns.total === null)
    return (
      <Empty>
        <Spinner label="Loading the turns" />
      </Empty>
    );
  if (total === 0)
    return <Empty>{noTurns(rollout, "Each turn appears here as it is made.")}</Empty>;
  return (
    <div class="understand turn-page">
      <div class="panel turn-table">
        <div class="table" role="table" aria-label="Turns" aria-rowcount={total + 1}>
          <div class="turn-row head" role="row">
            {HEADS.map(([name, title, kind]) => (
              <span key={name} role="columnheader" class={kind} title={title}>
                {name}
              </span>
            ))}
          </div>
          <VirtualList
            key={isNarrow ? "narrow" : "wide"}
            role="rowgroup"
            label={`${total} turns; j and k move`}
            count={total}
            estimate={() => (isNarrow ? 58 : 34)}
            align="auto"
            scrollTo={wanted}
            onRange={(first, last) => turns.need(first, last)}
            render={(index) => (
              <Row
                index={index}
                turn={turns.at(index)}
                isChosen={index === chosen}
                choose={() => choose(index)}
              />
            )}
          />
        </div>
        <Problem error={turns.error} retry={turns.retry} />
        <footer class="small muted row spread">
          <span>
            {total.toLocaleString("en")} {total === 1 ? "turn" : "turns"}
          </span>
          <span class="row">
            <kbd>j</kbd> <kbd>k</kbd> move
            <TurnNumber label="Go to" turn={chosen} total={total} choose={choose} />
          </span>
        </footer>
      </div>
      {chosen !== null && <TurnView id={id} turn={chosen} total={total} />}
    </div>
  );
}

const HEADS: [string, string, string][] = [
  ["#", "The turn's number, from 0", "number"],
  ["Role", "Whose turn it is", ""],
  ["In", "Tokens of the prompt", "number"],
  ["Cached", "Those of the prompt's that were cached", "number"],
  ["Out", "Sampled tokens", "number"],
  ["Logprob", "Mean logprob of the sampled tokens", ""],
  ["Finish", "Why the model stopped", ""],
  ["Time", "Seconds until the answer was there", "number"],
  ["Exact", "Whether ids and logprobs are the engine's own", ""],
  ["Reply", "Tools that were called, and the start of the text", ""],
];

interface RowProps {
  index: number;
  turn: TurnRow | undefined;
  isChosen: boolean;
  choose: () => void;
}

function Row({ index, turn, isChosen, choose }: RowProps) {
  const classes = `turn-row ${isChosen ? "chosen" : ""}`;
  if (!turn)
    return (
      <div class={classes} role="row" aria-rowindex={index + 2}>
        <span role="cell" class="number">
          {index}
        </span>
        <span role="cell" class="muted wait">
          …
        </span>
      </div>
    );
  return (
    <div
      class={classes}
      role="row"
      aria-rowindex={index + 2}
      aria-current={isChosen}
      onClick={choose}
    >
      <span role="cell" class="number">
        <button class="plain" onClick={choose} aria-label={`Turn ${index}`}>
          {index}
        </button>
      </span>
      <span role="cell">
        <RoleBadge call={turn} />
      </span>
      <span role="cell" class="number in">
        {count(turn.prompt_tokens)}
      </span>
      <span role="cell" class="number muted cached">
        {count(turn.cached_tokens)}
      </span>
      <span role="cell" class="number out">
        {count(turn.completion_tokens)}
      </span>
      <span role="cell" title={`mean logprob ${logprob(turn.mean_logprob)}`}>
        <LogprobBar value={turn.mean_logprob ?? null} />
      </span>
      <span
        role="cell"
        class="cut small"
        title={turn.finish_reason ? finishWords(turn.finish_reason) : ""}
      >
        {turn.finish_reason ? <AgentText text={turn.finish_reason} /> : "–"}
      </span>
      <span role="cell" class="number time">
        {seconds(turn.latency_s)}
      </span>
      <span role="cell">
        <Exact turn={turn} />
      </span>
      <span role="cell" class="cut preview">
        {turn.error && <AgentText class="error" text={turn.error} />}
        {turn.tool_calls.map((name, at) => (
          <code key={at} class="called">
            <AgentText text={name} />
          </code>
        ))}
        {turn.has_reasoning && <i class="thinks">thinks</i>}
        <AgentText text={turn.preview} />
      </span>
    </div>
  );
}

function Exact({ turn }: { turn: TurnRow }) {
  if (turn.role === "pending") return <span class="muted">–</span>;
  if (turn.not_exact)
    return (
      <span class="mark part" title={flawWords(turn.not_exact)}>
        <span aria-hidden="true">≈</span>
        <span class="visually-hidden">{flawWords(turn.not_exact)}</span>
      </span>
    );
  const text = turn.is_trained ? "Exact, and trained on" : "Exact, not trained on";
  return (
    <span class={`mark ${turn.is_trained ? "good" : "muted"}`} title={text}>
      <span aria-hidden="true">{turn.is_trained ? "✓" : "="}</span>
      <span class="visually-hidden">{text}</span>
    </span>
  );
}
