// Sampled tokens as a text that flows, coloured by how likely each was.
import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { TurnDetail } from "../../../api/types";
import { setParams } from "../../../router";
import { Empty, Problem, Spinner } from "../../../ui/parts";
import { VirtualList } from "../../../ui/virtual";
import { blockOf, blocks } from "./blocks";
import { TokenCard } from "./card";
import { Legend } from "./legend";
import { level, UNLIKELY } from "./scale";
import { useSampled } from "./sampled";
import { Sparkline } from "./sparkline";
import { TokenBlock } from "./token-block";
import { flawWords } from "./words";

export type Colouring = "logprob" | "mask" | "none";

interface Props {
  id: string;
  turn: number;
  token: number | null;
  detail: TurnDetail;
}

export function SampledTokens({ id, turn, token, detail }: Props) {
  const isAnswered = detail.role !== "pending";
  const sampled = useSampled(id, turn, isAnswered);
  const { tokens, total } = sampled;
  const [colouring, setColouring] = useState<Colouring>("logprob");
  const [hasMarks, setMarks] = useState(false);
  const [hasIds, setIds] = useState(false);
  const hovered = useSignal<number | null>(null);
  const cut = useMemo(() => blocks(tokens), [tokens]);
  const box = useRef<HTMLDivElement>(null);
  const wantsFocus = useRef(false);
  // A deep link beyond what is there shows the last token.
  const chosen = token === null || tokens.length === 0 ? null : Math.min(token, tokens.length - 1);

  // Whoever comes with a link to a token wants to see it, below whatever stands above.
  const isThere = tokens.length > 0;
  useEffect(() => {
    if (isThere && token !== null) box.current?.parentElement?.scrollIntoView({ block: "nearest" });
  }, [isThere]);
  const isWhole = tokens.length === total;
  useEffect(() => {
    if (chosen === null) return;
    let [frame, tries] = [0, 0];
    // The list brings the token's block into view, which takes a few frames where blocks have to be measured first.
    const look = () => {
      const found = box.current?.querySelector<HTMLElement>(`[data-token="${chosen}"]`);
      if (!found && (tries += 1) < 40) frame = requestAnimationFrame(look);
      found?.scrollIntoView({ block: "nearest" });
      if (found && wantsFocus.current) found.focus({ preventScroll: true });
      if (found) wantsFocus.current = false;
    };
    frame = requestAnimationFrame(look);
    return () => cancelAnimationFrame(frame);
  }, [chosen, isWhole]);

  if (!isAnswered)
    return (
      <Empty>
        <Spinner /> The model is answering. Its tokens appear here once the answer is complete.
      </Empty>
    );
  if (sampled.error && tokens.length === 0)
    return <Problem error={sampled.error} retry={sampled.retry} />;
  if (total === null) return <Spinner label="Loading the tokens" />;
  if (total === 0) return <Empty>{whyNone(detail)}</Empty>;

  const choose = (index: number) => setParams({ token: index });
  const move = (index: number) => {
    wantsFocus.current = true;
    choose(Math.max(0, Math.min(tokens.length - 1, index)));
  };
  const nextUnlikely = (step: 1 | -1) => {
    for (let at = (chosen ?? -1) + step; at >= 0 && at < tokens.length; at += step)
      if ((level(tokens[at]!.logprob) ?? 0) >= UNLIKELY) return move(at);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = chosen ?? 0;
    const to: Record<string, () => void> = {
      ArrowRight: () => move(chosen === null ? 0 : at + 1),
      ArrowLeft: () => move(at - 1),
      Home: () => move(0),
      End: () => move(tokens.length - 1),
      n: () => nextUnlikely(1),
      p: () => nextUnlikely(-1),
      Escape: () => setParams({ token: null }),
    };
    const act = to[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };
  const indexAt = (event: Event) => {
    const found = (event.target as Element).closest<HTMLElement>("[data-token]");
    return found ? Number(found.dataset.token) : null;
  };
  const hasLogprobs = tokens.some((one) => typeof one.logprob === "number");
  return (
    <div class="token-page">
      <section class="panel token-panel" aria-label="Sampled tokens">
        <div class="token-tools">
          <label class="row small">
            Colour
            <select
              value={colouring}
              onChange={(event) => setColouring(event.currentTarget.value as Colouring)}
            >
              <option value="logprob">by probability</option>
              <option value="mask">by loss mask</option>
              <option value="none">off</option>
            </select>
          </label>
          <label class="row small">
            <input
              type="checkbox"
              checked={hasMarks}
              onChange={(event) => setMarks(event.currentTarget.checked)}
            />
            White space
          </label>
          <label class="row small">
            <input
              type="checkbox"
              checked={hasIds}
              onChange={(event) => setIds(event.currentTarget.checked)}
            />
            Ids
          </label>
          {hasLogprobs && (
            <span class="row small">
              <button
                class="small"
                onClick={() => nextUnlikely(-1)}
                title="Previous token below 5% (p)"
              >
                ‹ unlikely
              </button>
              <button class="small" onClick={() => nextUnlikely(1)} title="Next token below 5% (n)">
                unlikely ›
              </button>
            </span>
          )}
        </div>
        {hasLogprobs ? (
          <Sparkline tokens={tokens} total={total} chosen={chosen} choose={choose} />
        ) : (
          <p class="notice small">
            There are no logprobs, so nothing can be said of probabilities.
          </p>
        )}
        <div
          ref={box}
          class={`token-text by-${colouring} ${hasIds ? "with-ids" : ""}`}
          onPointerOver={(event) => (hovered.value = indexAt(event))}
          onPointerLeave={() => (hovered.value = null)}
          onClick={(event) => {
            const index = indexAt(event);
            if (index !== null) choose(index);
          }}
          onKeyDown={onKeyDown}
        >
          <VirtualList
            key={`${turn} ${hasIds}`}
            label="Sampled tokens; arrow keys move from token to token, n and p between unlikely ones"
            count={cut.length}
            estimate={(index) => {
              const block = cut[index];
              return block ? 24 * Math.max(1, Math.ceil((block.end - block.start) / 20)) : 24;
            }}
            isMeasured
            align="auto"
            settled={isWhole}
            scrollTo={chosen === null ? null : blockOf(cut, chosen)}
            render={(index) => {
              const block = cut[index];
              return block ? (
                <TokenBlock
                  tokens={tokens}
                  block={block}
                  hasMarks={hasMarks}
                  hasIds={hasIds}
                  colouring={colouring}
                  chosen={
                    chosen !== null && chosen >= block.start && chosen < block.end ? chosen : null
                  }
                  isEntry={chosen === null && index === 0}
                />
              ) : null;
            }}
          />
        </div>
        <footer class="small muted row spread">
          <Legend colouring={colouring} />
          <span class="number">
            {tokens.length < total ? `${tokens.length.toLocaleString("en")} of ` : ""}
            {total.toLocaleString("en")} tokens
          </span>
        </footer>
        {sampled.error && <Problem error={sampled.error} retry={sampled.retry} />}
      </section>
      <TokenCard
        id={id}
        turn={turn}
        tokens={tokens}
        hovered={hovered}
        pinned={chosen}
        detail={detail}
      />
    </div>
  );
}

function whyNone(detail: TurnDetail): string {
  if (detail.role === "failed") return "The endpoint gave no completion, so nothing was sampled.";
  const why = detail.not_exact ? flawWords(detail.not_exact) : "The endpoint told none.";
  return `No token of this turn was captured. ${why}`;
}
