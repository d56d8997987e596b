// One rollout in the list: a line of the table, or a card where the screen is narrow.
import { memo } from "preact/compat";
import type { RolloutRow } from "../../api/types";
import { ago, count, dollars, reward, seconds, shortId, time, words } from "../../format";
import { link } from "../../router";
import { clock, slowClock } from "../../ui/clock";
import { StateBadge } from "../../ui/parts";
import { AgentText, visible } from "../../ui/text";
import { heardAt } from "./rows";

export const rowElementId = (id: string) => `rollout-${id}`;

interface Props {
  row: RolloutRow;
  index: number;
  isActive: boolean;
  isSelected: boolean;
  toggle: (row: RolloutRow, index: number, isRange: boolean) => void;
}

/** A live agent's record has no task, but says whose it is. */
function nameOf({ task_id, labels }: RolloutRow): string {
  return task_id || (labels.live ? `live agent ${labels.live}` : "unnamed task");
}

export const Row = memo(function Row({ row, index, isActive, isSelected, toggle }: Props) {
  const classes = ["rollout", row.verdict, isActive && "active", isSelected && "selected"];
  return (
    <div class={classes.filter(Boolean).join(" ")} role="row" aria-rowindex={index + 2}>
      <div class="c-check" role="cell">
        <input
          type="checkbox"
          checked={isSelected}
          aria-label={`Select ${visible(row.task_id)} ${shortId(row.rollout_id)}`}
          onClick={(click) => toggle(row, index, click.shiftKey)}
        />
      </div>
      <div class="c-state" role="cell">
        <StateBadge row={row} />
        <Ending row={row} />
      </div>
      <div class="c-task" role="cell">
        <a
          id={rowElementId(row.rollout_id)}
          class="open"
          href={link(["rollout", row.rollout_id])}
          title={visible(row.task_id)}
        >
          <AgentText text={nameOf(row)} class="line" />
        </a>
        {Object.entries(row.labels)
          .slice(0, 2)
          .map(([name, value]) => (
            <a
              key={name}
              class="tag"
              href={link(["rollouts"], { label: `${name}=${value}` })}
              title={`Only those with ${visible(`${name}=${value}`)}`}
            >
              <AgentText text={`${name}=${value}`} class="line" />
            </a>
          ))}
      </div>
      <div class="c-agent" role="cell" title={visible(`${row.agent} · ${row.model}`)}>
        <AgentText text={row.agent} class="line" />
        <span class="muted line"> · </span>
        <AgentText text={row.model || "no model"} class="line muted" />
      </div>
      <div class="c-reward number" role="cell">
        <Reward row={row} />
      </div>
      <div class="c-calls number" role="cell">
        {count(row.calls)}
        <span class="unit"> turns</span>
      </div>
      <div
        class="c-tokens number"
        role="cell"
        title={`${row.prompt_tokens.toLocaleString("en")} of prompts, ${row.completion_tokens.toLocaleString("en")} sampled`}
      >
        {count(row.prompt_tokens)} <span class="muted">→</span> {count(row.completion_tokens)}
      </div>
      <div class="c-trained number" role="cell">
        {row.status === "ended" ? count(row.trainable_tokens) : "–"}
      </div>
      <div class="c-cost number" role="cell">
        {dollars(row.cost_usd)}
      </div>
      <div class="c-time number" role="cell">
        <Elapsed row={row} />
      </div>
      <div class="c-started number muted" role="cell" title={time(row.started_at)}>
        <Ago at={row.started_at} />
      </div>
      <div class="c-id mono muted" role="cell" title={row.rollout_id}>
        {shortId(row.rollout_id)}
      </div>
    </div>
  );
});

/** How it ended, where that is not simply its end. */
function Ending({ row }: { row: RolloutRow }) {
  const text = row.ended && row.ended !== "completed" ? words(row.ended) : null;
  if (!text && !row.error) return null;
  return (
    <span class="ending muted" title={row.error ? visible(row.error) : undefined}>
      {text ?? "error"}
    </span>
  );
}

function Reward({ row }: { row: RolloutRow }) {
  if (row.reward === null || row.reward === undefined) return <>–</>;
  const share = Math.min(1, Math.max(0, row.reward));
  return (
    <span class={row.reward_valid ? "reward" : "reward invalid"}>
      <span class="track" aria-hidden="true">
        <span style={{ width: `${share * 100}%` }} />
      </span>
      {reward(row.reward)}
    </span>
  );
}

/** The time so far, which goes on by itself between two messages of the server. */
function Elapsed({ row }: { row: RolloutRow }) {
  if (row.status === "queued") return <>–</>;
  if (row.status === "ended") return <>{seconds(row.wall_s)}</>;
  const passed = Math.floor(row.wall_s + Math.max(0, clock.value - heardAt(row)));
  return <>{passed < 60 ? `${passed} s` : seconds(passed)}</>;
}

function Ago({ at }: { at: number }) {
  const isFresh = slowClock.value - at < 90;
  return <>{ago(at, isFresh ? clock.value : slowClock.value)}</>;
}

export function BlankRow() {
  return (
    <div class="rollout blank" role="row" aria-busy="true">
      <div role="cell">
        <span class="bone" />
        <span class="visually-hidden">Loading</span>
      </div>
    </div>
  );
}
