// The kinds of endpoints that this server knows, and which of them answer.
import type { ComponentChildren } from "preact";
import type { EndpointView } from "../../api/types";
import { seconds } from "../../format";
import { Spinner } from "../../ui/parts";
import { AgentText, visible } from "../../ui/text";
import type { Checker, CheckState, Question } from "./checks";
import { OWN_URL } from "./form";

interface Props {
  endpoints: EndpointView[];
  chosen: string;
  choose: (kind: string) => void;
  checker: Checker;
  /** What the chosen one is asked, if it can be. */
  question: Question | null;
}

export function EndpointTable({ endpoints, chosen, choose, checker, question }: Props) {
  const sorted = endpoints.toSorted((a, b) => Number(b.configured) - Number(a.configured));
  return (
    <div class="endpoints-box" tabIndex={0} role="region" aria-label="Endpoints">
      <table class="endpoints">
        <thead>
          <tr>
            <th class="w-kind">Endpoint</th>
            <th class="w-state">Set up</th>
            <th>URL</th>
            <th>Model</th>
            <th>Variables of the server</th>
            <th class="w-check">Reachable</th>
          </tr>
        </thead>
        <tbody>
          {sorted.map((endpoint) => {
            const { kind } = endpoint;
            // One that cannot be asked with what is typed is asked as it is: its answer says what is missing.
            const asked = (kind === chosen && question) || { kind };
            return (
              <EndpointRow
                key={kind}
                endpoint={endpoint}
                isChosen={kind === chosen}
                choose={() => choose(kind)}
              >
                <Reachable
                  state={checker.state(asked)}
                  name={kind}
                  check={() => checker.again(asked)}
                />
              </EndpointRow>
            );
          })}
          <tr class={chosen === OWN_URL ? "chosen" : ""} onClick={() => choose(OWN_URL)}>
            <td>
              <Choice
                title="another URL"
                isChosen={chosen === OWN_URL}
                choose={() => choose(OWN_URL)}
              />
            </td>
            <td colSpan={4} class="muted">
              Anything that speaks chat completions, or Anthropic's messages.
            </td>
            <td>
              {chosen === OWN_URL &&
                (question ? (
                  <Reachable
                    state={checker.state(question)}
                    name="the URL"
                    check={() => checker.again(question)}
                  />
                ) : (
                  <span class="muted small">Type its URL below.</span>
                ))}
            </td>
          </tr>
        </tbody>
      </table>
    </div>
  );
}

interface ChoiceProps {
  title: string;
  isChosen: boolean;
  choose: () => void;
}

function Choice({ title, isChosen, choose }: ChoiceProps) {
  return (
    <label class="radio">
      <input type="radio" name="endpoint" checked={isChosen} onChange={choose} />
      {title}
    </label>
  );
}

interface RowProps {
  endpoint: EndpointView;
  isChosen: boolean;
  choose: () => void;
  children: ComponentChildren;
}

function EndpointRow({ endpoint, isChosen, choose, children }: RowProps) {
  const { kind, configured, variables, default_base_url, model, has_key } = endpoint;
  const names = [variables.base_url, variables.api_key, variables.model].flatMap((it) => it ?? []);
  return (
    <tr class={isChosen ? "chosen" : ""} onClick={choose}>
      <td>
        <Choice title={kind} isChosen={isChosen} choose={choose} />
      </td>
      <td>
        <span class={configured ? "badge good" : "badge"}>{configured ? "yes" : "no"}</span>
        {has_key && <span class="muted small nowrap"> · key</span>}
      </td>
      <td title={default_base_url ?? undefined}>
        {default_base_url ? (
          <AgentText text={default_base_url} />
        ) : (
          <span class="muted">{configured ? "as it is set up" : "–"}</span>
        )}
      </td>
      <td title={model ? visible(model) : undefined}>
        {model ? (
          <AgentText text={model} />
        ) : (
          <span class="muted">{configured ? "what it serves" : "–"}</span>
        )}
      </td>
      <td class="mono variables" title={names.join(" ")}>
        {names.join(" ") || "–"}
      </td>
      <td>{kind === "scripted" ? <span class="muted">built in</span> : children}</td>
    </tr>
  );
}

interface ReachableProps {
  state: CheckState;
  name: string;
  check: () => void;
}

function Reachable({ state, name, check }: ReachableProps) {
  if (state === "asked") return <Spinner label={`Asking ${name}`} />;
  return (
    <span class="reachable">
      {state && <Answer state={state} />}
      <button
        type="button"
        class="small"
        aria-label={state ? `Check ${name} again` : `Check ${name}`}
        onClick={(click) => {
          click.stopPropagation();
          check();
        }}
      >
        {state ? "Again" : "Check"}
      </button>
    </span>
  );
}

function Answer({ state }: { state: Exclude<CheckState, "asked" | undefined> }) {
  if (!state.reachable)
    return (
      <>
        <span class="badge bad">no</span>
        <span class="cut small why" title={visible(state.error ?? "")}>
          <AgentText text={state.error ?? "no answer"} class="line" />
        </span>
      </>
    );
  const { length } = state.models;
  return (
    <>
      <span class="badge good" title={`It answered in ${seconds(state.seconds)}.`}>
        yes
      </span>
      <span class="small why">{length === 1 ? "1 model" : `${length} models`}</span>
    </>
  );
}
