// Talking to a live agent, and looking at it.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { close, launch, open, quiet } from "./browser.mjs";
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

const startAgent = (name, solution, more = {}) =>
  server.json("/v1/live", { name, endpoint: "scripted", solution, ...more });

const badge = (page, state) => page.locator("main .badge").getByText(state, { exact: true });

const say = async (page, text) => {
  await page.getByLabel("What to say to the agent").fill(text);
  await page.getByRole("button", { name: /^(Send|Queue)$/ }).click();
};

/** Waits until this much of the log is below what is seen. */
const belowView = (page, [least, most]) =>
  page.waitForFunction(
    ([least, most]) => {
      const box = document.querySelector(".live-log");
      const below = box.scrollHeight - box.scrollTop - box.clientHeight;
      return least <= below && below <= most;
    },
    [least, most],
  );

const isInView = (locator) =>
  locator.evaluate((it) => {
    const [own, box] = [it, it.closest(".chat-log")].map((one) => one.getBoundingClientRect());
    return own.top >= box.top && own.bottom <= box.bottom;
  });

test("a live agent is talked to, looked at and stopped", async () => {
  const solution = [{ run: "echo from the tool" }, { say: "Hello from the agent." }];
  const started = await startAgent("pat", solution);
  const page = await open(browser);
  await page.goto(`${server.url}/web/#/live`);
  await page.getByRole("link", { name: "pat" }).click();
  await page.waitForURL(new RegExp(started.id));
  await badge(page, "IDLE").waitFor();
  await say(page, "Say hello");
  await page.getByText("Hello from the agent.").first().waitFor({ timeout: 90_000 });
  await page.reload();
  await page.getByText("Hello from the agent.").first().waitFor();
  await page.getByText("Its server answers.").waitFor();
  await page.getByRole("link", { name: "Log", exact: true }).click();
  const log = await (await fetch(`${server.url}/v1/live/${started.id}/logs`)).text();
  const [line] = log.split("\n").filter((it) => it.trim());
  await page.getByRole("region", { name: "Log" }).getByText(line.trim()).first().waitFor();
  assert.equal(await badge(page, "STOPPED").count(), 0);
  await page.getByRole("button", { name: "Stop" }).first().click();
  await page.getByRole("dialog").getByRole("button", { name: /Stop/ }).click();
  await badge(page, "STOPPED").waitFor({ timeout: 60_000 });
  await page.getByText("Its server does not run.").waitFor();
  const { agents } = await server.json("/v1/live");
  assert.equal(agents.find(({ id }) => id === started.id).state, "stopped");
  await close(page);
});

test("health is asked again by itself, and an error is no health", async () => {
  const { id } = await startAgent("well", [{ say: "Hello." }]);
  const page = await open(browser, { expected: [/status of 404/] });
  await page.route("**/health", (route) =>
    route.fulfill({
      status: 404,
      json: { error: { code: "not_found", message: "no such agent" } },
    }),
  );
  await page.goto(`${server.url}/web/#/live/${id}`);
  await page.getByText("Not known: no such agent").waitFor();
  await page.unroute("**/health");
  await page.getByText("Its server answers.").waitFor();
  assert.equal(await page.getByText("undefined").count(), 0);
  await close(page);
});

test("a log follows its end, unless its reader looks at something else", async () => {
  const { id } = await startAgent("talkative", [{ say: "Hello." }]);
  let lines = 500;
  const page = await open(browser);
  await page.route("**/logs", (route) =>
    route.fulfill({
      contentType: "text/plain",
      body: Array.from({ length: lines }, (_, at) => `line ${at + 1}`).join("\n"),
    }),
  );
  await page.goto(`${server.url}/web/#/live/${id}?view=log`);
  const log = page.getByRole("region", { name: "Log" });
  const grown = (to) => {
    lines = to;
    return log.getByText(`line ${to}`).waitFor({ state: "attached" });
  };
  await grown(501);
  await belowView(page, [0, 5]);
  await grown(700);
  await belowView(page, [0, 5]);
  await log.hover();
  await page.mouse.wheel(0, -1500);
  await belowView(page, [1000, 2000]);
  const place = await log.evaluate((it) => it.scrollTop);
  await grown(900);
  await quiet(page);
  assert.equal(
    await log.evaluate((it) => it.scrollTop),
    place,
    "the reader is left where they are",
  );
  await close(page);
});

test("a permission is given and refused, and a lost answer can be given again", async () => {
  const solution = [
    { run: "echo first-was-allowed" },
    { say: "The first is done." },
    { run: "echo second-was-allowed" },
    { say: "The second is done." },
  ];
  const { id } = await startAgent("careful", solution, { permissions: "ask" });
  const page = await open(browser, { expected: [/ERR_FAILED/] });
  await page.goto(`${server.url}/web/#/live/${id}`);
  await say(page, "Do the first");
  const asked = page.getByRole("group", { name: "The agent asks" });
  await asked.getByText("echo first-was-allowed").waitFor({ timeout: 90_000 });
  await page.route("**/answer", (route) => route.abort());
  await asked.getByRole("button", { name: "Allow once" }).click();
  await asked.getByRole("alert").getByText("Your answer did not arrive").waitFor();
  await page.unroute("**/answer");
  await asked.getByRole("button", { name: "Allow once" }).click();
  await page.getByText("You allowed it once.").waitFor();
  await page.getByText("The first is done.").first().waitFor({ timeout: 60_000 });
  await close(page);
  // A clock that is an hour ahead hides nothing.
  const ahead = await open(browser, { narrow: true });
  await ahead.clock.setFixedTime(Date.now() + 3_600_000);
  await ahead.goto(`${server.url}/web/#/live/${id}`);
  await say(ahead, "Do the second");
  const again = ahead.getByRole("group", { name: "The agent asks" });
  await again.getByText("By this computer's clock").waitFor({ timeout: 90_000 });
  await ahead.waitForFunction(() => {
    const [own, box] = [".ask", ".chat-log"].map((it) =>
      document.querySelector(it).getBoundingClientRect(),
    );
    return own.bottom <= box.bottom && own.bottom > box.top;
  });
  await again.getByRole("button", { name: "Refuse" }).click();
  await again.waitFor({ state: "detached" });
  const all = `/v1/live/${id}/turns`;
  const { turns } = await server.until(all, ({ turns }) => turns.every((turn) => turn.end));
  const { replies } = await server.json(`${all}/${turns[0].turn_id}`);
  const tools = replies.filter(({ kind }) => kind === "tool");
  assert.equal(tools.at(-1).status, "error", "what was refused was not done");
  await close(ahead);
});

test("a long chat is read to its beginning, page by page", async () => {
  const { id } = await startAgent("old", [{ say: "Hello." }]);
  const end = { kind: "error", seq: 1, code: "aborted", message: "m", retryable: false };
  const turns = Array.from({ length: 640 }, (_, at) => ({
    turn_id: `turn-${at}`,
    trace_id: "t",
    session_id: "s",
    text: `message number ${at}`,
    started_at: at,
    finished_at: at,
    end,
  })).toReversed();
  const page = await open(browser);
  await page.route(/\/turns\?/, (route) => {
    const query = new URL(route.request().url()).searchParams;
    const [offset, limit] = [Number(query.get("offset") ?? 0), Number(query.get("limit"))];
    const next = offset + limit;
    const next_offset = next < turns.length ? next : null;
    return route.fulfill({ json: { turns: turns.slice(offset, next), next_offset } });
  });
  await page.route(/\/turns\/turn-/, (route) => route.fulfill({ json: { replies: [end] } }));
  await page.goto(`${server.url}/web/#/live/${id}`);
  const shown = page.locator(".turn");
  await page.getByText("message number 639").waitFor();
  assert.equal(await shown.count(), 30);
  const earlier = page.getByRole("button", { name: "Earlier turns" });
  for (let first = 610; first > 0;) {
    const before = page.getByText(`message number ${first}`, { exact: true });
    await earlier.click();
    first = Math.max(0, first - 30);
    await page.getByText(`message number ${first}`, { exact: true }).waitFor();
    assert.ok(await isInView(before), "what was read stays where it was");
  }
  assert.equal(await shown.count(), 640);
  assert.equal(await earlier.count(), 0);
  assert.equal(await page.getByRole("button", { name: "Send" }).count(), 1, "none is open");
  await close(page);
});
