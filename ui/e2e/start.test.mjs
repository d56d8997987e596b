// Starting rollouts with the form, and doing things with several of them by keyboard.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { close, launch, open } from "./browser.mjs";
import { newHome, Server } from "./server.mjs";

let browser;
let server;

before(async () => {
  browser = await launch();
  server = await new Server(newHome(), { args: ["--jobs", "2"] }).start();
});
after(async () => {
  await browser?.close();
  await server?.remove();
});

/** Waits until a field holds this. */
async function holds(field, value) {
  for (const limit = Date.now() + 30_000; Date.now() < limit;) {
    if ((await field.inputValue()) === value) return;
    await new Promise((wake) => setTimeout(wake, 50));
  }
  assert.equal(await field.inputValue(), value);
}

test("a task is written, checked beside its fields, survives a reload, and runs", async () => {
  const page = await open(browser);
  await page.goto(`${server.url}/web/#/start`);
  const start = page.getByRole("button", { name: "Start", exact: true });
  await page.getByRole("radio", { name: "scripted" }).check();
  await start.click();
  await page.getByText("Say what the agent shall do.").waitFor();
  await page.getByText("Say which commands the script plays").waitFor();
  await page.getByLabel("Task id").fill("typed-here");
  await page.getByLabel("Instruction").fill("Write out.txt.");
  await page.getByLabel("Setup, one command per line").fill("echo one\necho two");
  await page.getByLabel("Verify, one command per line").fill("test -f out.txt\ntest -f never.txt");
  await page.getByLabel("What the script plays").fill("echo hi > out.txt");
  await page.reload();
  assert.equal(await page.getByLabel("Task id").inputValue(), "typed-here");
  await page.getByRole("button", { name: "Copy as command line" }).click();
  await page.getByLabel("Command line", { exact: true }).getByText("rollcage run").waitFor();
  assert.match(page.url(), /#\/start$/, "copying starts nothing");
  await start.click();
  await page.waitForURL(/#\/rollout\/[0-9a-f-]{36}/);
  await page.getByText("PARTIAL", { exact: true }).first().waitFor({ timeout: 120_000 });
  const [id] = page.url().match(/[0-9a-f]{8}-[0-9a-f-]{27}/);
  const result = await server.ended(id);
  assert.equal(result.task_id, "typed-here");
  assert.equal(result.reward, 0.5);
  assert.equal(result.setup_results.length, 2);
  await page.goto(`${server.url}/web/#/start`);
  await page.getByRole("button", { name: "Empty the form" }).click();
  assert.equal(await page.getByLabel("Task id").inputValue(), "");
  await page.goto(`${server.url}/web/#/start?from=${id}`);
  await holds(page.getByLabel("Task id"), "typed-here");
  await holds(page.getByLabel("Setup, one command per line"), "echo one\necho two");
  await close(page);
});

test("a key is never kept", async () => {
  const page = await open(browser);
  await page.goto(`${server.url}/web/#/start`);
  await page.getByRole("radio", { name: "another URL" }).check();
  await page.getByLabel("API key").fill("very-secret");
  await page.getByLabel("Instruction").fill("anything");
  const stored = await page.evaluate(() => JSON.stringify([sessionStorage, localStorage]));
  assert.match(stored, /anything/);
  assert.doesNotMatch(stored, /very-secret/);
  await page.reload();
  assert.equal(await page.getByLabel("API key").inputValue(), "");
  await close(page);
});

test("a key that is typed is sent to its endpoint only, and only when somebody asks for that", async () => {
  const page = await open(browser);
  const asked = [];
  // The endpoints are none that this machine reaches: what the page asks of the server is what counts.
  await page.route("**/v1/endpoints/*/check", (route) => {
    const { pathname } = new URL(route.request().url());
    const kind = pathname.split("/").at(-2);
    asked.push([kind, route.request().postDataJSON().api_key ?? null]);
    return route.fulfill({
      json: { kind, reachable: true, models: ["m"], error: null, seconds: 0.1 },
    });
  });
  await page.goto(`${server.url}/web/#/start`);
  await page.getByRole("radio", { name: "anthropic" }).check();
  await page.getByLabel("API key").fill("sk-very-secret");
  await page.getByRole("button", { name: "Check anthropic" }).click();
  await page.getByRole("button", { name: "Check anthropic again" }).waitFor();
  await page.getByRole("radio", { name: "openrouter" }).check();
  assert.equal(await page.getByLabel("API key").inputValue(), "");
  // Asked with a typed URL, after the pause, and without the key.
  await page.getByLabel("Base URL").fill("https://openrouter.example/v1");
  await page.getByRole("button", { name: "Check openrouter again" }).waitFor();
  assert.deepEqual(
    asked.filter(([, key]) => key !== null),
    [["anthropic", "sk-very-secret"]],
  );
  await close(page);
});

test("rollouts are chosen, opened and deleted by keyboard", async () => {
  const task = { task_id: "many", endpoint: "scripted", agent: "nop", instruction: "Do nothing." };
  const body = { ...task, solution: ["true"], verify: ["true"], n: 3 };
  const { rollout_ids: ids } = await server.json("/v1/rollouts", body);
  for (const id of ids) await server.ended(id);
  const page = await open(browser);
  await page.goto(`${server.url}/web/#/rollouts?task=many`);
  const rows = page.getByRole("row").filter({ hasText: "many" });
  await rows.nth(2).waitFor();
  await page.keyboard.press("j");
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.waitForURL(new RegExp(ids.toSorted().toReversed()[1]));
  await page.goBack();
  await rows.nth(2).waitFor();
  await page.keyboard.press("Home");
  await page.keyboard.press("x");
  await page.getByText("1 selected").waitFor();
  await page.keyboard.press("End");
  await page.keyboard.press("Shift+X");
  await page.getByText("3 selected").waitFor();
  await page.getByRole("button", { name: "Delete 3" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByText("No rollout matches.").waitFor();
  assert.equal((await server.json("/v1/rollouts?task=many")).total, 0);
  await close(page);
});
