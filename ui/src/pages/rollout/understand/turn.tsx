// One turn in full.
import { useState } from "preact/hooks";
import { get, isSaved } from "../../../api/client";
import { useLoad } from "../../../api/load";
import type { TurnDetail } from "../../../api/types";
import { count, logprob, seconds, time, words } from "../../../format";
import { link, setParams } from "../../../router";
import { Copy, Facts, Problem, Spinner } from "../../../ui/parts";
import { AgentText } from "../../../ui/text";
import { useGrowth } from "./live";
import { MessageView, Messages } from "./messages";
import { RoleBadge } from "./parts";
import { Raw } from "./raw";
import { Sampling, Tools } from "./sampling";
import { finishWords, flawWords, LINKS, reasonWords } from "./words";

export function TurnView({ id, turn, total }: { id: string; turn: number; total: number }) {
  const [isWhole, setWhole] = useState(false);
  const messages = isWhole ? "all" : undefined;
  const detail = useLoad(
    (abort) => get<TurnDetail>(`v1/rollouts/${id}/turns/${turn}`, { messages }, abort),
    [id, turn, isWhole],
  );
  // It may have been answered, and what later turns do changes an earlier one's role. All of a long conversation is read
  // again only for its answer.
  useGrowth(id, () => {
    if (!isWhole || detail.data?.role === "pending") detail.reload();
  });
  const it = detail.data;
  return (
    <section class="panel turn-view" aria-label={`Turn ${turn}`}>
      <header>
        <h2>Turn {turn}</h2>
        {it && <RoleBadge call={it} />}
        {it && <code class="muted">{it.node_id}</code>}
        <div class="row actions">
          <Step turn={turn - 1} isThere={turn > 0} label="Previous turn" sign="↑" />
          <Step turn={turn + 1} isThere={turn + 1 < total} label="Next turn" sign="↓" />
          <a class="button small" href={link(["rollout", id, "tokens"], { turn })}>
            Tokens
          </a>
          <a class="button small" href={link(["rollout", id, "graph"], { turn })}>
            In the graph
          </a>
          <Copy text={() => Promise.resolve(location.href)} label="Copy link" />
        </div>
      </header>
      <div class="body stack" tabIndex={0} role="region" aria-label={`Turn ${turn} in full`}>
        <Problem error={detail.error} retry={detail.reload} />
        {!it && detail.loading && <Spinner label="Loading the turn" />}
        {it && (
          <>
            <Notices detail={it} />
            <Numbers detail={it} />
            <Links id={id} detail={it} />
            <Messages
              title={isWhole ? "Messages of the request" : "New messages"}
              messages={it.messages}
              note={
                it.messages_before > 0 && !isWhole
                  ? `after ${it.messages_before} that earlier turns sent or got`
                  : undefined
              }
              action={
                (it.messages_before > 0 || isWhole) && !isSaved() ? (
                  <button class="small" onClick={() => setWhole(!isWhole)}>
                    {isWhole ? "Only new ones" : "Show all"}
                  </button>
                ) : undefined
              }
            />
            <section class="stack">
              <h3>Reply</h3>
              {it.message ? (
                <MessageView message={it.message} />
              ) : (
                <p class="muted">{it.role === "pending" ? "No answer yet." : "There is none."}</p>
              )}
            </section>
            <Sampling detail={it} />
            <Tools tools={it.tools} />
            {!isSaved() && <Raw id={id} turn={turn} />}
          </>
        )}
      </div>
    </section>
  );
}

function Step(props: { turn: number; isThere: boolean; label: string; sign: string }) {
  return (
    <button
      class="small"
      disabled={!props.isThere}
      aria-label={props.label}
      title={props.label}
      onClick={() => setParams({ turn: props.turn })}
    >
      <span aria-hidden="true">{props.sign}</span>
    </button>
  );
}

function Notices({ detail: it }: { detail: TurnDetail }) {
  const error = it.upstream_error ?? null;
  return (
    <>
      {!["agent", "pending", "failed"].includes(it.role) && (
        <p class="notice">{reasonWords(it)}.</p>
      )}
      {(it.error || error !== null) && (
        <div class="notice bad">
          <strong>
            The endpoint gave no completion
            {it.upstream_status ? ` (HTTP ${it.upstream_status})` : ""}
          </strong>
          {it.error && (
            <p>
              <AgentText text={it.error} />
            </p>
          )}
          {error !== null && (
            <details>
              <summary>What it answered</summary>
              <pre>
                <AgentText text={JSON.stringify(error, null, 2)} />
              </pre>
            </details>
          )}
        </div>
      )}
      {it.not_exact && it.role !== "failed" && (
        <p class="notice part">Its tokens are not to be trained on. {flawWords(it.not_exact)}</p>
      )}
      {it.unfit && (
        <p class="notice part">
          Unfit for training: <AgentText text={it.unfit} />
        </p>
      )}
    </>
  );
}

function Numbers({ detail: it }: { detail: TurnDetail }) {
  const trained = it.is_trained ? "yes" : "no";
  return (
    <Facts
      facts={[
        ["Prompt", `${count(it.prompt_tokens)} tokens`],
        ["Cached", it.cached_tokens === null ? null : `${count(it.cached_tokens)} tokens`],
        ["Sampled", `${count(it.completion_tokens)} tokens`],
        [
          "Put into the cache",
          it.usage?.cache_write_tokens ? `${count(it.usage.cache_write_tokens)} tokens` : null,
        ],
        ["Ids captured", `${count(it.prompt_ids)} + ${count(it.completion_ids)}`],
        ["Mean logprob", logprob(it.mean_logprob)],
        [
          "Finish reason",
          it.finish_reason && (
            <span title={finishWords(it.finish_reason)}>
              <AgentText text={it.finish_reason} />
            </span>
          ),
        ],
        ["Answered in", seconds(it.latency_s)],
        ["Asked at", time(it.at)],
        ["Model", it.model && <AgentText text={it.model} />],
        ["Trained on", it.role === "pending" ? null : trained],
        ["Logprobs are of", it.logprobs_of && words(it.logprobs_of)],
        ["The agent speaks", words(it.dialect)],
        ["Agent's session", it.harness_session_id && <AgentText text={it.harness_session_id} />],
        ["HTTP status", it.upstream_status === 200 ? null : it.upstream_status],
      ]}
    />
  );
}

function Links({ id, detail: it }: { id: string; detail: TurnDetail }) {
  const special: [keyof typeof LINKS, number | null | undefined][] = [
    ["retokenised", it.retokenised_from],
    ["changed", it.changed_from],
    ["left_out", it.left_out],
    ["compacts", it.compacts],
    ["spawned", it.spawned_by],
  ];
  const links = special.filter(
    (one): one is [keyof typeof LINKS, number] => typeof one[1] === "number",
  );
  if (
    it.before !== null &&
    it.before !== undefined &&
    !links.some(([, turn]) => turn === it.before)
  )
    links.unshift(["continues", it.before]);
  const isStart = it.root === it.turn;
  if (links.length === 0 && !isStart) return null;
  return (
    <p class="row small links">
      {links.map(([kind, turn]) => (
        <a
          key={kind}
          class={`link-chip ${kind}`}
          href={link(["rollout", id, "turns"], { turn })}
          title={LINKS[kind][1]}
        >
          {LINKS[kind][0]} {kind === "spawned" ? "by " : ""}turn {turn}
        </a>
      ))}
      {links.length === 0 && isStart && <span class="muted">Starts a conversation.</span>}
    </p>
  );
}
