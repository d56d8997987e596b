// Every page once, light and dark, wide and narrow: a picture of each, no serious fault that axe finds, nothing wider than
// the window, nothing in the console.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { axe, launch, open, overflows, quiet, shot } from "./browser.mjs";
import { fill, newHome, Server } from "./server.mjs";
import { endless, hello, hostile, missed } from "./tasks.mjs";

const TOKEN = "a token that is long enough";
const ROUNDS = 4;
const QUESTION = "Which system is this?";
let browser;
let server;
/** Without rollouts, for those who have a token. */
let empty;
let places;
/** The agent that asks before it does something. */
let asking;

before(async () => {
  browser = await launch();
  const home = newHome();
  const long = fill(home, 400, 120);
  server = await new Server(home, {
    args: ["--tasks", new URL("../../examples", import.meta.url).pathname],
  }).start();
  empty = await new Server(newHome(), {
    args: ["--token-env", "E2E_TOKEN"],
    env: { E2E_TOKEN: TOKEN },
  }).start();
  places = { ...(await rolloutPlaces(long)), ...(await livePlaces()) };
});
after(async () => {
  await browser?.close();
  await server?.remove();
  await empty?.remove();
});

async function rolloutPlaces(long) {
  const start = async (task) => (await server.json("/v1/rollouts", task)).rollout_id;
  const [passed, failed, odd] = [await start(hello), await start(missed), await start(hostile)];
  for (const id of [passed, failed, odd]) await server.ended(id);
  const running = await start(endless);
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
  return {
    rollouts: "rollouts",
    "rollouts-failed": "rollouts?verdict=fail",
    start: "start",
    compare: "compare",
    "compare-two": `compare?ids=${passed},${failed}`,
    "compare-files": `compare?ids=${passed},${failed}&view=files`,
    "compare-with": `compare?ids=${passed}`,
    running: `rollout/${running}`,
    hostile: `rollout/${odd}/transcript`,
    "long-transcript": `rollout/${long}/transcript`,
    "long-turns": `rollout/${long}/turns?turn=60`,
    "long-tokens": `rollout/${long}/tokens?turn=60&token=20`,
    "long-graph": `rollout/${long}/graph`,
    ...Object.fromEntries(tabs.map((tab) => [`rollout-${tab}`, `rollout/${passed}/${tab}`])),
  };
}

async function livePlaces() {
  const solution = [{ run: "uname -a" }, { say: "This is Linux." }];
  const body = { name: "pat", endpoint: "scripted", solution };
  const live = await server.json("/v1/live", body);
  await server.json(`/v1/live/${live.id}/turns`, { text: QUESTION });
  await server.until(`/v1/live/${live.id}/turns`, ({ turns }) => turns.every((turn) => turn.end));
  // Asked once in each round.
  const often = Array.from({ length: ROUNDS }, () => solution).flat();
  const careful = { ...body, name: "kim", permissions: "ask", solution: often };
  asking = (await server.json("/v1/live", careful)).id;
  return {
    live: "live",
    "live-start": "live?new=1",
    "live-chat": `live/${live.id}`,
    "live-log": `live/${live.id}?view=log`,
  };
}

/** What is seen only after somebody has done something. */
const ACTIONS = {
  "menu-filters": async (page) => {
    await page.goto(`${server.url}/web/#/rollouts`);
    await page.locator("main .menu-button:visible").first().click();
    await page.locator(".menu-panel").waitFor();
  },
  "dialog-keys": async (page) => {
    await page.goto(`${server.url}/web/#/rollouts`);
    await page.locator("body").press("?");
    await page.getByRole("dialog").waitFor();
  },
  "dialog-stop": async (page) => {
    await page.goto(`${server.url}/web/#/${places["live-chat"]}`);
    await page.getByRole("button", { name: "Stop" }).click();
    await page.getByRole("dialog").waitFor();
  },
  "live-asks": async (page) => {
    await page.goto(`${server.url}/web/#/live/${asking}`);
    await page.getByLabel("What to say to the agent").fill(QUESTION);
    await page.getByRole("button", { name: "Send" }).click();
    await page.getByRole("group", { name: "The agent asks" }).waitFor({ timeout: 90_000 });
  },
  "live-answered": async (page) => {
    await page.getByRole("button", { name: "Allow once" }).click();
    await page.locator(".turn").last().getByText("This is Linux.").waitFor({ timeout: 60_000 });
  },
  "sign-in": async (page) => {
    await page.goto(`${empty.url}/web/`);
    await page.getByRole("heading", { name: "Sign in" }).waitFor();
  },
  welcome: async (page) => {
    await page.getByLabel("Token").fill(TOKEN);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.locator("button.preset").first().waitFor();
  },
  "menu-session": async (page) => {
    await page.getByRole("button", { name: /session/ }).click();
    await page.getByRole("button", { name: "Sign out" }).waitFor();
  },
  "compare-empty": async (page) => {
    await page.goto(`${empty.url}/web/#/compare`);
    await page.getByText("Nothing to compare yet").waitFor();
  },
};

for (const theme of ["light", "dark"]) {
  for (const narrow of [false, true]) {
    const name = `${theme}-${narrow ? "narrow" : "wide"}`;
    test(name, async () => {
      const page = await open(browser, { theme, narrow });
      const found = [];
      const look = async (place) => {
        await quiet(page);
        await shot(page, `${place}-${name}`);
        if (await overflows(page)) found.push(`${place}: wider than the window`);
        for (const fault of await axe(page)) found.push(`${place}: ${fault}`);
      };
      for (const [place, address] of Object.entries(places)) {
        await page.goto(`${server.url}/web/#/${address}`);
        await page.locator("main h1, main h2, main table, main .panel").first().waitFor();
        await look(place);
      }
      for (const [place, act] of Object.entries(ACTIONS)) {
        await act(page);
        await look(place);
        // Menus and dialogs stay open when only the place changes.
        await page.keyboard.press("Escape");
      }
      assert.deepEqual([...found, ...page.faults], []);
      await page.context().close();
    });
  }
}
