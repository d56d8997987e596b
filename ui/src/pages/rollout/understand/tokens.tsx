// The tokens of one turn: what was sampled, how likely it was, and what went in.
import { get } from "../../../api/client";
import { useLoad } from "../../../api/load";
import type { TurnDetail, TurnPage } from "../../../api/types";
import { count, logprob } from "../../../format";
import { link, setParams } from "../../../router";
import { useKeys } from "../../../ui/keys";
import { Empty, Problem, Spinner } from "../../../ui/parts";
import "../../../styles/understand.css";
import { noTurns } from "../no-turns";
import type { TabProps } from "../page";
import { numberParam } from "./place";
import { useGrowth } from "./live";
import { RoleBadge, TurnNumber } from "./parts";
import { PromptIds } from "./prompt";
import { SampledTokens } from "./sampled-view";
import { flawWords } from "./words";

export default function Tokens({ rollout, query }: TabProps) {
  const { id, result } = rollout;
  const turn = numberParam(query, "turn") ?? 0;
  const token = numberParam(query, "token");
  const part = query.get("part") === "prompt" ? "prompt" : "sampled";
  const turns = useLoad(
    (abort) => get<TurnPage>(`v1/rollouts/${id}/turns`, { start: 0, limit: 1 }, abort),
    [id],
  );
  const total = turns.data?.total ?? null;
  // An ended rollout says at once whether there are turns.
  const hasTurns = (result?.usage.calls ?? total ?? 0) > 0;
  const detail = useLoad(
    async (abort) =>
      hasTurns ? get<TurnDetail>(`v1/rollouts/${id}/turns/${turn}`, {}, abort) : null,
    [id, turn, hasTurns],
  );
  useGrowth(id, () => {
    turns.reload();
    // It may have been answered, and what later turns do changes an earlier one's role.
    detail.reload();
  });
  const choose = (next: number) => setParams({ turn: Math.max(0, next), token: null });
  useKeys((key) => {
    const step = key === "j" ? 1 : key === "k" ? -1 : 0;
    if (step === 0 || total === null) return false;
    choose(Math.min(total - 1, turn + step));
    return true;
  });
  const it = detail.data;
  if (total === 0)
    return (
      <Empty>{noTurns(rollout, "The tokens of each turn appear here once it is answered.")}</Empty>
    );
  return (
    <div class="understand stack">
      <header class="token-head">
        <div class="row">
          <button
            class="small"
            disabled={turn === 0}
            onClick={() => choose(turn - 1)}
            aria-label="Previous turn"
          >
            <span aria-hidden="true">←</span>
          </button>
          <TurnNumber label="Turn" turn={turn} total={total} choose={choose} />
          <button
            class="small"
            disabled={total !== null && turn + 1 >= total}
            onClick={() => choose(turn + 1)}
            aria-label="Next turn"
          >
            <span aria-hidden="true">→</span>
          </button>
          {it && <RoleBadge call={it} />}
          {it && (
            <span class="muted small">
              mean logprob <span class="number">{logprob(it.mean_logprob)}</span>
            </span>
          )}
          <a class="small" href={link(["rollout", id, "turns"], { turn })}>
            Messages and parameters
          </a>
        </div>
        <div class="segmented" role="group" aria-label="Which tokens">
          <Choice
            name={`Sampled ${count(it?.completion_ids || it?.completion_tokens)}`}
            isOn={part === "sampled"}
            part={null}
          />
          <Choice
            name={`Prompt ${count(it?.prompt_ids || it?.prompt_tokens)}`}
            isOn={part === "prompt"}
            part="prompt"
          />
        </div>
      </header>
      <Problem error={detail.error} retry={detail.reload} />
      {!it && detail.loading && <Spinner label="Loading the turn" />}
      {it?.not_exact && it.role !== "pending" && (
        <p class="notice part">The tokens of this turn are not exact. {flawWords(it.not_exact)}</p>
      )}
      {it && part === "sampled" && <SampledTokens id={id} turn={turn} token={token} detail={it} />}
      {it && part === "prompt" && <PromptIds id={id} turn={turn} token={token} detail={it} />}
    </div>
  );
}

function Choice({ name, isOn, part }: { name: string; isOn: boolean; part: string | null }) {
  return (
    <button aria-pressed={isOn} onClick={() => setParams({ part, token: null })}>
      {name}
    </button>
  );
}
