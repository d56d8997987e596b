// Connections that are lost and found again: of a server that is killed, and of one that goes on meanwhile.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { close, launch, open } from "./browser.mjs";
import { Cable } from "./cable.mjs";
import { newHome, Server } from "./server.mjs";
import { endless, hello, talk } from "./tasks.mjs";

let browser;
let server;

// While the server is away its addresses fail, which a browser reports.
const expected = [/Failed to load resource/, /ERR_/];

before(async () => {
  browser = await launch();
  server = await new Server(newHome(), { args: ["--jobs", "2"] }).start();
});
after(async () => {
  await browser?.close();
  await server?.remove();
});

const SPEAKERS = { system: "System", user: "User", assistant: "Model" };

const start = async (task) => (await server.json("/v1/rollouts", task)).rollout_id;

test("the list goes on after the server was killed", async () => {
  const page = await open(browser, { expected });
  await page.goto(`${server.url}/web/#/rollouts`);
  await page.getByText("Live", { exact: true }).waitFor();
  await server.stop("SIGKILL");
  await page.getByText(/Connection lost/).waitFor();
  await server.start();
  await page.getByText("Live", { exact: true }).waitFor({ timeout: 60_000 });
  await start({ ...hello, task_id: "after-the-restart" });
  await page.getByRole("row").filter({ hasText: "after-the-restart" }).waitFor();
  await close(page);
});

test("a rollout that ended with its server is shown as ended", async () => {
  const id = await start(endless);
  const page = await open(browser, { expected });
  await page.goto(`${server.url}/web/#/rollout/${id}`);
  await page
    .getByText(/setup \[2\/2\]: sleep 600/)
    .first()
    .waitFor();
  await server.stop("SIGKILL");
  await page.getByText(/Connection lost/).waitFor();
  await server.start();
  await page.getByText("NO REWARD", { exact: true }).waitFor({ timeout: 60_000 });
  const { ended } = await server.ended(id);
  assert.equal(ended, "engine_failed");
  await page
    .getByText(/engine failed/i)
    .first()
    .waitFor();
  assert.equal(await page.getByRole("button", { name: "Cancel" }).count(), 0);
  await close(page);
});

test("a transcript goes on after its connection was cut, without loss or doubles", async (t) => {
  const id = await start(talk);
  const where = `/v1/rollouts/${id}?trace=none`;
  const say = (text) => server.json(`/v1/rollouts/${id}/messages`, { text });
  const answered = (calls) => server.until(where, (it) => it.idle && it.calls === calls);
  const cable = await new Cable(server.port).start();
  t.after(() => cable.remove());
  const page = await open(browser, { expected });
  /** Waits until each entry of the record is drawn once, in its place, and nothing else is. */
  const shows = async (total) => {
    const { entries } = await server.json(`/v1/rollouts/${id}/transcript`);
    assert.equal(entries.length, total);
    const wanted = entries.map(({ entry, speaker }) => `${entry} ${SPEAKERS[speaker]}`);
    await page.waitForFunction((wanted) => {
      const rows = [...document.querySelectorAll("[data-tab=transcript] [data-index]")];
      const speaker = (row) => row.querySelector(".entry-speaker")?.textContent;
      const drawn = rows.map((row) => `${row.dataset.index} ${speaker(row)}`);
      return JSON.stringify(drawn) === wanted;
    }, JSON.stringify(wanted));
  };
  await page.goto(`${cable.url}/web/#/rollout/${id}/transcript`);
  await page.getByText("The first answer.").first().waitFor({ timeout: 60_000 });
  await answered(1);
  await shows(3);
  cable.cut();
  await page.getByText(/Connection lost/).waitFor();
  await say("Go on.");
  await answered(3);
  cable.mend();
  await page.getByText("The second answer.").first().waitFor({ timeout: 60_000 });
  await shows(6);
  await say("And once more.");
  await answered(4);
  await shows(8);
  for (const text of ["first", "second", "third"])
    assert.equal(await page.getByText(`The ${text} answer.`).count(), 1, text);
  await server.json(`/v1/rollouts/${id}/finalize`, {});
  await page.getByText("PASS", { exact: true }).waitFor({ timeout: 60_000 });
  await shows(8);
  await close(page);
});
