// Which model is asked, and where.
import { useId } from "preact/hooks";
import type { EndpointView } from "../../api/types";
import { AgentText } from "../../ui/text";
import { chosenQuestion, useChecks } from "./checks";
import { EndpointTable } from "./endpoint-table";
import { ChoiceField, TextField, type FormProps } from "./fields";
import { OWN_URL } from "./form";

interface Props extends FormProps {
  endpoints: EndpointView[];
  apiKey: string;
  setApiKey: (key: string) => void;
}

export function EndpointFields(props: Props) {
  const { endpoints, form, problems, set, apiKey, setApiKey } = props;
  const { endpoint = "", base_url = "" } = form.draft;
  const question = chosenQuestion(form.draft, apiKey, endpoints);
  const checker = useChecks(endpoints, question);
  const chosen = endpoints.find(({ kind }) => kind === endpoint);
  const state = checker.state(question ?? { kind: endpoint });
  const found = state === "asked" ? undefined : state;
  const models = found?.models ?? [];
  /** Why others do not answer, for which the table has no room. */
  const failures = endpoints.flatMap(({ kind }) => {
    const other = kind === endpoint ? undefined : checker.state({ kind });
    return other && other !== "asked" && !other.reachable ? [other] : [];
  });
  const listId = useId();
  return (
    <>
      <EndpointTable
        endpoints={endpoints}
        chosen={endpoint}
        choose={(kind) => {
          set("endpoint", kind);
          // A key is for the endpoint that it was typed for.
          setApiKey("");
        }}
        checker={checker}
        question={question}
      />
      {failures.length > 0 && (
        <ul class="muted small">
          {failures.map(({ kind, error }) => (
            <li key={kind}>
              {kind}: <AgentText text={error ?? "no answer"} />
            </li>
          ))}
        </ul>
      )}
      {problems.endpoint && (
        <p class="problem" role="alert">
          {problems.endpoint}
        </p>
      )}
      {found && !found.reachable && (
        <p class="notice bad" role="status">
          <strong>{chosen ? endpoint : "The URL"}:</strong>{" "}
          <AgentText text={found.error ?? "no answer"} />
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
            placeholder={chosen?.model ?? (chosen?.configured ? "what it serves" : "name")}
            hint={models.length > 0 ? `${models.length} are served there.` : undefined}
          />
          <datalist id={listId}>
            {models.map((name) => (
              <option key={name} value={name} />
            ))}
          </datalist>
          <KeyField
            {...props}
            isElsewhere={endpoint === OWN_URL || base_url.trim() !== ""}
            hasKey={chosen?.has_key ?? false}
            apiKey={apiKey}
            setApiKey={setApiKey}
          />
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

interface KeyProps extends FormProps {
  /** A URL is typed. */
  isElsewhere: boolean;
  /** Whether the server has a key of its own for it. */
  hasKey: boolean;
  apiKey: string;
  setApiKey: (key: string) => void;
}

function keyHint({ isElsewhere, hasKey }: KeyProps): string {
  if (isElsewhere) return "The server's own key is not sent to a URL that is typed here.";
  return hasKey ? "Empty: the server's own." : "The server has none for this endpoint.";
}

function KeyField(props: KeyProps) {
  const id = useId();
  const problem = props.problems.api_key;
  return (
    <div class="field">
      <label for={id}>API key</label>
      <input
        id={id}
        type="password"
        autocomplete="off"
        value={props.apiKey}
        aria-invalid={problem ? "true" : undefined}
        aria-describedby={`${id}-about`}
        onInput={(event) => props.setApiKey(event.currentTarget.value)}
      />
      {problem && (
        <span class="problem" role="alert">
          {problem}
        </span>
      )}
      <span class="hint" id={`${id}-about`}>
        {keyHint(props)} Kept neither here nor in records.
      </span>
    </div>
  );
}
