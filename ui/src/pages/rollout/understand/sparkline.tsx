// How surprising a call's tokens are, from its first to its last.
import { useMemo } from "preact/hooks";
import type { Token } from "../../../api/types";
import { level, stretches } from "./scale";

const BARS = 300;
const HEIGHT = 40;
/** A logprob of this or less fills the height: 0.03%. */
const FLOOR = -8;

interface Props {
  tokens: Token[];
  total: number;
  chosen: number | null;
  choose: (index: number) => void;
}

/** One bar for each stretch of tokens: as high as its least likely token is unlikely, and darker up to the mean. */
export function Sparkline({ tokens, total, chosen, choose }: Props) {
  // Tokens that are still to come keep their place.
  const bars = useMemo(() => {
    const logprobs = tokens.map((one) => one.logprob);
    logprobs.length = total;
    return stretches(logprobs, BARS);
  }, [tokens, total]);
  const onClick = (event: MouseEvent) => {
    const { left, width } = (event.currentTarget as Element).getBoundingClientRect();
    const bar = Math.min(
      bars.length - 1,
      Math.floor(((event.clientX - left) / width) * bars.length),
    );
    const found = bars[Math.max(0, bar)];
    if (found) choose(found.index);
  };
  return (
    <svg
      class="sparkline"
      viewBox={`0 0 ${bars.length} ${HEIGHT}`}
      preserveAspectRatio="none"
      role="img"
      aria-label="How unlikely the tokens were, from first to last: higher is less likely"
      onClick={onClick}
    >
      {bars.map((bar, at) => {
        if (!bar) return null;
        return (
          <g key={at}>
            <Bar at={at} logprob={bar.logprob} class={`bar${level(bar.logprob)}`} />
            {bar.mean > bar.logprob && <Bar at={at} logprob={bar.mean} class="mean" />}
          </g>
        );
      })}
      {chosen !== null && (
        <path
          class="here"
          d={`M${((chosen + 0.5) / total) * bars.length} 0 V${HEIGHT}`}
          vector-effect="non-scaling-stroke"
        />
      )}
    </svg>
  );
}

function Bar({ at, logprob, class: kind }: { at: number; logprob: number; class: string }) {
  const height = Math.min(HEIGHT, Math.max(1, (Math.min(0, logprob) / FLOOR) * HEIGHT));
  return <rect class={kind} x={at} y={HEIGHT - height} width={0.86} height={height} />;
}
