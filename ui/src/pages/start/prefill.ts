// A form from the arguments of a preset, or from a rollout that shall run again.
import type { EndpointView, RolloutResult, Task } from "../../api/types";
import { OWN_URL, RULES, type Arguments, type Draft, type Form, type RuleName } from "./form";

type Rule = (typeof RULES)[RuleName];

/** The field's text for a value, or null where the field cannot say it. */
function textOf(rule: Rule, value: unknown): string | null {
  if (rule.kind === "number" || rule.kind === "integer")
    return typeof value === "number" ? `${value}` : null;
  if (rule.kind === "text") return typeof value === "string" ? value : null;
  const isLine = (text: unknown): text is string =>
    typeof text === "string" && text.trim() !== "" && !text.includes("\n");
  if (rule.kind === "lines")
    return Array.isArray(value) && value.every(isLine) ? value.join("\n") : null;
  if (typeof value !== "object" || value === null) return null;
  const pairs = Object.entries(value).map(([name, text]) => `${name}=${text}`);
  return pairs.every(isLine) ? pairs.join("\n") : null;
}

const isNothing = (value: unknown): boolean =>
  value === null ||
  value === undefined ||
  value === "" ||
  (typeof value === "object" && Object.values(value).every(isNothing));

/** Takes what fields can say; the rest is kept as it is. */
export function formOf(given: Arguments): Form {
  const extra: Arguments = structuredClone(given);
  const draft: Draft = { source: "own" };
  for (const [name, rule] of Object.entries(RULES) as [RuleName, Rule][]) {
    const [first, second] = rule.path as [string, string?];
    const group = second === undefined ? extra : (extra[first] as Arguments | null | undefined);
    const member = second ?? first;
    const value = group?.[member];
    if (!group || isNothing(value)) continue;
    const text = textOf(rule, value);
    if (text === null) continue;
    draft[name] = text;
    delete group[member];
  }
  if (typeof extra.agent === "string") {
    [draft.agent, draft.version] = extra.agent.split("@", 2);
    delete extra.agent;
  }
  if (typeof extra.endpoint === "string") draft.endpoint = extra.endpoint;
  else if (draft.base_url) draft.endpoint = OWN_URL;
  else if (given.solution) draft.endpoint = "scripted";
  delete extra.endpoint;
  if (typeof extra.disable_thinking === "boolean")
    draft.disable_thinking = extra.disable_thinking ? "on" : "off";
  if (typeof extra.patch === "boolean") draft.patch = extra.patch ? "on" : "off";
  const task = typeof extra.task === "object" ? (extra.task as Arguments | null) : null;
  const id = task?.id ?? extra.task;
  if (typeof id === "string") {
    draft.source = "listed";
    draft.task = id;
    if (typeof task?.split === "string") draft.split = task.split;
    delete extra.task;
  }
  for (const name of ["disable_thinking", "patch", "api_key"]) delete extra[name];
  for (const [name, value] of Object.entries(extra)) if (isNothing(value)) delete extra[name];
  return { draft, extra };
}

type Earlier = Pick<RolloutResult, "agent" | "endpoint" | "labels" | "driver">;

/** The arguments that run a task of a record again; what cannot be sent again is told in `lost`. */
export function argumentsAgain(
  task: Task,
  result: Earlier,
  endpoints: EndpointView[],
): { given: Arguments; lost: string[] } {
  const { id, agent, upload, mcp, agent_timeout_s, command_timeout_s, mode, patch, ...same } = task;
  const given: Arguments = { ...same, task_id: id, mcp, labels: result.labels };
  given.agent_options = Object.fromEntries(
    Object.entries(agent ?? {}).filter(([, value]) => !isNothing(value)),
  );
  if (agent_timeout_s !== null && agent_timeout_s !== 600) given.agent_timeout_s = agent_timeout_s;
  if (command_timeout_s !== 120) given.command_timeout_s = command_timeout_s;
  if (mode !== "transparent_proxy") given.mode = mode;
  if (patch) given.patch = true;
  if (given.setup_user === "user") delete given.setup_user;
  given.agent = agentAgain(result.agent);
  given.driver = result.driver;
  const lost = takeModel(given, result.endpoint, endpoints);
  if (!isNothing(upload)) lost.push("uploads (a page cannot send them)");
  if (Object.values(mcp ?? {}).some((server) => !isNothing(server.headers))) {
    lost.push("headers of MCP servers (they are secret)");
    const bare = Object.entries(mcp).map(([name, { headers: _, ...server }]) => [name, server]);
    given.mcp = Object.fromEntries(bare);
  }
  return { given, lost };
}

/** Agents that are part of the program have no version to choose. */
const agentAgain = ({ name, version }: Earlier["agent"]) =>
  version && version !== "local" ? `${name}@${version}` : name;

/** Adds which model is asked; returns what the record does not tell of that. */
function takeModel(
  given: Arguments,
  { kind, base_url, model }: Earlier["endpoint"],
  endpoints: EndpointView[],
): string[] {
  // Its agent asks no model. The solution stays: one of these agents plays it.
  if (kind === "none") return [];
  if (kind === "scripted") {
    given.endpoint = kind;
    return [];
  }
  delete given.solution;
  given.model = model;
  const lost = ["sampling settings such as the temperature (records do not have them)"];
  if (kind === "custom") {
    given.base_url = base_url;
    lost.push("the API key", "what the URL speaks (chat completions are assumed)");
    return lost;
  }
  given.endpoint = kind;
  const known = endpoints.find((endpoint) => endpoint.kind === kind);
  // The address of a server that Rollcage starts itself is nobody's choice.
  const hasChoice = known && known.variables.base_url.length > 0;
  if (hasChoice && known.default_base_url !== base_url)
    lost.push(`the URL ${base_url} (the one that the server has for ${kind} is used)`);
  return lost;
}
