// One message of a conversation.
import type { ComponentChildren } from "preact";
import type { Entry } from "../../../api/types";
import { seconds, words } from "../../../format";
import { link } from "../../../router";
import { Spinner } from "../../../ui/parts";
import { AgentText } from "../../../ui/text";
import { Fold, FoldedText } from "../folded";
import { type Live, outputOf, type SpokenCall, type Streamed } from "../live";
import { Tool } from "./tool";
import { firstLine } from "./tool-view";

const TEXT_LINES = 40;
/** Of what somebody opened. */
const OPENED_LINES = 400;

const SPEAKERS: Record<Entry["speaker"], string> = {
  system: "System",
  user: "User",
  assistant: "Model",
  tool: "Tool",
};

interface MessageProps {
  speaker: Entry["speaker"];
  label: string;
  isChosen?: boolean;
  isLive?: boolean;
  side: ComponentChildren;
  children: ComponentChildren;
}

function Message({ speaker, label, isChosen, isLive, side, children }: MessageProps) {
  const classes = ["entry", speaker, isChosen && "chosen", isLive && "live"];
  return (
    <article
      class={classes.filter(Boolean).join(" ")}
      aria-label={label}
      aria-current={isChosen ? "true" : undefined}
    >
      <header class="entry-side">
        <span class="entry-speaker">{SPEAKERS[speaker]}</span>
        {side}
      </header>
      <div class="entry-body">{children}</div>
    </article>
  );
}

interface EntryProps {
  rollout: string;
  entry: Entry;
  /** The conversation it is part of, where that is not the agent's own. */
  conversation: number | null;
  /** Unix seconds, from which times are counted. */
  startedAt: number | null;
  /** While it runs. */
  live: Live | null;
  isChosen: boolean;
}

export function EntryView(props: EntryProps) {
  const { rollout, entry, conversation, startedAt, live, isChosen } = props;
  const name = `${conversation ?? "own"}-${entry.entry}`;
  const place = { entry: entry.entry, conversation };
  return (
    <Message
      speaker={entry.speaker}
      label={`${SPEAKERS[entry.speaker]}, entry ${entry.entry}`}
      isChosen={isChosen}
      side={
        <>
          <span class="entry-place">
            <a href={link(["rollout", rollout, "transcript"], place)} title="Link to this entry">
              #{entry.entry}
            </a>
            {startedAt !== null && (
              <span title="Since the start of the rollout">
                {seconds(Math.max(0, entry.at - startedAt))}
              </span>
            )}
          </span>
          <span class="entry-links">
            <a href={link(["rollout", rollout, "turns"], { turn: entry.turn })}>
              turn {entry.turn}
            </a>
            {entry.speaker === "assistant" && (
              <a href={link(["rollout", rollout, "tokens"], { turn: entry.turn })}>tokens</a>
            )}
          </span>
        </>
      }
    >
      {entry.note && (
        <p class="entry-note">
          <AgentText text={entry.note} />
        </p>
      )}
      <Spoken
        name={name}
        speaker={entry.speaker}
        reasoning={entry.reasoning ?? ""}
        text={entry.text}
      />
      {entry.tool_calls.map((call, at) => (
        <Tool
          key={call.id ?? at}
          name={`${name}-${at}`}
          tool={call.name}
          args={call.arguments}
          result={call.result ?? (live && outputOf(live, call.id))}
          isWaiting={live !== null}
        />
      ))}
      {entry.attachments > 0 && (
        <p class="muted small">
          {entry.attachments === 1 ? "1 attachment" : `${entry.attachments} attachments`}, not shown
        </p>
      )}
      {entry.finish_reason && !["stop", "tool_calls"].includes(entry.finish_reason) && (
        <p class="entry-note">
          The model stopped: <AgentText text={words(entry.finish_reason)} />
        </p>
      )}
    </Message>
  );
}

interface SpokenProps {
  name: string;
  speaker: Entry["speaker"];
  reasoning: string;
  text: string;
}

function Spoken({ name, speaker, reasoning, text }: SpokenProps) {
  return (
    <>
      {reasoning && (
        <Fold
          name={`${name}-reasoning`}
          class="reasoning"
          title={<Preview what="Reasoning" text={reasoning} />}
        >
          <FoldedText name={`${name}-reasoning-text`} text={reasoning} lines={OPENED_LINES} />
        </Fold>
      )}
      {text &&
        (speaker === "system" ? (
          <Fold name={`${name}-system`} title={<Preview what="Instructions" text={text} />}>
            <FoldedText name={`${name}-system-text`} text={text} lines={OPENED_LINES} />
          </Fold>
        ) : (
          <FoldedText
            name={`${name}-text`}
            text={text}
            lines={TEXT_LINES}
            isTerminal={speaker === "tool"}
          />
        ))}
    </>
  );
}

function Preview({ what, text }: { what: string; text: string }) {
  return (
    <>
      <span class="fold-what">{what}</span>
      <span class="cut muted">
        <AgentText text={firstLine(text)} />
      </span>
    </>
  );
}

/** What a model said a moment ago: its place in the conversation is not known yet. */
export function SpokenView({ call, live }: { call: SpokenCall; live: Live }) {
  const name = `call-${call.number}`;
  const isRefused = call.status !== null && call.status >= 400;
  return (
    <Message
      speaker="assistant"
      label="Model, just now"
      isLive
      side={<span class="muted small">just now</span>}
    >
      {isRefused && <p class="entry-note">The endpoint answered HTTP {call.status}.</p>}
      <Spoken name={name} speaker="assistant" reasoning={call.reasoning} text={call.text} />
      {call.toolCalls.map((tool, at) => (
        <Tool
          key={at}
          name={`${name}-${at}`}
          tool={tool.name}
          args={tool.arguments}
          result={outputOf(live, tool.id)}
          isWaiting
        />
      ))}
    </Message>
  );
}

/** What a served agent says right now, as it says it. */
export function StreamedView({ streamed }: { streamed: Streamed }) {
  return (
    <Message
      speaker="assistant"
      label="Model, speaking"
      isLive
      side={
        <span class="muted small">
          <Spinner /> speaking
        </span>
      }
    >
      {streamed.reasoning && (
        <div class="reasoning open">
          <AgentText text={streamed.reasoning} />
        </div>
      )}
      {streamed.text && <AgentText text={streamed.text} />}
      {streamed.tools.map((tool) => (
        <Tool
          key={tool.id}
          name={`streamed-${tool.id}`}
          tool={tool.name}
          args={typeof tool.input === "string" ? tool.input : JSON.stringify(tool.input)}
          result={tool.output}
          isWaiting
        />
      ))}
      {streamed.request && (
        <p class="entry-note">
          The agent <AgentText text={streamed.request} />
        </p>
      )}
    </Message>
  );
}
