// Every page once, light and dark, wide and narrow: a picture of each, no serious fault that axe finds, nothing wider than
// the window, nothing in the console.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { axe, launch, open, overflows, shot } from "./browser.mjs";
import { fill, newHome, Server } from "./server.mjs";
import { endless, hello, hostile, missed } from "./tasks.mjs";

let browser;
let server;
let places;

before(async () => {
  browser = await launch();
  const home = newHome();
  const long = fill(home, 400, 120);
  server = await new Server(home, {
    args: ["--tasks", new URL("../../examples", import.meta.url).pathname],
  }).start();
  const start = async (task) => (await server.json("/v1/rollouts", task)).rollout_id;
  const [passed, failed, odd] = [await start(hello), await start(missed), await start(hostile)];
  for (const id of [passed, failed, odd]) await server.ended(id);
  const running = await start(endless);
  const solution = [{ run: "uname -a" }, { say: "This is Linux." }];
  const live = await server.json("/v1/live", { name: "pat", endpoint: "scripted", solution });
  const turn = await server.json(`/v1/live/${live.id}/turns`, { text: "Which system is this?" });
  assert.ok(turn.turn_id);
  const tabs = [
    "overview",
    "transcript",
    "turns",
    "tokens",
    "graph",
    "commands",
    "files",
    "network",
    "resources",
    "log",
    "export",
  ];
  places = {
    rollouts: "rollouts",
    "rollouts-failed": "rollouts?verdict=fail",
    start: "start",
    compare: "compare",
    "compare-two": `compare?ids=${passed},${failed}`,
    live: "live",
    "live-chat": `live/${live.id}`,
    running: `rollout/${running}`,
    hostile: `rollout/${odd}/transcript`,
    "long-transcript": `rollout/${long}/transcript`,
    "long-turns": `rollout/${long}/turns?turn=60`,
    "long-tokens": `rollout/${long}/tokens?turn=60&token=20`,
    "long-graph": `rollout/${long}/graph`,
    ...Object.fromEntries(tabs.map((tab) => [`rollout-${tab}`, `rollout/${passed}/${tab}`])),
  };
});
after(async () => {
  await browser?.close();
  await server?.remove();
});

for (const theme of ["light", "dark"]) {
  for (const narrow of [false, true]) {
    const name = `${theme}-${narrow ? "narrow" : "wide"}`;
    test(name, async () => {
      const page = await open(browser, { theme, narrow });
      const found = [];
      for (const [place, address] of Object.entries(places)) {
        await page.goto(`${server.url}/web/#/${address}`);
        await page.locator("main h1, main h2, main table, main .panel").first().waitFor();
        // What is still loading; the event stream never ends.
        await page.waitForTimeout(700);
        await shot(page, `${place}-${name}`);
        if (await overflows(page)) found.push(`${place}: wider than the window`);
        for (const fault of await axe(page)) found.push(`${place}: ${fault}`);
      }
      assert.deepEqual([...found, ...page.faults], []);
      await page.context().close();
    });
  }
}
