// What people do with rollouts, in a real browser against a real server with a real agent.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { close, launch, open, quiet, tab } from "./browser.mjs";
import { newHome, Server } from "./server.mjs";
import { endless, hello, hostile, missed } from "./tasks.mjs";

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

/** Starts a rollout as a program would. */
const start = async (task) => (await server.json("/v1/rollouts", task)).rollout_id;

test("a preset is started, watched to its end, and its tokens are opened", async () => {
  const page = await open(browser);
  await page.goto(server.url);
  assert.match(page.url(), /\/web\/$/, "/ leads to the page");
  await page.getByRole("link", { name: "Start", exact: true }).click();
  await page.locator("button.preset").first().click();
  await page.waitForURL(/#\/rollout\/[0-9a-f-]{36}/);
  await page.getByText("PASS", { exact: true }).waitFor({ timeout: 120_000 });
  await page.getByText(/done in /).waitFor();
  await tab(page, "Transcript").click();
  await page.getByText("It must hold exactly one line").first().waitFor();
  await tab(page, "Tokens").click();
  const id = page.url().match(/[0-9a-f]{8}-[0-9a-f-]{27}/)[0];
  const turns = await server.json(`/v1/rollouts/${id}/turns`);
  const turn = turns.turns.find(({ role }) => role === "agent").turn;
  const tokens = await server.json(`/v1/rollouts/${id}/turns/${turn}/tokens`);
  assert.ok(tokens.total > 0);
  await page.goto(`${server.url}/web/#/rollout/${id}/tokens?turn=${turn}&token=1`);
  const card = page.getByLabel("The chosen token");
  await card.getByText(`${tokens.tokens[1].id}`, { exact: true }).waitFor();
  await card.getByText("1, trained on").waitFor();
  const shown = await page.locator("[data-token]").count();
  assert.equal(shown, tokens.total, "every sampled token is there once");
  await page.locator('[data-token="1"]').press("ArrowRight");
  await page.waitForURL(/token=2/);
  await close(page);
});

test("a running rollout is reloaded in the middle and cancelled", async () => {
  const id = await start(endless);
  const page = await open(browser);
  await page.goto(`${server.url}/web/#/rollout/${id}`);
  await page
    .getByText(/setup \[2\/2\]: sleep 600/)
    .first()
    .waitFor();
  await page.reload();
  await page
    .getByText(/setup \[2\/2\]: sleep 600/)
    .first()
    .waitFor();
  await tab(page, "Commands").click();
  await page.getByText("echo one").waitFor();
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("button", { name: "Cancel the rollout" }).click();
  await page.getByText("NO REWARD", { exact: true }).waitFor();
  assert.equal((await server.ended(id)).ended, "cancelled");
  await close(page);
});

test("the list follows what happens, finds and filters", async () => {
  const page = await open(browser);
  await page.goto(`${server.url}/web/#/rollouts`);
  await page.getByText("Live", { exact: true }).waitFor();
  const id = await start({ ...hello, task_id: "seen-live" });
  const row = page.getByRole("row").filter({ hasText: "seen-live" });
  await row.waitFor();
  await row.getByText("PASS").waitFor({ timeout: 120_000 });
  await page.keyboard.press("/");
  await page.keyboard.type("seen-live");
  await page.waitForURL(/q=seen-live/);
  const others = page.getByRole("row").filter({ hasText: "endless" });
  await others.first().waitFor({ state: "detached" });
  assert.equal(await page.getByRole("row").filter({ hasText: "PASS" }).count(), 1);
  await page.getByRole("row").filter({ hasText: "seen-live" }).getByRole("link").first().click();
  await page.waitForURL(new RegExp(id));
  await close(page);
});

test("two rollouts of a task are compared", async () => {
  const ids = [
    await start({ ...hello, task_id: "pair" }),
    await start({ ...missed, task_id: "pair" }),
  ];
  for (const id of ids) await server.ended(id);
  const page = await open(browser);
  await page.goto(`${server.url}/web/#/rollouts?task=pair`);
  const boxes = page.getByRole("checkbox", { name: /Select pair/ });
  await boxes.first().check();
  await boxes.nth(1).check();
  await page.getByRole("link", { name: "Compare", exact: true }).last().click();
  await page.getByRole("heading", { name: "Side by side" }).waitFor();
  await page.getByText("It is done.").first().waitFor();
  await page.getByText("I could not do it.").first().waitFor();
  await page.goto(`${server.url}/web/#/compare?task=pair`);
  // One of two passed: half of the first tries do, and one of two always.
  const table = page.getByRole("region", { name: "pass@k as a table" });
  await table.getByRole("columnheader", { name: "pass@2" }).waitFor();
  assert.deepEqual(await table.getByRole("cell").allTextContents(), ["50.0%", "100.0%"]);
  await close(page);
});

test("a hostile transcript is text and nothing else", async () => {
  const id = await start(hostile);
  const result = await server.ended(id);
  assert.equal(result.ended, "completed", result.error);
  const page = await open(browser);
  // What shows that a tab has its content: what the agent or the task said, where the tab has that.
  const contents = {
    overview: "text=<script>alert('instruction')</script>",
    transcript: "text=<script>alert('instruction')</script>",
    turns: "text=javascript:alert(4)",
    tokens: "[data-token]",
    graph: "svg g text",
    commands: "text=<b>bold</b>",
    files: "text=<img src=x onerror=alert(2)>.txt",
    network: ".panel",
    resources: "table td",
    log: "text=<img src=x onerror=alert(2)>.txt",
    export: "text=sequences",
  };
  for (const [name, content] of Object.entries(contents)) {
    await page.goto(`${server.url}/web/#/rollout/${id}/${name}`);
    await page.locator(`[data-tab=${name}]`).locator(content).first().waitFor();
    await quiet(page);
    const made = page.locator("main :is(img, script, iframe, object, embed, [onerror])");
    assert.equal(await made.count(), 0, name);
    const styled = page.locator("main :is(b, i)").filter({ hasText: /^(bold|italic)$/ });
    assert.equal(await styled.count(), 0, name);
  }
  const tabs = page.getByRole("navigation", { name: "Parts of the rollout" }).getByRole("link");
  assert.equal(await tabs.count(), Object.keys(contents).length, "every tab was looked at");
  await page.goto(`${server.url}/web/#/rollout/${id}/transcript`);
  await page
    .getByText('<img src="http://evil.example/a.png" onerror="alert(3)">')
    .first()
    .waitFor();
  await page.getByText("U+202E").first().waitFor();
  await page.goto(`${server.url}/web/#/rollouts`);
  await page.getByText('<img src="http://evil.example/task.png"').first().waitFor();
  const raw = await fetch(`${server.url}/v1/rollouts/${id}/turns/0/raw?what=request`);
  assert.equal(raw.headers.get("x-content-type-options"), "nosniff");
  assert.match(raw.headers.get("content-type"), /^text\/plain/);
  await close(page);
});

test("a rollout is saved as one file that opens without a server", async () => {
  const id = await start(hostile);
  await server.ended(id);
  const page = await open(browser, { expected: [/net::ERR/] });
  await page.goto(`${server.url}/web/#/rollout/${id}`);
  const [download] = await Promise.all([
    page.waitForEvent("download"),
    page.getByRole("link", { name: "Save as page" }).click(),
  ]);
  const file = join(server.home, "saved.html");
  await download.saveAs(file);
  const text = readFileSync(file, "utf8");
  const hosts = [...text.matchAll(/https?:\/\/[\w.-]+/g)].map(([host]) => host);
  const known = ["http://evil.example", "http://www.w3.org"];
  assert.deepEqual(
    hosts.filter((host) => !known.includes(host)),
    [],
    "nothing of elsewhere",
  );
  await close(page);
  const alone = await open(browser, { offline: true });
  await alone.goto(`file://${file}`);
  await tab(alone, "Transcript").click();
  await alone.getByText('onerror="alert(3)"').first().waitFor();
  await tab(alone, "Tokens").click();
  await alone.locator("[data-token]").first().waitFor();
  await close(alone);
});
