// Who gets in, and from where.
import assert from "node:assert/strict";
import { createServer, request } from "node:http";
import { after, before, test } from "node:test";
import { launch, open } from "./browser.mjs";
import { newHome, Server } from "./server.mjs";

const TOKEN = "a token/with+odd=characters";
let browser;
let server;

before(async () => {
  browser = await launch();
  server = new Server(newHome(), { args: ["--token-env", "E2E_TOKEN"], env: { E2E_TOKEN: TOKEN } });
  await server.start();
});
after(async () => {
  await browser?.close();
  await server?.remove();
});

const signIn = async (page, token) => {
  await page.getByLabel(/token/i).fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
};

test("signing in with the server's token", async () => {
  const page = await open(browser, { expected: [/status of 401/] });
  await page.goto(`${server.url}/web/`);
  await signIn(page, "wrong");
  await page.getByRole("alert").waitFor();
  await signIn(page, TOKEN);
  await page.getByRole("heading", { name: "Rollouts" }).waitFor();
  await page.getByText("Live", { exact: true }).waitFor();
  const [cookie] = await page.context().cookies();
  assert.equal(cookie.httpOnly, true);
  assert.equal(cookie.sameSite, "Strict");
  assert.equal(await page.evaluate(() => document.cookie), "", "no script sees it");
  await page.reload();
  await page.getByRole("heading", { name: "Rollouts" }).waitFor();
  assert.deepEqual(page.faults, []);
  // A page of another origin has the cookie sent along at most, and gets nothing.
  const foreign = createServer((_, answer) => answer.end("<h1>foreign</h1>")).listen(
    0,
    "localhost",
  );
  await new Promise((wake) => foreign.once("listening", wake));
  const other = await page.context().newPage();
  await other.goto(`http://localhost:${foreign.address().port}/`);
  const refused = await other.evaluate(async (url) => {
    const headers = { "content-type": "text/plain" };
    const init = { method: "POST", body: "{}", mode: "no-cors", credentials: "include", headers };
    await fetch(`${url}/v1/rollouts`, init);
    return fetch(`${url}/v1/rollouts`, { credentials: "include" }).then(
      () => "read",
      () => "refused",
    );
  }, server.url);
  assert.equal(refused, "refused");
  foreign.close();
  const listed = await fetch(`${server.url}/v1/rollouts`, {
    headers: { authorization: `Bearer ${TOKEN}` },
  });
  assert.equal((await listed.json()).total, 0, "nothing was started");
  await page.context().close();
});

test("below a path prefix", async () => {
  const proxy = createServer((asked, answer) => {
    if (!asked.url.startsWith("/deep/prefix/")) return answer.writeHead(404).end();
    const path = asked.url.slice("/deep/prefix".length);
    const { port } = server;
    const headers = asked.headers;
    const onward = request(
      { host: "127.0.0.1", port, path, method: asked.method, headers },
      (got) => {
        answer.writeHead(got.statusCode, got.headers);
        got.pipe(answer);
      },
    );
    onward.on("error", () => answer.destroy());
    asked.pipe(onward);
  }).listen(0, "127.0.0.1");
  await new Promise((wake) => proxy.once("listening", wake));
  const page = await open(browser, { expected: [/status of 401/] });
  await page.goto(`http://127.0.0.1:${proxy.address().port}/deep/prefix/web`);
  await signIn(page, TOKEN);
  await page.getByText("Live", { exact: true }).waitFor();
  await page.getByRole("link", { name: "Start", exact: true }).click();
  await page.locator("button.preset").first().waitFor();
  await page.goto(`http://127.0.0.1:${proxy.address().port}/deep/prefix/docs`);
  await page.getByText("/v1/rollouts", { exact: false }).first().waitFor();
  assert.deepEqual(page.faults, []);
  await page.context().close();
  proxy.closeAllConnections();
  proxy.close();
});
