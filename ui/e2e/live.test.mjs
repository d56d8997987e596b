// Talking to a live agent.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, open } from "./browser.mjs";
import { newHome, Server } from "./server.mjs";

let browser;
let server;

before(async () => {
  browser = await launch();
  server = await new Server(newHome()).start();
});
after(async () => {
  await browser?.close();
  await server?.remove();
});

test("a live agent is talked to, looked at and stopped", async () => {
  const solution = [{ run: "echo from the tool" }, { say: "Hello from the agent." }];
  const started = await server.json("/v1/live", { name: "pat", endpoint: "scripted", solution });
  const page = await open(browser);
  await page.goto(`${server.url}/web/#/live`);
  await page.getByRole("link", { name: "pat" }).click();
  await page.waitForURL(new RegExp(started.id));
  await page.getByLabel("What to say to the agent").fill("Say hello");
  await page.getByRole("button", { name: "Send" }).click();
  await page.getByText("Hello from the agent.").first().waitFor({ timeout: 90_000 });
  await page.reload();
  await page.getByText("Hello from the agent.").first().waitFor();
  await page.getByRole("button", { name: "Stop" }).first().click();
  await page.getByRole("dialog").getByRole("button", { name: /Stop/ }).click();
  await page
    .getByText(/stopped/i)
    .first()
    .waitFor({ timeout: 60_000 });
  assert.deepEqual(page.faults, []);
  await page.context().close();
});
