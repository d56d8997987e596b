// Which model is asked: a table of the kinds of endpoints that this server knows.
import { useEffect, useId, useState } from "preact/hooks";
import { ApiError, post } from "../../api/client";
import type { EndpointCheck, EndpointView } from "../../api/types";
import { seconds } from "../../format";
import { Spinner } from "../../ui/parts";
import { AgentText, visible } from "../../ui/text";
import { ChoiceField, TextField, type FormProps } from "./fields";
import { OWN_URL } from "./form";

interface Props extends FormProps {
  endpoints: EndpointView[];
  apiKey: string;
  setApiKey: (key: string) => void;
}

type Checks = Record<string, EndpointCheck | "asked">;

export function EndpointFields(props: Props) {
  const { endpoints, form, set, apiKey, setApiKey } = props;
  const [checks, setChecks] = useState<Checks>({});
  /** Of what was asked last. */
  const [failure, setFailure] = useState<EndpointCheck | null>(null);
  const { endpoint = "", base_url = "", model = "" } = form.draft;
  const sorted = endpoints.toSorted((a, b) => Number(b.configured) - Number(a.configured));
  const chosen = endpoints.find(({ kind }) => kind === endpoint);
  const check = async (kind: string, isChosen: boolean) => {
    setChecks((old) => ({ ...old, [kind]: "asked" }));
    const typed = isChosen ? { base_url, api_key: apiKey, model } : {};
    const given = Object.entries(typed).filter(([, value]) => value.trim());
    let found: EndpointCheck;
    try {
      const path = `v1/endpoints/${encodeURIComponent(kind)}/check`;
      found = await post<EndpointCheck>(path, Object.fromEntries(given));
    } catch (error) {
      const message = error instanceof ApiError ? error.message : String(error);
      found = { kind, reachable: false, error: message, models: [], seconds: 0 };
    }
    setChecks((old) => ({ ...old, [kind]: found }));
    setFailure(found.reachable ? null : found);
  };
  // The chosen one is asked by itself, once it can be.
  const canAsk = chosen && endpoint !== "scripted" && (chosen.configured || base_url !== "");
  useEffect(() => {
    if (!canAsk) return;
    const timer = setTimeout(() => void check(endpoint, true), 600);
    return () => clearTimeout(timer);
  }, [endpoint, canAsk, base_url, apiKey]);
  const found = checks[endpoint];
  const models = found && found !== "asked" ? found.models : [];
  const listId = useId();
  return (
    <>
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
            {sorted.map((it) => (
              <EndpointRow
                key={it.kind}
                endpoint={it}
                isChosen={it.kind === endpoint}
                choose={() => set("endpoint", it.kind)}
                state={checks[it.kind]}
                check={() => void check(it.kind, it.kind === endpoint)}
              />
            ))}
            <tr class={endpoint === OWN_URL ? "chosen" : ""}>
              <td>
                <label class="radio">
                  <input
                    type="radio"
                    name="endpoint"
                    checked={endpoint === OWN_URL}
                    onChange={() => set("endpoint", OWN_URL)}
                  />
                  another URL
                </label>
              </td>
              <td colSpan={5} class="muted">
                Anything that speaks chat completions, or Anthropic's messages.
              </td>
            </tr>
          </tbody>
        </table>
      </div>
      {failure && (
        <p class="notice bad" role="status">
          <strong>{failure.kind}:</strong> <AgentText text={failure.error ?? "no answer"} />
        </p>
      )}
      {endpoint === "scripted" ? (
        <p class="hint-line">
          No model: a script plays commands, which stand with the task, as if a model had called for
          them. Good for trying a task, its checks and this page.
        </p>
      ) : (
        <div class="fields">
          <TextField
            {...props}
            name="base_url"
            title="Base URL"
            placeholder={chosen?.default_base_url ?? "https://…/v1"}
            hint={endpoint === OWN_URL ? undefined : "Empty: as the server has it."}
          />
          <TextField
            {...props}
            name="model"
            title="Model"
            list={listId}
            placeholder={chosen?.model ?? "name"}
            hint={models.length > 0 ? `${models.length} are served there.` : undefined}
          />
          <datalist id={listId}>
            {models.map((name) => (
              <option key={name} value={name} />
            ))}
          </datalist>
          <KeyField endpoint={chosen} apiKey={apiKey} setApiKey={setApiKey} />
          {endpoint === OWN_URL && (
            <ChoiceField
              {...props}
              name="dialect"
              title="Speaks"
              choices={[
                ["", "chat completions"],
                ["anthropic", "Anthropic's messages"],
              ]}
            />
          )}
        </div>
      )}
    </>
  );
}

interface KeyProps {
  endpoint: EndpointView | undefined;
  apiKey: string;
  setApiKey: (key: string) => void;
}

function KeyField({ endpoint, apiKey, setApiKey }: KeyProps) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>API key</label>
      <input
        id={id}
        type="password"
        autocomplete="off"
        value={apiKey}
        aria-describedby={`${id}-about`}
        onInput={(event) => setApiKey(event.currentTarget.value)}
      />
      <span class="hint" id={`${id}-about`}>
        {endpoint?.has_key ? "Empty: the server's own." : "Empty: the server's, and it has none."}{" "}
        Kept neither here nor in records.
      </span>
    </div>
  );
}

interface RowProps {
  endpoint: EndpointView;
  isChosen: boolean;
  choose: () => void;
  state: EndpointCheck | "asked" | undefined;
  check: () => void;
}

function EndpointRow({ endpoint, isChosen, choose, state, check }: RowProps) {
  const { kind, configured, variables, default_base_url, model, has_key } = endpoint;
  const names = [variables.base_url, variables.api_key, variables.model].flatMap((it) => it ?? []);
  return (
    <tr class={isChosen ? "chosen" : ""} onClick={choose}>
      <td>
        <label class="radio">
          <input type="radio" name="endpoint" checked={isChosen} onChange={choose} />
          {kind}
        </label>
      </td>
      <td>
        <span class={configured ? "badge good" : "badge"}>{configured ? "yes" : "no"}</span>
        {has_key && <span class="muted small nowrap"> · key</span>}
      </td>
      <td title={default_base_url ?? undefined}>
        {default_base_url ? <AgentText text={default_base_url} /> : <span class="muted">–</span>}
      </td>
      <td title={model ? visible(model) : undefined}>
        {model ? <AgentText text={model} /> : <span class="muted">–</span>}
      </td>
      <td class="mono variables" title={names.join(" ")}>
        {names.join(" ") || "–"}
      </td>
      <td>
        {kind === "scripted" ? (
          <span class="muted">built in</span>
        ) : (
          <Reachable state={state} kind={kind} check={check} />
        )}
      </td>
    </tr>
  );
}

function Reachable({ state, kind, check }: Pick<RowProps, "state" | "check"> & { kind: string }) {
  if (state === "asked") return <Spinner label={`Asking ${kind}`} />;
  return (
    <span class="reachable">
      {state?.reachable && (
        <span class="badge good" title={`${state.models.length} models`}>
          in {seconds(state.seconds)}
        </span>
      )}
      {state && !state.reachable && (
        <span class="badge bad" title={visible(state.error ?? "")}>
          no
        </span>
      )}
      <button
        type="button"
        class="small"
        aria-label={`Check ${kind}`}
        onClick={(click) => {
          click.stopPropagation();
          check();
        }}
      >
        Check
      </button>
    </span>
  );
}
