// Starting a live agent. The answer comes once its server is healthy, which takes seconds.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, post } from "../../api/client";
import { useLoad } from "../../api/load";
import type { AgentView, EndpointView, LiveView, ServerInfo } from "../../api/types";
import { go, link } from "../../router";
import { Panel, Spinner } from "../../ui/parts";
import { SandboxNotice } from "../../ui/sandbox";
import { failure } from "./api";

interface Form {
  name: string;
  agent: string;
  endpoint: string;
  model: string;
  baseUrl: string;
  apiKey: string;
  setup: string;
  solution: string;
  permissions: string;
  idle: string;
  turnLimit: string;
}

const EMPTY: Form = {
  name: "",
  agent: "",
  endpoint: "",
  model: "",
  baseUrl: "",
  apiKey: "",
  setup: "",
  solution: "ls -la\necho 'hello from the sandbox' > hello.txt\ncat hello.txt",
  permissions: "allow",
  idle: "",
  turnLimit: "",
};

const lines = (text: string) => text.split("\n").filter((line) => line.trim());

/** The body for `POST /v1/live`; what is empty is left to the server. */
function bodyOf(form: Form): Record<string, unknown> {
  const given: Record<string, unknown> = {
    name: form.name,
    agent: form.agent,
    endpoint: form.endpoint,
    model: form.model,
    base_url: form.baseUrl,
    api_key: form.apiKey,
    permissions: form.permissions,
    idle_s: form.idle ? Number(form.idle) : "",
    turn_timeout_s: form.turnLimit ? Number(form.turnLimit) : "",
  };
  const body = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== ""));
  if (lines(form.setup).length > 0) body.setup = lines(form.setup);
  if (form.endpoint === "scripted") body.solution = lines(form.solution);
  return body;
}

export function StartForm({ canClose, onStarted }: { canClose: boolean; onStarted: () => void }) {
  const agents = useLoad((abort) => get<{ agents: AgentView[] }>("v1/agents", {}, abort), []);
  const endpoints = useLoad(
    (abort) => get<{ endpoints: EndpointView[] }>("v1/endpoints", {}, abort),
    [],
  );
  const server = useLoad((abort) => get<ServerInfo>("v1/server", {}, abort), []);
  const [form, setForm] = useState(EMPTY);
  const [startedAt, setStartedAt] = useState<number | null>(null);
  const [problem, setProblem] = useState("");
  const change = (changes: Partial<Form>) => setForm((old) => ({ ...old, ...changes }));
  const kinds = endpoints.data?.endpoints ?? [];
  const first = kinds.find((kind) => kind.configured && kind.kind !== "scripted");
  const endpoint = form.endpoint || first?.kind || "scripted";
  const chosen = kinds.find((kind) => kind.kind === endpoint);
  const choices = (agents.data?.agents ?? []).filter((it) => it.drivers.includes("serve"));
  const agent = form.agent || choices[0]?.name || "";
  const cannot = server.data?.sandbox.ready === false;
  const start = async (event: Event) => {
    event.preventDefault();
    setStartedAt(Date.now());
    setProblem("");
    try {
      const started = await post<LiveView>("v1/live", bodyOf({ ...form, agent, endpoint }));
      onStarted();
      go(link(["live", started.id]));
    } catch (error) {
      setProblem(failure(error));
    }
    setStartedAt(null);
  };
  return (
    <Panel
      title="Start an agent"
      actions={
        canClose && (
          <a class="button small" href="#/live">
            Close
          </a>
        )
      }
    >
      {server.data && <SandboxNotice sandbox={server.data.sandbox} />}
      <form class="stack" onSubmit={start} aria-busy={startedAt !== null}>
        <div class="live-form">
          <Field name="Name" hint="Yours; empty means none">
            <input
              maxLength={100}
              value={form.name}
              onInput={(event) => change({ name: event.currentTarget.value })}
            />
          </Field>
          <Field name="Agent" hint="Those that can run as a server">
            <select
              value={agent}
              onChange={(event) => change({ agent: event.currentTarget.value })}
            >
              {choices.map((it) => (
                <option key={it.name} value={it.name}>
                  {it.name} {it.installed.at(-1) ?? `${it.default_version}, to install`}
                </option>
              ))}
            </select>
          </Field>
          <Field name="Endpoint" hint={endpointHint(chosen)}>
            <select
              value={endpoint}
              onChange={(event) => change({ endpoint: event.currentTarget.value })}
            >
              {(kinds.length > 0 ? kinds : [{ kind: "scripted", configured: true }]).map((kind) => (
                <option key={kind.kind} value={kind.kind}>
                  {kind.kind}
                  {kind.configured || kind.kind === "scripted" ? "" : " (not set up)"}
                </option>
              ))}
            </select>
          </Field>
          {endpoint !== "scripted" && <ModelFields form={form} change={change} endpoint={chosen} />}
          <Field name="When it asks for permission" hint="A sandbox is the wall, not this">
            <select
              value={form.permissions}
              onChange={(event) => change({ permissions: event.currentTarget.value })}
            >
              <option value="allow">allow everything</option>
              <option value="ask">ask in the chat</option>
              <option value="reject">refuse everything</option>
            </select>
          </Field>
        </div>
        {endpoint === "scripted" && (
          <Field
            name="What the scripted model does, one command per line"
            hint="No model is needed: these are played one after the other, over all turns"
          >
            <textarea
              rows={3}
              value={form.solution}
              onInput={(event) => change({ solution: event.currentTarget.value })}
            />
          </Field>
        )}
        <MoreFields form={form} change={change} />
        {problem && (
          <p class="notice bad" role="alert">
            {problem}
          </p>
        )}
        <div class="row">
          <button class="primary" disabled={startedAt !== null || cannot}>
            Start
          </button>
          {startedAt !== null && <Starting since={startedAt} />}
        </div>
      </form>
    </Panel>
  );
}

function endpointHint(endpoint: EndpointView | undefined): string {
  if (!endpoint || endpoint.kind === "scripted") return "Plays commands; needs no model";
  if (endpoint.configured) return endpoint.has_key ? "Set up, with a key" : "Set up, without a key";
  const names = [...endpoint.variables.base_url, ...endpoint.variables.api_key].join(", ");
  return `The server has no ${names}: give address and key here`;
}

function ModelFields(props: {
  form: Form;
  change: (changes: Partial<Form>) => void;
  endpoint: EndpointView | undefined;
}) {
  const { form, change, endpoint } = props;
  return (
    <>
      <Field name="Model" hint="Empty means the endpoint's own">
        <input
          placeholder={endpoint?.model ?? ""}
          value={form.model}
          onInput={(event) => change({ model: event.currentTarget.value })}
        />
      </Field>
      <Field name="Base URL" hint="Empty means the server's">
        <input
          type="url"
          placeholder={endpoint?.default_base_url ?? "http://localhost:8000/v1"}
          value={form.baseUrl}
          onInput={(event) => change({ baseUrl: event.currentTarget.value })}
        />
      </Field>
      <Field name="API key" hint="Empty means the server's; it is kept nowhere else">
        <input
          type="password"
          autocomplete="off"
          value={form.apiKey}
          onInput={(event) => change({ apiKey: event.currentTarget.value })}
        />
      </Field>
    </>
  );
}

function MoreFields({ form, change }: { form: Form; change: (changes: Partial<Form>) => void }) {
  return (
    <details>
      <summary>More</summary>
      <div class="stack more-fields">
        <Field name="Setup, one command per line" hint="Run in its work directory before it starts">
          <textarea
            rows={3}
            value={form.setup}
            onInput={(event) => change({ setup: event.currentTarget.value })}
          />
        </Field>
        <div class="live-form">
          <Field name="Sleeps after" hint="Seconds without a turn; 900 when empty">
            <input
              type="number"
              min="1"
              value={form.idle}
              onInput={(event) => change({ idle: event.currentTarget.value })}
            />
          </Field>
          <Field name="A turn's limit" hint="Seconds; 600 when empty">
            <input
              type="number"
              min="1"
              value={form.turnLimit}
              onInput={(event) => change({ turnLimit: event.currentTarget.value })}
            />
          </Field>
        </div>
      </div>
    </details>
  );
}

function Field(props: { name: string; hint?: string; children: ComponentChildren }) {
  return (
    <label class="field">
      <span>{props.name}</span>
      {props.children}
      {props.hint && <span class="hint">{props.hint}</span>}
    </label>
  );
}

/** What goes on meanwhile; the first start of an agent installs it. */
function Starting({ since }: { since: number }) {
  const [passed, setPassed] = useState(0);
  useEffect(() => {
    const timer = window.setInterval(() => setPassed(Math.floor((Date.now() - since) / 1000)), 500);
    return () => clearInterval(timer);
  }, [since]);
  return (
    <span class="row muted" role="status">
      <Spinner /> Starting, {passed} s: sandbox, setup, then its server.
      {passed >= 8 && " An agent that is not installed yet is installed now."}
    </span>
  );
}
