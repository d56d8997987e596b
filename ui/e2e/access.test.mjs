// Who gets in, and from where.
import assert from "node:assert/strict";
import { createServer, request } from "node:http";
import { after, before, test } from "node:test";
import { launch, open } from "./browser.mjs";
import { newHome, Server } from "./server.mjs";
import { unhurried } from "./tasks.mjs";

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
  // A page on another port of this machine has the cookie sent along, since ports are the same site, and gets nothing.
  const withToken = async (path, body) => {
    const headers = { authorization: `Bearer ${TOKEN}`, "content-type": "application/json" };
    const init = body ? { method: "POST", body: JSON.stringify(body), headers } : { headers };
    return (await fetch(`${server.url}${path}`, init)).json();
  };
  const { rollout_id: id } = await withToken("/v1/rollouts", unhurried);
  let cookies;
  const foreign = createServer((asked, answer) => {
    cookies ??= asked.headers.cookie;
    answer.end("<h1>foreign</h1>");
  }).listen(0, "127.0.0.1");
  await new Promise((wake) => foreign.once("listening", wake));
  const other = await page.context().newPage();
  await other.goto(`http://127.0.0.1:${foreign.address().port}/`);
  assert.match(cookies, /rollcage_token/);
  const refused = await other.evaluate(
    async ([cancel, list]) => {
      await fetch(cancel, { method: "POST", mode: "no-cors", credentials: "include" });
      const read = fetch(list, { credentials: "include" });
      return read.then(
        () => "read",
        () => "refused",
      );
    },
    [`${server.url}/v1/rollouts/${id}/cancel`, `${server.url}/v1/rollouts`],
  );
  assert.equal(refused, "refused");
  foreign.close();
  let result;
  do {
    await new Promise((wake) => setTimeout(wake, 100));
    result = await withToken(`/v1/rollouts/${id}`);
  } while (result.status !== "ended");
  assert.equal(result.ended, "completed", "nobody cancelled it");
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

test("in the frame of a site that the operator names, and of no other", async () => {
  const sites = ["named", "foreign"].map((name) =>
    createServer((_, answer) => {
      answer.setHeader("content-type", "text/html");
      answer.end(`<title>${name}</title><iframe width="1200" height="800"></iframe>`);
    }).listen(0, "localhost"),
  );
  await Promise.all(sites.map((site) => new Promise((wake) => site.once("listening", wake))));
  const [named, foreign] = sites.map((site) => `http://localhost:${site.address().port}`);
  const framed = new Server(newHome(), {
    args: ["--token-env", "E2E_TOKEN", "--frame-ancestor", named],
    env: { E2E_TOKEN: TOKEN },
  });
  await framed.start();
  const page = await open(browser, { expected: [/status of 401/, /frame-ancestors/] });
  const show = async (site) => {
    await page.goto(site);
    await page.locator("iframe").evaluate((frame, url) => {
      frame.src = url;
    }, `${framed.url}/web/`);
    return page.frameLocator("iframe");
  };
  const frame = await show(named);
  await signIn(frame, TOKEN);
  await frame.getByRole("heading", { name: "Rollouts" }).waitFor();
  const [cookie] = await page.context().cookies(framed.url);
  assert.equal(cookie.sameSite, "None");
  assert.equal(cookie.httpOnly, true);
  await page.reload();
  const again = await show(named);
  await again.getByRole("heading", { name: "Rollouts" }).waitFor();
  // Elsewhere the browser shows nothing of it.
  const refused = page.waitForEvent("console", {
    predicate: (message) => /frame-ancestors/.test(message.text()),
  });
  await show(foreign);
  await refused;
  assert.deepEqual(page.faults, []);
  await page.context().close();
  sites.forEach((site) => site.close());
  await framed.remove();
});
