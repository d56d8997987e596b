// How fast the page is, in a real browser on this machine: medians over several loads, with 10,000 rollouts stored and one
// of 2,000 turns. Run it with scripts/page/bench.
import { launch, open } from "./browser.mjs";
import { fill, newHome, Server } from "./server.mjs";

const ROUNDS = Number(process.env.ROUNDS ?? 7);
const GOALS = { paint_ms: 1000, interaction_ms: 100, first_load_kb: 300 };

const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];

/** Bytes on the wire by address, as the browser counts them. */
async function countBytes(page) {
  const session = await page.context().newCDPSession(page);
  await session.send("Network.enable");
  const names = new Map();
  const sizes = new Map();
  session.on("Network.responseReceived", ({ requestId, response }) =>
    names.set(requestId, response.url),
  );
  session.on("Network.loadingFinished", ({ requestId, encodedDataLength }) => {
    const name = names.get(requestId);
    if (name) sizes.set(name, encodedDataLength);
  });
  return sizes;
}

/** Milliseconds from an action to the frame in which the page shows its outcome. */
async function interaction(page, act, isShown, argument) {
  await page.evaluate(
    ({ source, argument }) => {
      const isShown = new Function("argument", `return (${source})(argument)`);
      globalThis.benchDone = new Promise((done) => {
        const first = (event) => {
          const from = event.timeStamp;
          const look = () =>
            isShown(argument)
              ? requestAnimationFrame(() => done(performance.now() - from))
              : requestAnimationFrame(look);
          look();
        };
        for (const kind of ["pointerdown", "keydown", "wheel"])
          addEventListener(kind, first, { once: true, capture: true });
      });
    },
    { source: isShown.toString(), argument },
  );
  await act();
  return page.evaluate(() => globalThis.benchDone);
}

const home = newHome();
const longest = fill(home, 10000, 2000);
const server = await new Server(home).start();
const browser = await launch();
const figures = {};
const note = (name, value) => (figures[name] ??= []).push(value);
const faults = new Set();
let firstLoad = [];
let lazy = [];
let docs = [];
try {
  for (let round = 0; round < ROUNDS; round += 1) {
    // The policy forbids `new Function` in the page; the measuring code is ours.
    const page = await open(browser, { bypassCSP: true });
    const sizes = await countBytes(page);
    await page.goto(`${server.url}/web/`);
    await page.getByRole("row").nth(5).waitFor();
    const paint = await page.evaluate(
      () => performance.getEntriesByName("first-contentful-paint")[0].startTime,
    );
    note("first paint", paint);
    note("list shown", await page.evaluate(() => performance.now()));
    firstLoad = [...sizes].filter(([name]) => name.includes("/web/"));
    await page.locator("body").click({ position: { x: 2, y: 300 } });
    note(
      "list: next row (j)",
      await interaction(
        page,
        () => page.keyboard.press("j"),
        () => document.querySelector(".active") !== null,
      ),
    );
    const header = page.getByRole("columnheader", { name: /Reward/ }).getByRole("button");
    note(
      "list: sort by reward",
      await interaction(
        page,
        () => header.click(),
        () =>
          /sort=reward/.test(location.hash) &&
          !document.querySelector(".blank, .rollouts-panel.old"),
      ),
    );
    const box = page.locator(".virtual").first();
    await box.hover();
    note(
      "list: scroll 4,000 pixels",
      await interaction(
        page,
        () => page.mouse.wheel(0, 4000),
        () =>
          document.querySelector(".virtual")?.scrollTop > 1000 && !document.querySelector(".blank"),
      ),
    );
    await page.keyboard.press("/");
    note(
      "list: search, first letter shown",
      await interaction(
        page,
        () => page.keyboard.type("q"),
        () => document.activeElement.value === "q",
      ),
    );
    const long = `${server.url}/web/#/rollout/${longest}`;
    const from = Date.now();
    await page.goto(`${long}/transcript`);
    await page.locator('[data-tab="transcript"] .virtual [data-index]').nth(3).waitFor();
    note("2,000 turns: transcript opened", Date.now() - from);
    await page.locator(".virtual").first().focus();
    note(
      "2,000 turns: page down",
      await interaction(
        page,
        () => page.keyboard.press("PageDown"),
        () => document.querySelector(".virtual")?.scrollTop > 0,
      ),
    );
    const turns = Date.now();
    await page.goto(`${long}/turns?turn=1900`);
    await page.locator('[data-tab="turns"] .virtual [data-index="1900"]').waitFor();
    note("2,000 turns: turns opened at 1,900", Date.now() - turns);
    const graph = Date.now();
    await page.goto(`${long}/graph`);
    await page.locator('[data-tab="graph"] svg g text').first().waitFor();
    note("2,000 turns: graph drawn", Date.now() - graph);
    const tokens = Date.now();
    await page.goto(`${long}/tokens?turn=1900`);
    await page.locator('[data-tab="tokens"] [data-token]').first().waitFor();
    note("2,000 turns: tokens opened", Date.now() - tokens);
    lazy = [...sizes].filter(
      ([name]) => name.includes("/assets/") && !firstLoad.some(([known]) => known === name),
    );
    page.faults.forEach((fault) => faults.add(fault));
    await page.context().close();
  }
  const page = await open(browser);
  const sizes = await countBytes(page);
  await page.goto(`${server.url}/docs`);
  await page.waitForTimeout(1500);
  docs = [...sizes];
  await page.context().close();
} finally {
  await browser.close();
  await server.remove();
}

const kb = (entries) => entries.reduce((sum, [, size]) => sum + size, 0) / 1000;
console.log(`medians of ${ROUNDS} loads, Chromium on this machine, 10,000 rollouts stored`);
for (const [name, values] of Object.entries(figures))
  console.log(
    `${median(values).toFixed(0).padStart(7)} ms  ${name}  (${values.map((it) => it.toFixed(0)).join(", ")})`,
  );
console.log(
  `${kb(firstLoad).toFixed(1).padStart(7)} kB  first load, compressed: ${firstLoad.map(([name, size]) => `${name.split("/").at(-1) || "index.html"} ${(size / 1000).toFixed(1)}`).join(", ")}`,
);
console.log(
  `${kb(lazy).toFixed(1).padStart(7)} kB  loaded later, when it is wanted: ${lazy.map(([name, size]) => `${name.split("/").at(-1)} ${(size / 1000).toFixed(1)}`).join(", ")}`,
);
console.log(`${kb(docs).toFixed(1).padStart(7)} kB  /docs, apart`);
for (const fault of faults) console.log(`fault: ${fault}`);
const missed = [];
if (median(figures["first paint"]) > GOALS.paint_ms) missed.push("first paint");
for (const [name, values] of Object.entries(figures))
  if (name.startsWith("list: ") && median(values) > GOALS.interaction_ms) missed.push(name);
if (kb(firstLoad) > GOALS.first_load_kb) missed.push("first load");
if (faults.size > 0) missed.push("faults");
console.log(
  missed.length > 0 ? `missed: ${missed.join("; ")}` : `all goals met: ${JSON.stringify(GOALS)}`,
);
process.exitCode = missed.length > 0 ? 1 : 0;
