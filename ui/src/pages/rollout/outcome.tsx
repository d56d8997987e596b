// How a rollout came out, and why.
import type { RolloutResult } from "../../api/types";
import { reward, words } from "../../format";
import { link } from "../../router";
import { Facts, Panel } from "../../ui/parts";
import { AgentText, visible } from "../../ui/text";
import { ending, worth } from "./endings";
import { verdictOf } from "./header";
import { firstLine } from "./transcript/tool-view";

const CHECKS_SHOWN = 12;

export function Outcome({ result }: { result: RolloutResult }) {
  const { error, agent_exit_code: exit, retryable } = result;
  return (
    <Panel title="Outcome">
      <div class="stack">
        <div class="row outcome">
          <span class={`outcome-reward number ${verdictOf(result)}`}>{reward(result.reward)}</span>
          <span class="muted">{result.reward === null ? "no reward" : "reward"}</span>
        </div>
        <p>
          {ending(result)} <span class="muted">{worth(result)}</span>
        </p>
        {error && (
          <p class="notice bad">
            <AgentText text={error} />{" "}
            {result.cause === "setup_failed" && (
              <a href={link(["rollout", result.rollout_id, "commands"])}>What setup printed</a>
            )}
          </p>
        )}
        <Checks result={result} />
        <Facts
          facts={[
            ["Ended", words(result.ended)],
            ["Cause", result.cause ? words(result.cause) : null],
            ["Agent's exit code", exit === null ? null : exit],
            ["For", result.rollout_type === "train" ? "training" : "evaluation"],
            ["Captured", CAPTURED[result.capture_level]],
            ["Worth a retry", retryable ? "yes" : "no"],
          ]}
        />
      </div>
    </Panel>
  );
}

/** Each verify command in a line: what the reward is made of. */
function Checks({ result }: { result: RolloutResult }) {
  const { verify_results: checks, rollout_id: id } = result;
  if (checks.length === 0) return null;
  const passed = checks.filter((check) => check.exit_code === 0).length;
  return (
    <div>
      <h3 class="counts-name">
        <a href={link(["rollout", id, "commands"])}>
          {passed} of {checks.length} verify commands exited with 0
        </a>
      </h3>
      <ul class="checks">
        {checks.slice(0, CHECKS_SHOWN).map((check, place) => (
          <li key={place}>
            <span class={`file-sign ${check.exit_code === 0 ? "good" : "bad"}`}>
              {check.exit_code === 0 ? "✓" : "✗"}
              <span class="visually-hidden">exit code {check.exit_code}</span>
            </span>
            <code class="cut" title={visible(check.cmd)}>
              <AgentText text={firstLine(check.cmd)} />
            </code>
          </li>
        ))}
      </ul>
    </div>
  );
}

const CAPTURED: Record<RolloutResult["capture_level"], string> = {
  tokens: "token ids and logprobs",
  logprobs: "logprobs without ids",
  text: "text alone",
};
