// What is known of one sampled token.
import type { Signal } from "@preact/signals";
import type { Token, TurnDetail } from "../../../api/types";
import { logprob } from "../../../format";
import { link, setParams } from "../../../router";
import { Copy } from "../../../ui/parts";
import { AgentText } from "../../../ui/text";
import { quoted } from "./blocks";
import { level, percent } from "./scale";

interface Props {
  id: string;
  turn: number;
  tokens: Token[];
  hovered: Signal<number | null>;
  pinned: number | null;
  detail: TurnDetail;
}

export function TokenCard({ id, turn, tokens, hovered, pinned, detail }: Props) {
  const index = hovered.value ?? pinned;
  const token = index === null ? undefined : tokens[index];
  const isPinned = index !== null && index === pinned;
  return (
    <aside
      class={`panel token-card ${pinned === null ? "" : "pinned"}`}
      aria-label="The chosen token"
    >
      {index === null || !token ? (
        <p class="muted">
          Point at a token, or walk with the arrow keys. <kbd>n</kbd> and <kbd>p</kbd> lead to the
          unlikely ones; a click pins a token and puts it into the address.
        </p>
      ) : (
        <div aria-live={isPinned ? "polite" : "off"} class="stack">
          <div class="row spread">
            <span class="muted small number">
              token {index} of {tokens.length.toLocaleString("en")}
            </span>
            <span class="row">
              {isPinned && (
                <>
                  <Copy
                    text={() =>
                      Promise.resolve(
                        location.href.split("#")[0] +
                          link(["rollout", id, "tokens"], { turn, token: index }),
                      )
                    }
                    label="Copy link"
                  />
                  <button class="small" onClick={() => setParams({ token: null })}>
                    Unpin
                  </button>
                </>
              )}
            </span>
          </div>
          <p class="token-quote mono">
            {token.text === null || token.text === undefined ? (
              <span class="muted">text not told</span>
            ) : (
              <AgentText text={quoted(token.text)} />
            )}
          </p>
          <dl class="token-facts">
            <dt>Probability</dt>
            <dd>
              <span class={`swatch lp${level(token.logprob) ?? "-none"}`} aria-hidden="true" />
              {percent(token.logprob)}
            </dd>
            <dt>Logprob</dt>
            <dd>{logprob(token.logprob)}</dd>
            <dt>Id</dt>
            <dd>{token.id ?? "not told"}</dd>
            <dt>Loss mask</dt>
            <dd>{token.mask === 1 ? "1, trained on" : "0, not trained on"}</dd>
            <dt>Rank</dt>
            <dd>{rankWords(token)}</dd>
          </dl>
          <Alternatives token={token} detail={detail} />
        </div>
      )}
    </aside>
  );
}

/** Where a token stands among the captured ones: from 0, or -1. */
export function rankOf(token: Token): number {
  const { id, text } = token;
  return token.alternatives.findIndex((other) => {
    const hasIds = typeof other.id === "number" && typeof id === "number";
    return hasIds ? other.id === id : other.text === text && other.logprob === token.logprob;
  });
}

function rankWords(token: Token): string {
  const captured = token.alternatives.length;
  if (captured === 0) return "not captured";
  const rank = rankOf(token);
  return rank < 0 ? `not among the first ${captured}` : `${rank + 1} of ${captured} captured`;
}

function Alternatives({ token, detail }: { token: Token; detail: TurnDetail }) {
  if (token.alternatives.length === 0)
    return (
      <p class="muted small">
        {detail.has_alternatives
          ? "The endpoint told no alternatives for this token."
          : "Alternatives were not captured. Rollouts with top_logprobs above 0 have them, where the endpoint tells them."}
      </p>
    );
  const rank = rankOf(token);
  const rows = token.alternatives.map((other, at) => ({ ...other, isSampled: at === rank }));
  if (rank < 0)
    rows.push({ id: token.id, text: token.text ?? "", logprob: token.logprob, isSampled: true });
  const known = rows.reduce(
    (sum, { logprob }) => sum + (logprob == null ? 0 : Math.exp(logprob)),
    0,
  );
  return (
    <section>
      <h2 class="in-place">In its place</h2>
      <ol class="alternatives">
        {rows.map((row, at) => (
          <li key={at} class={row.isSampled ? "sampled" : ""}>
            <span class="cut mono" title={row.id == null ? undefined : `id ${row.id}`}>
              <AgentText text={quoted(row.text)} />
              {row.isSampled && <span class="visually-hidden"> (sampled)</span>}
            </span>
            <span class="number small">{percent(row.logprob)}</span>
            <Bar share={row.logprob == null ? 0 : Math.exp(row.logprob)} />
          </li>
        ))}
        {known < 0.9995 && (
          <li class="rest">
            <span class="muted small">everything else</span>
            <span class="number small">{percent(Math.log(1 - known))}</span>
            <Bar share={1 - known} />
          </li>
        )}
      </ol>
    </section>
  );
}

function Bar({ share }: { share: number }) {
  return (
    <span class="bar" aria-hidden="true">
      <span style={{ width: `${Math.max(0, Math.min(100, share * 100)).toFixed(2)}%` }} />
    </span>
  );
}
