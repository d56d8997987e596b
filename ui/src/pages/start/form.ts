// What is typed on the start page, and the arguments of `POST /v1/rollouts` that it means.
// An empty field is left out, so that the server's default, or the task's own value, holds.

type Kind = "text" | "lines" | "map" | "number" | "integer";

interface Rule {
  /** Where it stands among the arguments. */
  path: [string] | [string, string];
  kind: Kind;
  min?: number;
  /** Numbers must be larger than this. */
  above?: number;
  max?: number;
}

/** Fields whose text becomes one argument. */
export const RULES = {
  task_id: { path: ["task_id"], kind: "text" },
  instruction: { path: ["instruction"], kind: "text" },
  setup: { path: ["setup"], kind: "lines" },
  verify: { path: ["verify"], kind: "lines" },
  test_script: { path: ["test_script"], kind: "text" },
  setup_user: { path: ["setup_user"], kind: "text" },
  env: { path: ["env"], kind: "map" },
  artifacts: { path: ["artifacts"], kind: "lines" },
  solution: { path: ["solution"], kind: "lines" },
  driver: { path: ["driver"], kind: "text" },
  base_url: { path: ["base_url"], kind: "text" },
  dialect: { path: ["dialect"], kind: "text" },
  model: { path: ["model"], kind: "text" },
  mode: { path: ["mode"], kind: "text" },
  temperature: { path: ["temperature"], kind: "number", above: 0 },
  max_tokens_cap: { path: ["max_tokens_cap"], kind: "integer" },
  top_logprobs: { path: ["top_logprobs"], kind: "integer", min: 0, max: 20 },
  agent_timeout_s: { path: ["agent_timeout_s"], kind: "number", above: 0 },
  command_timeout_s: { path: ["command_timeout_s"], kind: "number", above: 0 },
  network_setup: { path: ["network", "setup"], kind: "text" },
  network_agent: { path: ["network", "agent"], kind: "text" },
  network_verify: { path: ["network", "verify"], kind: "text" },
  allow_hosts: { path: ["network", "allow_hosts"], kind: "lines" },
  memory_mb: { path: ["limits", "memory_mb"], kind: "integer", min: 1 },
  cpus: { path: ["limits", "cpus"], kind: "number", above: 0 },
  pids: { path: ["limits", "pids"], kind: "integer", min: 1 },
  disk_mb: { path: ["limits", "disk_mb"], kind: "integer", min: 1 },
  file_mb: { path: ["limits", "file_mb"], kind: "integer", min: 1 },
  calls: { path: ["budget", "calls"], kind: "integer", min: 1 },
  prompt_tokens: { path: ["budget", "prompt_tokens"], kind: "integer", min: 1 },
  completion_tokens: { path: ["budget", "completion_tokens"], kind: "integer", min: 1 },
  usd: { path: ["budget", "usd"], kind: "number", above: 0 },
  idle_s: { path: ["budget", "idle_s"], kind: "number", above: 0 },
  n: { path: ["n"], kind: "integer", min: 1 },
  group: { path: ["group"], kind: "text" },
  labels: { path: ["labels"], kind: "map" },
} as const satisfies Record<string, Rule>;

export type RuleName = keyof typeof RULES;
export type FieldName =
  | RuleName
  | "source"
  | "task"
  | "split"
  | "agent"
  | "version"
  | "endpoint"
  | "disable_thinking"
  | "patch";
export type Draft = Partial<Record<FieldName, string>>;
export type Arguments = Record<string, unknown>;

/** What is typed, and arguments that have no field, such as the files of an earlier rollout's task. */
export interface Form {
  draft: Draft;
  extra: Arguments;
}

/** The endpoint that is none of the server's: a URL is given. */
export const OWN_URL = "url";

/** Agents of Rollcage's own that ask no model: one does nothing, the other plays the task's solution. */
const WITHOUT_MODEL = ["nop", "oracle"];

export const asksModel = ({ agent }: Draft) => !WITHOUT_MODEL.includes(agent ?? "");

/** Whether the form's commands are played: in the model's place, or by the agent that does nothing else. */
export const playsSolution = (draft: Draft) =>
  draft.agent === "oracle" || (asksModel(draft) && draft.endpoint === "scripted");

const lines = (text: string) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

function map(text: string): Record<string, string> {
  const pairs = lines(text).map((line) => {
    const at = line.indexOf("=");
    return [line.slice(0, at).trim(), line.slice(at + 1)];
  });
  return Object.fromEntries(pairs) as Record<string, string>;
}

function valueOf(rule: Rule, text: string): unknown {
  if (rule.kind === "lines") return lines(text);
  if (rule.kind === "map") return map(text);
  return rule.kind === "text" ? text.replaceAll("\r\n", "\n") : Number(text);
}

/** Fields that a task of the server's brings with it. */
const TASKS_OWN: RuleName[] = ["task_id", "instruction", "setup", "verify", "test_script"];
/** Fields that say which model is asked. */
const OF_MODEL: RuleName[] = ["base_url", "dialect", "model"];

/** Whether a field, or an argument without one, counts for what is chosen now. */
export function isSent(name: string, draft: Draft): boolean {
  const isOneOf = (names: string[]) => names.includes(name);
  if (draft.source === "listed" && isOneOf(TASKS_OWN)) return false;
  if (!asksModel(draft) && isOneOf(OF_MODEL)) return false;
  if (name === "dialect") return draft.endpoint === OWN_URL;
  if (name === "base_url") return draft.endpoint !== "scripted";
  return true;
}

/** The arguments that a form means. */
export function argumentsOf({ draft, extra }: Form, apiKey: string): Arguments {
  const isListed = draft.source === "listed";
  const kept = Object.entries(extra).filter(([name]) => isSent(name, draft));
  const given: Arguments = structuredClone(Object.fromEntries(kept));
  if (isListed) given.task = draft.split ? { id: draft.task, split: draft.split } : draft.task;
  for (const [name, rule] of Object.entries(RULES) as [RuleName, Rule][]) {
    const text = draft[name] ?? "";
    if (!text.trim() || !isSent(name, draft)) continue;
    if (name === "solution" && !playsSolution(draft)) continue;
    const [first, second] = rule.path;
    if (second === undefined) given[first] = valueOf(rule, text);
    else given[first] = { ...(given[first] as Arguments), [second]: valueOf(rule, text) };
  }
  if (draft.agent) given.agent = draft.version ? `${draft.agent}@${draft.version}` : draft.agent;
  if (draft.disable_thinking) given.disable_thinking = draft.disable_thinking === "on";
  if (draft.patch) given.patch = draft.patch === "on";
  if (!asksModel(draft)) return given;
  if (draft.endpoint && draft.endpoint !== OWN_URL) given.endpoint = draft.endpoint;
  if (apiKey && draft.endpoint !== "scripted") given.api_key = apiKey;
  return given;
}

export interface Context {
  countMax: number;
  /** Whether the chosen task of the server's brings its own solution. */
  hasSolution: boolean;
  /** Whether a key is typed, which no draft holds. */
  hasKey: boolean;
  /** What the server has to choose from, once it is known. */
  endpoints: string[] | null;
  agents: string[] | null;
}

export type Problems = Partial<Record<FieldName | "api_key", string>>;

/** What cannot be right, beside the field that it is about. The server checks the rest. */
export function problemsOf({ draft, extra }: Form, context: Context): Problems {
  const problems: Problems = {};
  for (const [name, rule] of Object.entries(RULES) as [RuleName, Rule][]) {
    const text = draft[name]?.trim();
    const problem = text && isSent(name, draft) ? problemOf(rule, text) : null;
    if (problem) problems[name] = problem;
  }
  const isListed = draft.source === "listed";
  if (isListed && !draft.task) problems.task = "Choose a task.";
  if (!isListed && !draft.instruction?.trim())
    problems.instruction = "Say what the agent shall do.";
  if (draft.n && Number(draft.n) > context.countMax)
    problems.n = `This server takes ${context.countMax} at most.`;
  const { agents } = context;
  if (draft.agent && agents && !agents.includes(draft.agent))
    problems.agent = `This server has no agent \u201c${draft.agent}\u201d. Choose another.`;
  if (!asksModel(draft)) return problems;
  const isPlayed = draft.solution?.trim() || extra.solution || (isListed && context.hasSolution);
  if (draft.endpoint === "scripted" && !isPlayed)
    problems.solution = "Say which commands the script plays in the model's place.";
  return { ...problems, ...modelProblems(draft, context) };
}

function modelProblems(draft: Draft, { hasKey, endpoints }: Context): Problems {
  const { endpoint, base_url = "", model = "" } = draft;
  const problems: Problems = {};
  if (endpoint === "scripted") return problems;
  if (base_url.trim() && !isUrl(base_url)) problems.base_url = "Start it with http:// or https://.";
  if (endpoint === OWN_URL) {
    if (!base_url.trim()) problems.base_url = "Give the endpoint's URL.";
    if (!model.trim()) problems.model = "Name the model.";
    if (!hasKey) problems.api_key = "Give a key. Any text will do where none is needed.";
  } else if (endpoint && endpoints && !endpoints.includes(endpoint)) {
    problems.endpoint = `This server has no endpoint \u201c${endpoint}\u201d. Choose another.`;
  }
  return problems;
}

export const isUrl = (text: string) => /^https?:\/\/./.test(text.trim());

function problemOf(rule: Rule, text: string): string | null {
  if (rule.kind === "map") {
    const wrong = lines(text).find((line) => line.indexOf("=") < 1);
    return wrong ? `Write name=value on each line, not \u201c${wrong.slice(0, 40)}\u201d.` : null;
  }
  if (rule.kind !== "number" && rule.kind !== "integer") return null;
  const number = Number(text);
  if (!Number.isFinite(number)) return "Write a number.";
  if (rule.kind === "integer" && !Number.isInteger(number)) return "Write a whole number.";
  if (rule.min !== undefined && number < rule.min) return `At least ${rule.min}.`;
  if (rule.max !== undefined && number > rule.max) return `At most ${rule.max}.`;
  return rule.above !== undefined && number <= rule.above ? `More than ${rule.above}.` : null;
}
