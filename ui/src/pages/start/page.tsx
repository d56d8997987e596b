// Starting rollouts: presets that run at once, or everything that `POST /v1/rollouts` takes.
import { useEffect, useState } from "preact/hooks";
import type { PageProps } from "../../app";
import { ApiError, get, post } from "../../api/client";
import { useLoad } from "../../api/load";
import type { AgentView, Created, EndpointView, ServerInfo } from "../../api/types";
import { Panel, Problem, Spinner } from "../../ui/parts";
import { PresetCards, show } from "../../ui/presets";
import { SandboxNotice } from "../../ui/sandbox";
import { useTitle } from "../../ui/title";
import "../../styles/start.css";
import { AgentFields } from "./agent";
import { CommandLineText } from "./command";
import { useDraft } from "./draft";
import { EndpointFields } from "./endpoints";
import { NumberField, type FormProps } from "./fields";
import { argumentsOf, asksModel, isSent, problemsOf, type FieldName, type Problems } from "./form";
import { MoreFields } from "./more";
import { TaskFields, useTasks } from "./task";

export default function StartPage({ query }: PageProps) {
  useTitle("Start");
  const server = useLoad(() => get<ServerInfo>("v1/server"), []);
  const agents = useLoad(() => get<{ agents: AgentView[] }>("v1/agents"), []);
  const endpoints = useLoad(() => get<{ endpoints: EndpointView[] }>("v1/endpoints"), []);
  const tasks = useTasks();
  const { form, set, replace, lost, error } = useDraft(query.get("from"), query.get("preset"));
  const [apiKey, setApiKey] = useState("");
  const [touched, setTouched] = useState<ReadonlySet<FieldName>>(new Set());
  const [isTried, setTried] = useState(false);
  const [isStarting, setStarting] = useState(false);
  const [refusal, setRefusal] = useState<ApiError | null>(null);
  // Nothing chosen yet: what is set up, else the endpoint that needs nothing.
  useEffect(() => {
    if (form.draft.endpoint || !endpoints.data) return;
    const ready = endpoints.data.endpoints.filter(({ configured }) => configured);
    const best = ready.find(({ kind }) => kind !== "scripted") ?? ready[0];
    set("endpoint", best?.kind ?? "scripted");
  }, [endpoints.data, form.draft.endpoint]);
  const { task, split } = form.draft;
  const chosenTask = tasks.data?.tasks.find(
    (it) => it.id === task && (!split || it.split === split),
  );
  const all = problemsOf(form, {
    countMax: server.data?.count_max ?? 1000,
    hasSolution: chosenTask?.has_solution ?? false,
    hasKey: apiKey !== "",
    endpoints: endpoints.data?.endpoints.map(({ kind }) => kind) ?? null,
    agents: agents.data?.agents.flatMap(({ name, aliases }) => [name, ...aliases]) ?? null,
  });
  /** Nobody can leave a field that names something which is not there: it was filled in by an earlier rollout. */
  const isSeen = (name: string) =>
    isTried || name === "endpoint" || name === "agent" || touched.has(name as FieldName);
  const seen = Object.entries(all).filter(([name]) => isSeen(name));
  const props: FormProps = {
    form,
    set,
    problems: Object.fromEntries(seen) as Problems,
    touch: (name) => setTouched((old) => (old.has(name) ? old : new Set([...old, name]))),
  };
  const isBlocked = server.data?.sandbox.ready === false;
  const submit = async (event: Event) => {
    event.preventDefault();
    setTried(true);
    setRefusal(null);
    const [first] = Object.keys(all);
    if (first) {
      // Once it is drawn.
      setTimeout(showProblem);
      return;
    }
    setStarting(true);
    try {
      show(await post<Created>("v1/rollouts", argumentsOf(form, apiKey)));
    } catch (problem) {
      setRefusal(problem as ApiError);
      setStarting(false);
    }
  };
  const count = Number(form.draft.n || 1);
  return (
    <div class="start-page">
      <h1>Start a rollout</h1>
      <Problem error={server.error} retry={server.reload} />
      {server.data && <SandboxNotice sandbox={server.data.sandbox} />}
      <Panel title="Runs at once, without any model">
        <PresetCards blocked={isBlocked ? "Sandboxes cannot start here." : null} canEdit />
      </Panel>
      <Problem error={error} />
      {lost.length > 0 && (
        <p class="notice part" role="status">
          Not taken over from the earlier rollout: {lost.join(", ")}.
        </p>
      )}
      <form class="start" onSubmit={submit} noValidate>
        <div class="stack">
          <Panel title="Task">
            <div class="stack">
              <TaskFields {...props} tasks={tasks} />
              <Extras form={form} replace={replace} />
            </div>
          </Panel>
          <Panel title="Model">
            <div class="stack">
              <Problem error={endpoints.error} retry={endpoints.reload} />
              {!asksModel(form.draft) && (
                <p class="hint-line">
                  {form.draft.agent === "oracle"
                    ? "The agent oracle asks no model: it plays the task's solution."
                    : "The agent nop asks no model: it does nothing."}
                </p>
              )}
              {endpoints.data && asksModel(form.draft) && (
                <EndpointFields
                  {...props}
                  endpoints={endpoints.data.endpoints}
                  apiKey={apiKey}
                  setApiKey={setApiKey}
                />
              )}
            </div>
          </Panel>
          <Panel title="Agent">
            <div class="stack">
              <Problem error={agents.error} retry={agents.reload} />
              {agents.data && <AgentFields {...props} agents={agents.data.agents} />}
            </div>
          </Panel>
          <Panel title="More" flush>
            <MoreFields {...props} />
          </Panel>
        </div>
        <aside class="panel start-side" aria-label="Start">
          <NumberField
            {...props}
            name="n"
            title="How many"
            placeholder="1"
            hint="More than one are a group."
          />
          <button class="primary" disabled={isBlocked || isStarting}>
            {isStarting && <Spinner label="Starting" />}
            {count > 1 ? `Start ${count} rollouts` : "Start"}
          </button>
          {isTried && Object.keys(all).length > 0 && (
            <p class="problem" role="status">
              {Object.keys(all).length === 1
                ? "One field needs a look."
                : `${Object.keys(all).length} fields need a look.`}
            </p>
          )}
          <Problem error={refusal} />
          <CommandLineText given={() => argumentsOf(form, apiKey)} />
          <button
            type="button"
            class="plain small"
            onClick={() => {
              replace({ draft: {}, extra: {} });
              setApiKey("");
              setTouched(new Set());
              setTried(false);
            }}
          >
            Empty the form
          </button>
        </aside>
      </form>
    </div>
  );
}

/** Brings the first thing that is wrong into view. */
function showProblem() {
  const at = document.querySelector<HTMLElement>("[aria-invalid], .start .problem[role=alert]");
  const fold = at?.closest("details");
  if (fold) fold.open = true;
  at?.focus();
  at?.scrollIntoView({ block: "nearest" });
}

interface ExtrasProps {
  form: FormProps["form"];
  replace: (form: FormProps["form"]) => void;
}

/** Arguments without a field here, which are sent all the same. */
function Extras({ form, replace }: ExtrasProps) {
  const names = Object.keys(form.extra).filter((name) => isSent(name, form.draft));
  if (names.length === 0) return null;
  const without = (name: string) => {
    const { [name]: _, ...extra } = form.extra;
    replace({ draft: form.draft, extra });
  };
  return (
    <p class="extras">
      <span class="muted small">Also sent, as they were:</span>
      {names.map((name) => (
        <button
          type="button"
          key={name}
          class="chip"
          title={`Leave out ${name}`}
          onClick={() => without(name)}
        >
          {name} <span aria-hidden="true">×</span>
        </button>
      ))}
    </p>
  );
}
