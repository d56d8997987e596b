// The ids of a prompt beside the messages that they were made from.
import { useState } from "preact/hooks";
import { get, isSaved } from "../../../api/client";
import { useLoad } from "../../../api/load";
import type { Token, TokenPage, TurnDetail } from "../../../api/types";
import { link, setParams } from "../../../router";
import { Empty, Problem, Spinner } from "../../../ui/parts";
import { AgentText } from "../../../ui/text";
import { VirtualList } from "../../../ui/virtual";
import { quoted } from "./blocks";
import { useIsNarrow } from "./place";
import { Messages } from "./messages";
import { usePages } from "./pages";
import { flawWords } from "./words";

const PAGE = 2000;

interface Props {
  id: string;
  turn: number;
  token: number | null;
  detail: TurnDetail;
}

export function PromptIds({ id, turn, token, detail }: Props) {
  // Ids of a prompt come with the answer.
  const isAnswered = detail.role !== "pending";
  const perRow = useIsNarrow() ? 5 : 10;
  const ids = usePages<Token>(
    PAGE,
    async (start, limit, abort) => {
      const query = { part: "prompt", start, limit };
      const page = await get<TokenPage>(`v1/rollouts/${id}/turns/${turn}/tokens`, query, abort);
      return { items: page.tokens, total: page.total };
    },
    [id, turn, isAnswered],
  );
  if (ids.total === null && ids.error) return <Problem error={ids.error} retry={ids.retry} />;
  if (ids.total === null) return <Spinner label="Loading the prompt's ids" />;
  const total = ids.total;
  const chosen = token !== null && token < total ? token : null;
  const known = chosen === null ? undefined : ids.at(chosen);
  const rows = Math.ceil(total / perRow);
  const move = (event: KeyboardEvent) => {
    const steps: Record<string, number> = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: perRow,
      ArrowUp: -perRow,
    };
    const step = steps[event.key];
    if (step === undefined || event.ctrlKey || event.metaKey || event.altKey || total === 0) return;
    event.preventDefault();
    const next = chosen === null ? 0 : chosen + step;
    if (next >= 0 && next < total) setParams({ token: next });
  };
  return (
    <div class="prompt-page">
      <section class="panel prompt-ids" aria-label="Ids of the prompt">
        <header>
          <h2>Ids</h2>
          <span class="muted small">
            {total.toLocaleString("en")} ·{" "}
            <span class="legend">
              <span class="id earlier">sampled in an earlier turn</span>
            </span>
          </span>
        </header>
        {total === 0 ? (
          <Empty>
            {isAnswered
              ? `No id of this prompt is known. ${detail.not_exact ? flawWords(detail.not_exact) : ""}`
              : "The model is answering. The prompt's ids come with the answer."}
          </Empty>
        ) : (
          <div
            class="ids"
            onKeyDown={move}
            onClick={(event) => {
              const found = (event.target as Element).closest<HTMLElement>("[data-id]");
              if (found) setParams({ token: found.dataset.id });
            }}
          >
            <VirtualList
              key={perRow}
              label="Ids of the prompt; arrow keys move"
              count={rows}
              estimate={() => 26}
              align="auto"
              scrollTo={chosen === null ? null : Math.floor(chosen / perRow)}
              onRange={(first, last) =>
                ids.need(first * perRow, Math.min(total, (last + 1) * perRow) - 1)
              }
              render={(row) => (
                <IdRow
                  start={row * perRow}
                  end={Math.min(total, (row + 1) * perRow)}
                  at={(n) => ids.at(n)}
                  chosen={chosen}
                />
              )}
            />
          </div>
        )}
        <Problem error={ids.error} retry={ids.retry} />
        <footer class="small" aria-live="polite">
          {chosen === null || !known ? (
            <span class="muted">
              Endpoints tell no texts of prompt ids; those that were sampled before have theirs.
            </span>
          ) : (
            <PromptToken id={id} index={chosen} token={known} />
          )}
        </footer>
      </section>
      <PromptMessages id={id} turn={turn} />
    </div>
  );
}

function IdRow(props: {
  start: number;
  end: number;
  at: (index: number) => Token | undefined;
  chosen: number | null;
}) {
  const cells = [];
  for (let index = props.start; index < props.end; index += 1) {
    const token = props.at(index);
    const from = token?.sampled_in ?? null;
    const classes = `id ${from === null ? "" : "earlier"} ${index === props.chosen ? "chosen" : ""}`;
    cells.push(
      <span
        key={index}
        class={classes}
        data-id={index}
        title={from === null ? `token ${index}` : `token ${index}, sampled in turn ${from}`}
      >
        {token ? (token.id ?? "?") : "…"}
      </span>,
    );
  }
  return (
    <div class="id-row">
      <span class="muted offset">{props.start}</span>
      {cells}
    </div>
  );
}

function PromptToken({ id, index, token }: { id: string; index: number; token: Token }) {
  const from = token.sampled_in ?? null;
  return (
    <span class="row">
      <span>
        token {index}: id <strong>{token.id ?? "not told"}</strong>
      </span>
      {token.text !== null && token.text !== undefined && (
        <span class="mono">
          <AgentText text={quoted(token.text)} />
        </span>
      )}
      {from === null ? (
        <span class="muted">not known to have been sampled in this rollout</span>
      ) : (
        <a href={link(["rollout", id, "tokens"], { turn: from })}>sampled in turn {from}</a>
      )}
    </span>
  );
}

function PromptMessages({ id, turn }: { id: string; turn: number }) {
  // A saved file holds each message once, with the turn that sent it first.
  const [isWhole, setWhole] = useState(!isSaved());
  const detail = useLoad(
    (abort) =>
      get<TurnDetail>(
        `v1/rollouts/${id}/turns/${turn}`,
        { messages: isWhole ? "all" : undefined },
        abort,
      ),
    [id, turn, isWhole],
  );
  const before = detail.data?.messages_before ?? 0;
  return (
    <section class="panel prompt-messages">
      <div class="body" tabIndex={0} role="region" aria-label="Messages of the request">
        <Problem error={detail.error} retry={detail.reload} />
        {!detail.data && detail.loading && <Spinner label="Loading the messages" />}
        {detail.data && (
          <Messages
            title="Messages"
            messages={detail.data.messages}
            note={
              before > 0 && !isWhole ? `after ${before} that earlier turns sent or got` : undefined
            }
            action={
              isSaved() ? undefined : (
                <button class="small" onClick={() => setWhole(!isWhole)}>
                  {isWhole ? "Only new ones" : "Show all"}
                </button>
              )
            }
          />
        )}
      </div>
    </section>
  );
}
