import assert from "node:assert/strict";
import { test } from "node:test";
import type { Task } from "../src/api/types";
import { argumentsOf, OWN_URL, problemsOf, type Form } from "../src/pages/start/form";
import { argumentsAgain, formOf } from "../src/pages/start/prefill";

const context = { countMax: 64, hasSolution: false };
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
    endpoint: "scripted",
  };
  const given = argumentsOf(form(draft), "key");
  assert.deepEqual(given, { task: { id: "t", split: "test" }, endpoint: "scripted" });
});

test("what cannot be right is said beside its field", () => {
  const names = (draft: Form["draft"]) => Object.keys(problemsOf(form(draft), context)).sort();
  assert.deepEqual(names({ endpoint: "openai" }), ["instruction"]);
  assert.deepEqual(names({ source: "listed", endpoint: "scripted" }), ["solution", "task"]);
  assert.deepEqual(names({ instruction: "x", endpoint: OWN_URL }), ["base_url", "model"]);
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

test("a rollout that runs again has its task, and tells what is lost", () => {
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
  const result = {
    agent: { name: "pi", version: "1" },
    endpoint: { kind: "openai", model: "gpt-4o-mini" },
    driver: "cli",
    labels: { run: "7" },
  } as unknown as Parameters<typeof argumentsAgain>[1];
  const { given, lost } = argumentsAgain(task, result);
  assert.equal(lost.length, 2);
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
    agent: "pi",
    driver: "cli",
    endpoint: "openai",
    model: "gpt-4o-mini",
    labels: { run: "7" },
  });
});
