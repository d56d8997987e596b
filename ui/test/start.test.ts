import assert from "node:assert/strict";
import { test } from "node:test";
import type { EndpointCheck, EndpointView, Task } from "../src/api/types";
import { Checker, chosenQuestion, type Question } from "../src/pages/start/checks";
import { argumentsOf, OWN_URL, problemsOf, type Form } from "../src/pages/start/form";
import { argumentsAgain, formOf } from "../src/pages/start/prefill";

const context = {
  countMax: 64,
  hasSolution: false,
  hasKey: false,
  endpoints: ["openai", "scripted"],
  agents: ["opencode", "oracle", "nop"],
};
const form = (draft: Form["draft"], extra: Form["extra"] = {}): Form => ({ draft, extra });

test("empty fields are left out, so that defaults hold", () => {
  const given = argumentsOf(form({ instruction: "do it", endpoint: "openai", setup: " \n" }), "");
  assert.deepEqual(given, { instruction: "do it", endpoint: "openai" });
});

test("each field becomes its argument", () => {
  const draft: Form["draft"] = {
    instruction: "do it\r\nnow ",
    setup: "make\n\n  make deps  \n",
    env: "A=1\nB=x=y",
    network_agent: "allowlist",
    allow_hosts: "pypi.org\n@npm",
    memory_mb: "512",
    cpus: "0.5",
    usd: "1.5",
    n: "4",
    agent: "claude",
    version: "1.2",
    endpoint: OWN_URL,
    base_url: "http://h/v1",
    dialect: "anthropic",
    model: "m",
    disable_thinking: "off",
    patch: "on",
    solution: "never sent to a model",
  };
  assert.deepEqual(argumentsOf(form(draft, { files: { a: "b" } }), "secret"), {
    instruction: "do it\nnow ",
    setup: ["make", "make deps"],
    env: { A: "1", B: "x=y" },
    network: { agent: "allowlist", allow_hosts: ["pypi.org", "@npm"] },
    limits: { memory_mb: 512, cpus: 0.5 },
    budget: { usd: 1.5 },
    n: 4,
    agent: "claude@1.2",
    base_url: "http://h/v1",
    dialect: "anthropic",
    model: "m",
    disable_thinking: false,
    patch: true,
    files: { a: "b" },
    api_key: "secret",
  });
});

test("a task of the server's is named, and what was typed of another is not sent", () => {
  const draft: Form["draft"] = {
    source: "listed",
    task: "t",
    split: "test",
    instruction: "typed before",
    verify: "true",
    test_script: "echo 1",
    mode: "transparent_proxy",
    patch: "off",
    endpoint: "scripted",
  };
  const given = argumentsOf(form(draft, { setup: ["a\nb"], files: { a: "b" } }), "key");
  assert.deepEqual(given, {
    task: { id: "t", split: "test" },
    endpoint: "scripted",
    mode: "transparent_proxy",
    patch: false,
    files: { a: "b" },
  });
});

test("an agent that asks no model is sent no endpoint, and its solution", () => {
  const draft: Form["draft"] = {
    instruction: "x",
    agent: "oracle",
    endpoint: "openai",
    base_url: "http://h",
    model: "m",
    solution: "echo hi",
  };
  assert.deepEqual(argumentsOf(form(draft), "key"), {
    instruction: "x",
    agent: "oracle",
    solution: ["echo hi"],
  });
  assert.equal(argumentsOf(form({ ...draft, agent: "nop" }), "key").solution, undefined);
});

test("what cannot be right is said beside its field", () => {
  const names = (draft: Form["draft"]) => Object.keys(problemsOf(form(draft), context)).sort();
  assert.deepEqual(names({ endpoint: "openai" }), ["instruction"]);
  assert.deepEqual(names({ source: "listed", endpoint: "scripted" }), ["solution", "task"]);
  assert.deepEqual(names({ instruction: "x", endpoint: OWN_URL }), [
    "api_key",
    "base_url",
    "model",
  ]);
  assert.deepEqual(names({ instruction: "x", endpoint: "gone", agent: "gone" }), [
    "agent",
    "endpoint",
  ]);
  assert.deepEqual(names({ instruction: "x", agent: "nop", endpoint: "scripted" }), []);
  const wrong: Form["draft"] = {
    instruction: "x",
    endpoint: "openai",
    base_url: "host/v1",
    n: "65",
    calls: "0",
    usd: "0",
    top_logprobs: "21",
    max_tokens_cap: "1.5",
    agent_timeout_s: "soon",
    env: "A=1\nB",
  };
  assert.deepEqual(
    names(wrong),
    Object.keys(wrong)
      .filter((name) => name !== "instruction" && name !== "endpoint")
      .sort(),
  );
  const right: Form["draft"] = { instruction: "x", endpoint: "openai", max_tokens_cap: "-1" };
  assert.deepEqual(names({ ...right, top_logprobs: "0", n: "64", usd: "0.01" }), []);
  assert.deepEqual(
    problemsOf(form({ source: "listed", task: "t", endpoint: "scripted" }), {
      ...context,
      hasSolution: true,
    }),
    {},
  );
});

test("a preset's arguments come back as they were", () => {
  const request = {
    task_id: "hello",
    instruction: "say hello",
    setup: ["mkdir a"],
    verify: ["test -f a", "if x\nthen y\nfi"],
    files: { "a.txt": "text" },
    endpoint: "scripted",
    solution: [{ run: "echo hi" }],
    agent: "opencode",
    limits: { memory_mb: 512, shm_mb: 64 },
    network: { setup: ["pypi.org"], agent: "none" },
    disable_thinking: true,
    labels: { a: "b" },
  };
  const made = formOf(request);
  assert.equal(made.draft.setup, "mkdir a");
  assert.equal(made.draft.verify, undefined, "a command of several lines has no field");
  assert.deepEqual(argumentsOf(made, ""), request);
});

const task = {
  id: "fix",
  instruction: "fix it",
  files: { "a.py": "1" },
  upload: { "data.bin": "data.bin" },
  setup: ["make"],
  setup_user: "user",
  verify: ["make test"],
  solution: [{ run: "true" }],
  env: {},
  agent_timeout_s: 900,
  command_timeout_s: 120,
  limits: { memory_mb: null, pids: null, cpus: null, disk_mb: null, file_mb: null, shm_mb: null },
  budget: { calls: 9, prompt_tokens: null, completion_tokens: null, usd: null, idle_s: null },
  mode: "transparent_proxy",
  agent: { system_prompt: null, disabled_tools: ["bash"], env: {}, config: {} },
  mcp: { docs: { url: "http://h", headers: { authorization: "***" } } },
} as unknown as Task;

function endpoint(kind: string, changes: Partial<EndpointView> = {}): EndpointView {
  const variables = { base_url: ["URL"], api_key: [], model: [] };
  const rest = {
    configured: true,
    model: null,
    has_key: false,
    default_base_url: null,
    supports_thinking: true,
  };
  return { kind, variables, ...rest, ...changes };
}

/** What is sent again for a rollout of this agent and endpoint. */
function again(agent: object, asked: object, endpoints: EndpointView[] = []) {
  const result = { agent, endpoint: asked, driver: "cli", labels: { run: "7" } };
  const bare = { ...task, upload: {}, mcp: {} };
  const known = result as unknown as Parameters<typeof argumentsAgain>[1];
  const { given, lost } = argumentsAgain(bare, known, endpoints);
  const sent = argumentsOf(formOf(given), "");
  return { sent, lost };
}

test("a rollout that runs again has its task, and tells what is lost", () => {
  const result = {
    agent: { name: "pi", version: "1" },
    endpoint: { kind: "openai", model: "gpt-4o-mini", base_url: "http://o/v1" },
    driver: "cli",
    labels: { run: "7" },
  } as unknown as Parameters<typeof argumentsAgain>[1];
  const known = [endpoint("openai", { default_base_url: "http://o/v1" })];
  const { given, lost } = argumentsAgain(task, result, known);
  assert.equal(lost.length, 3, `${lost}`);
  assert.deepEqual(argumentsOf(formOf(given), ""), {
    task_id: "fix",
    instruction: "fix it",
    files: { "a.py": "1" },
    setup: ["make"],
    verify: ["make test"],
    agent_timeout_s: 900,
    budget: { calls: 9 },
    agent_options: { disabled_tools: ["bash"] },
    mcp: { docs: { url: "http://h" } },
    agent: "pi@1",
    driver: "cli",
    endpoint: "openai",
    model: "gpt-4o-mini",
    labels: { run: "7" },
  });
});

test("a rollout on a URL of its own runs there again, and needs its key", () => {
  const asked = { kind: "custom", base_url: "http://h/v1", model: "m" };
  const { sent, lost } = again({ name: "pi", version: "1" }, asked);
  assert.deepEqual([sent.endpoint, sent.base_url, sent.model], [undefined, "http://h/v1", "m"]);
  assert.equal(sent.solution, undefined);
  assert.ok(lost.includes("the API key"));
});

test("a rollout without a model keeps its solution and names no endpoint", () => {
  const asked = { kind: "none", base_url: "http://127.0.0.1:9/v1", model: "none" };
  const { sent, lost } = again({ name: "oracle", version: "local" }, asked);
  assert.deepEqual([sent.agent, sent.endpoint, sent.model], ["oracle", undefined, undefined]);
  assert.deepEqual(sent.solution, [{ run: "true" }]);
  assert.deepEqual(lost, []);
});

test("a URL that is not the endpoint's own is told, if somebody could have typed it", () => {
  const asked = { kind: "vllm", base_url: "http://elsewhere/v1", model: "m" };
  const lostOf = (known: EndpointView) => again({ name: "pi", version: "1" }, asked, [known]).lost;
  assert.match(lostOf(endpoint("vllm")).join(), /elsewhere/);
  const noVariables = { variables: { base_url: [], api_key: [], model: [] } };
  assert.doesNotMatch(lostOf(endpoint("vllm", noVariables)).join(), /elsewhere/);
});

test("the chosen endpoint is asked with what is typed, once it can be", () => {
  const known = [endpoint("openai", { configured: false }), endpoint("vllm")];
  const asked = (draft: Form["draft"], key = "") => chosenQuestion(draft, key, known);
  assert.equal(asked({ endpoint: "scripted" }), null);
  assert.equal(asked({ endpoint: "openai" }), null);
  assert.deepEqual(asked({ endpoint: "openai" }, "k"), { kind: "openai", api_key: "k" });
  assert.deepEqual(asked({ endpoint: "vllm" }), { kind: "vllm" });
  assert.equal(asked({ endpoint: "vllm", base_url: "half" }), null);
  assert.equal(asked({ endpoint: OWN_URL }, "k"), null);
  assert.deepEqual(asked({ endpoint: OWN_URL, base_url: " http://h " }), {
    kind: "vllm",
    base_url: "http://h",
  });
  assert.equal(asked({ endpoint: OWN_URL, base_url: "http://h", dialect: "anthropic" }), null);
});

test("few endpoints are asked at once, each question once, and late answers stay with theirs", async () => {
  const open: [Question, (answer: EndpointCheck) => void][] = [];
  const checker = new Checker(
    (question) => new Promise((done) => open.push([question, done])),
    () => {},
  );
  const found = (models: string[]) => ({
    kind: "k",
    reachable: true,
    error: null,
    models,
    seconds: 1,
  });
  for (const kind of ["a", "b", "c", "d", "a"]) checker.once({ kind });
  assert.deepEqual(
    open.map(([{ kind }]) => kind),
    ["a", "b", "c"],
  );
  open[1]![1](found(["m"]));
  await new Promise((done) => setTimeout(done));
  assert.equal(open[3]?.[0].kind, "d");
  assert.deepEqual(checker.state({ kind: "b" }), found(["m"]));
  checker.once({ kind: "b" });
  checker.once({ kind: "b", base_url: "http://new" });
  open[0]![1](found([]));
  await new Promise((done) => setTimeout(done));
  assert.deepEqual(open[4]?.[0], { kind: "b", base_url: "http://new" });
  assert.equal(open.length, 5);
  open[2]![1](found(["late"]));
  await new Promise((done) => setTimeout(done));
  assert.equal(checker.state({ kind: "b", base_url: "http://new" }), "asked");
});
