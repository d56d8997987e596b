// What the colours of tokens mean.
import { STEPS } from "./scale";
import type { Colouring } from "./sampled-view";

export function Legend({ colouring }: { colouring: Colouring }) {
  if (colouring === "none") return <span />;
  if (colouring === "mask")
    return (
      <span class="legend by-mask">
        <span class="token trained">trained on</span>
        <span class="token untrained">not trained on</span>
      </span>
    );
  return (
    <span class="legend by-logprob">
      <span>Probability</span>
      {STEPS.map((step, at) => (
        <span key={at} class={`token lp${at}`}>
          {step.name}
        </span>
      ))}
    </span>
  );
}
