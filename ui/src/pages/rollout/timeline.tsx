// Where a rollout's time goes, phase by phase.
import { useEffect, useState } from "preact/hooks";
import { seconds } from "../../format";
import { Spinner } from "../../ui/parts";
import { AgentText } from "../../ui/text";
import { doing, endedSegments, liveSegments, type Segment } from "./phases";
import type { Rollout } from "./use-rollout";

const TICK_MS = 200;

/** This machine's Unix seconds, again and again while something runs. */
export function useNow(isRunning: boolean): number {
  const [now, setNow] = useState(() => Date.now() / 1000);
  useEffect(() => {
    if (!isRunning) return;
    const timer = setInterval(() => setNow(Date.now() / 1000), TICK_MS);
    return () => clearInterval(timer);
  }, [isRunning]);
  return now;
}

export function Timeline({ rollout }: { rollout: Rollout }) {
  const { result, progress, live, clockAhead } = rollout;
  const now = useNow(!result) + clockAhead;
  const segments = result ? endedSegments(result) : liveSegments(live, progress, now);
  const isIdle = live.isIdle || progress?.idle === true;
  const words = result
    ? `done in ${seconds(result.wall_s)}`
    : (doing(live, progress) ?? progress?.doing ?? progress?.phase ?? "");
  const start =
    (live.gaps > 0 ? null : (live.phases[0]?.at ?? live.queuedAt)) ?? progress?.started_at ?? null;
  return (
    <div class="timeline">
      <div class="timeline-words">
        <span class="cut" aria-live="polite">
          {!result && !isIdle && <Spinner />} <AgentText text={words} />
        </span>
        {!result && start !== null && (
          <span class="number timeline-elapsed" title="Since the start">
            {seconds(Math.max(0, now - start))}
          </span>
        )}
      </div>
      <div class="timeline-bar" aria-hidden="true">
        {segments.map((segment) => (
          <Bar key={segment.phase} segment={segment} />
        ))}
      </div>
      <ol class="timeline-phases" aria-label="Phases">
        {segments.map(({ phase, seconds: value, state }) => (
          <li
            key={phase}
            class={state}
            title={value !== null ? undefined : result ? "Not reached" : UNTOLD[state]}
          >
            <span class={`timeline-dot ${phase}`} aria-hidden="true" />
            <span>{phase}</span>
            <span class="number">{value === null ? "–" : seconds(value)}</span>
          </li>
        ))}
      </ol>
    </div>
  );
}

/** Why a phase has no time. */
const UNTOLD: Record<Segment["state"], string> = {
  done: "Over before this page was opened; its time is told at the end",
  active: "It began before this page was opened; its time is told at the end",
  ahead: "Still to come",
  skipped: "Left out",
};

/** In microseconds, since shares that sum up to less than 1 would not fill the bar. */
const growth = (value: number | null, state: Segment["state"]) =>
  value === null ? (state === "active" ? 1 : 0) : value * 1e6;

function Bar({ segment: { phase, seconds: value, state } }: { segment: Segment }) {
  if (value === null && (state === "done" || state === "skipped")) return null;
  return (
    <span
      class={`timeline-part ${phase} ${state}`}
      style={{ flexGrow: growth(value, state) }}
      title={`${phase}: ${seconds(value)}`}
    />
  );
}
