// Logprobs as a scale of seven steps, from certain to very unlikely.

export interface Step {
  /** The least probability of the step. */
  from: number;
  name: string;
}

/** Bounds in probabilities, since those are what people compare; roughly even in logprob. */
export const STEPS: Step[] = [
  { from: 0.95, name: "≥ 95%" },
  { from: 0.75, name: "≥ 75%" },
  { from: 0.5, name: "≥ 50%" },
  { from: 0.2, name: "≥ 20%" },
  { from: 0.05, name: "≥ 5%" },
  { from: 0.01, name: "≥ 1%" },
  { from: 0, name: "< 1%" },
];

/** From this step on a token is worth a look by itself. */
export const UNLIKELY = 5;

/** The step of a logprob: 0 is certain, 6 very unlikely; null where there is none. */
export function level(logprob: number): number;
export function level(logprob: number | null | undefined): number | null;
export function level(logprob: number | null | undefined): number | null {
  if (logprob === null || logprob === undefined || Number.isNaN(logprob)) return null;
  const probability = Math.exp(logprob);
  const found = STEPS.findIndex(({ from }) => probability >= from);
  return found < 0 ? STEPS.length - 1 : found;
}

/** `97.3%`, `0.042%`, `< 0.001%`. */
export function percent(logprob: number | null | undefined): string {
  if (logprob === null || logprob === undefined) return "–";
  const value = Math.exp(logprob) * 100;
  if (value < 0.001) return "< 0.001%";
  return `${value >= 99.95 ? "100" : value.toPrecision(3)}%`;
}

export interface Stretch {
  /** Its least likely token, which is what a reader looks for. */
  index: number;
  logprob: number;
  /** Of all its tokens that have a logprob. */
  mean: number;
}

/** At most `buckets` stretches of equal length; null for one without a logprob. */
export function stretches(
  logprobs: (number | null | undefined)[],
  buckets: number,
): (Stretch | null)[] {
  const size = Math.max(1, Math.ceil(logprobs.length / buckets));
  const found: (Stretch | null)[] = [];
  for (let start = 0; start < logprobs.length; start += size) {
    let [sum, count] = [0, 0];
    let low: { index: number; logprob: number } | null = null;
    for (let index = start; index < Math.min(start + size, logprobs.length); index += 1) {
      const logprob = logprobs[index];
      if (typeof logprob !== "number") continue;
      [sum, count] = [sum + logprob, count + 1];
      if (low === null || logprob < low.logprob) low = { index, logprob };
    }
    found.push(low && { ...low, mean: sum / count });
  }
  return found;
}
