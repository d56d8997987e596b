// The conversation, as it streams and afterwards.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { TranscriptPage } from "../../../api/types";
import { setParams } from "../../../router";
import { useKeys } from "../../../ui/keys";
import { Empty, Problem, Spinner } from "../../../ui/parts";
import { visible } from "../../../ui/text";
import { VirtualList } from "../../../ui/virtual";
import { unsaid } from "../live";
import { noTurns } from "../no-turns";
import type { Rollout } from "../use-rollout";
import { EntryView, SpokenView, StreamedView } from "./entry";
import { MessageBox } from "./message-box";
import { matches } from "./search";
import { useTranscript } from "./use-transcript";

const ESTIMATE_PX = 130;

export function TranscriptTab({ rollout, query }: { rollout: Rollout; query: URLSearchParams }) {
  const { id, live, result, progress } = rollout;
  const conversation = number(query.get("conversation"));
  const chosen = number(query.get("entry"));
  const isRunning = !result;
  // Whoever saw it run stays at the end when the last results come in.
  const hasRun = useRef(isRunning);
  const transcript = useTranscript(id, conversation, {
    isQueued: progress?.status === "queued",
    isRunning,
    said: live.said,
    gaps: live.gaps,
    callCount: live.callCount,
  });
  const { total, entries } = transcript;
  const isOwn = conversation === null;
  const spoken =
    isRunning && isOwn ? live.calls.filter((it) => it.number > transcript.coveredCalls) : [];
  const streamed = isRunning && isOwn ? unsaid(live) : null;
  const count = total + spoken.length + (streamed ? 1 : 0);
  const startedAt = result?.started_at ?? progress?.started_at ?? null;

  const draw = (place: number) => {
    const entry = entries.get(place);
    if (entry)
      return (
        <EntryView
          rollout={id}
          entry={entry}
          conversation={conversation}
          startedAt={startedAt}
          live={isRunning ? live : null}
          isChosen={place === chosen}
        />
      );
    if (place < total) return <div class="entry-waiting muted">Loading…</div>;
    const call = spoken[place - total];
    if (call) return <SpokenView call={call} live={live} />;
    return streamed ? <StreamedView streamed={streamed} /> : null;
  };

  useKeys((key) => {
    const step = { j: 1, k: -1 }[key];
    if (!step || total === 0) return false;
    const next = chosen === null ? (step > 0 ? 0 : total - 1) : chosen + step;
    setParams({ entry: Math.min(total - 1, Math.max(0, next)) });
    return true;
  });
  const panel = useRef<HTMLElement>(null);
  const toEnd = () => {
    setParams({ entry: null });
    const list = panel.current?.querySelector(".transcript-list");
    list?.scrollTo({ top: list.scrollHeight });
  };

  return (
    <section class="panel transcript" ref={panel}>
      <header class="transcript-bar">
        <ConversationPicker conversations={transcript.conversations} current={transcript.root} />
        <Search transcript={transcript} />
        <span class="muted small number transcript-count">
          {isRunning && (
            <>
              <Spinner />{" "}
            </>
          )}
          {transcript.isLoaded &&
            `${total.toLocaleString("en")} ${total === 1 ? "entry" : "entries"}`}
        </span>
        <button class="small" onClick={toEnd}>
          To the end
        </button>
      </header>
      <Problem error={transcript.error} />
      {count === 0 ? (
        <Empty>
          {transcript.isLoaded || progress?.status === "queued" ? (
            noTurns(rollout, "What is said appears here as it is said.")
          ) : (
            <Spinner label="Loading" />
          )}
        </Empty>
      ) : (
        <VirtualList
          key={conversation}
          class="transcript-list"
          label="Transcript; j and k go from entry to entry"
          count={count}
          estimate={() => ESTIMATE_PX}
          isMeasured
          render={draw}
          scrollTo={transcript.isLoaded ? chosen : null}
          align="start"
          settled={chosen !== null && entries.has(chosen)}
          follow={hasRun.current && chosen === null}
          grown={streamed ?? transcript}
          onRange={transcript.see}
        />
      )}
      <MessageBox rollout={rollout} />
    </section>
  );
}

function number(text: string | null): number | null {
  const value = Number(text);
  return text && Number.isInteger(value) && value >= 0 ? value : null;
}

const KINDS: Record<string, string> = {
  agent: "Agent",
  subagent: "Subagent",
  auxiliary: "Auxiliary",
  discarded: "Discarded",
};

interface PickerProps {
  conversations: TranscriptPage["conversations"];
  current: number | null;
}

function ConversationPicker({ conversations, current }: PickerProps) {
  if (conversations.length < 2) return null;
  const choose = (value: string) => {
    const isFirst = value === `${conversations[0]?.root}`;
    setParams({ conversation: isFirst ? null : value, entry: null }, "push");
  };
  return (
    <label class="row conversation-picker">
      <span class="small muted">Conversation</span>
      <select value={`${current}`} onChange={(change) => choose(change.currentTarget.value)}>
        {conversations.map((it) => (
          <option key={it.root} value={`${it.root}`}>
            {KINDS[it.kind] ?? it.kind} · {it.turns} {it.turns === 1 ? "turn" : "turns"} ·{" "}
            {visible(it.title).slice(0, 60)}
          </option>
        ))}
      </select>
    </label>
  );
}

function Search({ transcript }: { transcript: ReturnType<typeof useTranscript> }) {
  const [text, setText] = useState("");
  const at = useRef(-1);
  const { entries, total } = transcript;
  const found = useMemo(
    () => matches(entries.values(), text),
    [text, entries.size, transcript.coveredCalls, total],
  );
  useEffect(() => {
    at.current = -1;
  }, [text]);
  const step = (by: number) => {
    if (found.length === 0) return;
    at.current = (at.current + by + found.length) % found.length;
    setParams({ entry: found[at.current] ?? null });
  };
  const isPart = entries.size < total;
  return (
    <form
      class="row transcript-search"
      role="search"
      onSubmit={(submit) => {
        submit.preventDefault();
        step(1);
      }}
    >
      <input
        type="search"
        placeholder="Search the transcript"
        aria-label="Search the transcript"
        value={text}
        onInput={(input) => setText(input.currentTarget.value)}
      />
      {text && (
        <>
          <span class="small muted number" aria-live="polite">
            {found.length} found{isPart ? ` in ${entries.size} loaded` : ""}
          </span>
          <button type="button" class="small" disabled={!found.length} onClick={() => step(-1)}>
            Previous
          </button>
          <button type="submit" class="small" disabled={!found.length}>
            Next
          </button>
          {isPart && (
            <button type="button" class="small" onClick={transcript.loadAll}>
              Load all
            </button>
          )}
        </>
      )}
    </form>
  );
}
