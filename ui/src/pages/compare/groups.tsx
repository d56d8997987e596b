// Groups of tries at one task as GRPO sees them: which have rewards that differ, and which teach nothing.
import { useMemo, useState } from "preact/hooks";
import type { GroupFigures } from "../../api/types";
import { ago, count, reward, seconds, time } from "../../format";
import { setParams } from "../../router";
import { Empty } from "../../ui/parts";
import { AgentText, visible } from "../../ui/text";
import { groupRows, SIGNALS, type Signal } from "./figures";
import type { Filters } from "../rollouts/filters";
import { listOf } from "./query";
import { Pager, percent } from "./series";

const PAGE = 25;
const BADGES: Record<Signal, string> = {
  mixed: "good",
  all_pass: "info",
  all_fail: "bad",
  close: "part",
  few: "",
};

export function GroupTable(props: {
  groups: GroupFigures[];
  filters: Filters;
  query: URLSearchParams;
}) {
  const { groups, filters, query } = props;
  const [start, setStart] = useState(0);
  const rows = useMemo(() => groupRows(groups), [groups]);
  const chosen = query.get("signal") as Signal | null;
  const shown = chosen ? rows.filter((row) => row.signal === chosen) : rows;
  if (rows.length === 0) {
    return (
      <Empty>
        No groups here. Rollouts that are started together (n on the start page, `rollcage run -n`)
        make one.
      </Empty>
    );
  }
  const from = start < shown.length ? start : 0;
  return (
    <>
      <div class="row signal-choice" role="group" aria-label="Which groups">
        <SignalButton name="all" count={rows.length} isChosen={!chosen} signal={null} />
        {(Object.keys(SIGNALS) as Signal[]).map((signal) => (
          <SignalButton
            key={signal}
            name={SIGNALS[signal].name}
            count={rows.filter((row) => row.signal === signal).length}
            isChosen={chosen === signal}
            signal={signal}
          />
        ))}
      </div>
      <div class="scroll-x" tabIndex={0} role="region" aria-label="Groups">
        <table>
          <thead>
            <tr>
              <th scope="col">Group</th>
              <th scope="col">Task</th>
              <th scope="col">Signal</th>
              <th scope="col">Rewards, 0 to 1</th>
              <th scope="col" class="number">
                Mean
              </th>
              <th scope="col" class="number">
                Pass / partial / fail
              </th>
              <th scope="col" class="number">
                Valid of all
              </th>
              <th scope="col" class="number">
                Trainable
              </th>
              <th scope="col" class="number">
                Mean time
              </th>
              <th scope="col" class="number">
                Started
              </th>
            </tr>
          </thead>
          <tbody>
            {shown.slice(from, from + PAGE).map(({ group, signal }) => (
              <GroupRow
                key={`${group.key.group} ${group.key.task}`}
                group={group}
                signal={signal}
                filters={filters}
              />
            ))}
          </tbody>
        </table>
      </div>
      {shown.length === 0 && <Empty>No group is like that.</Empty>}
      <Pager start={from} size={PAGE} total={shown.length} label="Groups" onStart={setStart} />
    </>
  );
}

function SignalButton(props: {
  name: string;
  count: number;
  isChosen: boolean;
  signal: Signal | null;
}) {
  return (
    <button
      class={`small ${props.isChosen ? "chosen" : ""}`}
      aria-pressed={props.isChosen}
      title={props.signal ? SIGNALS[props.signal].about : undefined}
      onClick={() => setParams({ signal: props.signal })}
    >
      {props.name} <span class="number muted">{count(props.count)}</span>
    </button>
  );
}

function GroupRow(props: { group: GroupFigures; signal: Signal; filters: Filters }) {
  const { group, signal, filters } = props;
  const { group: name = "", task = "" } = group.key;
  const isOpen = group.ended < group.rollouts;
  return (
    <tr>
      <th scope="row" class="mono cut" title={visible(name)}>
        <a href={listOf(filters, { group: name })}>
          <AgentText text={name || "no group"} />
        </a>
      </th>
      <td class="cut" title={visible(task)}>
        <AgentText text={task} />
      </td>
      <td>
        <span class={`badge ${BADGES[signal]}`} title={SIGNALS[signal].about}>
          {SIGNALS[signal].name}
        </span>
      </td>
      <td>
        <Strip rewards={group.rewards} />
      </td>
      <td class="number">{reward(group.mean_reward)}</td>
      <td class="number">
        {group.passed} / {group.partial} / {group.failed}
      </td>
      <td class="number">
        {group.valid} of {group.rollouts}
        {isOpen && <span class="muted small"> ({group.rollouts - group.ended} open)</span>}
      </td>
      <td class="number">{count(group.trainable_tokens)}</td>
      <td class="number">{seconds(group.mean_wall_s)}</td>
      <td class="number" title={time(group.latest_at)}>
        {ago(group.latest_at)}
      </td>
    </tr>
  );
}

/** Ten fields from 0 to 1; the more rewards lie in one, the fuller it is. */
function Strip({ rewards }: { rewards: number[] }) {
  const all = rewards.reduce((sum, it) => sum + it, 0);
  const words = rewards
    .map((it, index) => (it > 0 ? `${it} from ${index / 10} to ${(index + 1) / 10}` : ""))
    .filter(Boolean)
    .join(", ");
  return (
    <div class="strip" role="img" aria-label={words || "no rewards"} title={words}>
      {rewards.map((it, index) => (
        <span key={index}>
          {it > 0 && <i style={{ height: percent(Math.max(0.15, it / all)) }} />}
        </span>
      ))}
    </div>
  );
}
