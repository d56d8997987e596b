// Debian's Chromium, and pages that note whatever a page must not do: errors in the console, requests to other hosts,
// dialogs, answers that break the content security policy.
import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { extname, join } from "node:path";
import { chromium } from "playwright-core";
import { shotsFolder } from "./server.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
/** A built page that is used instead of the program's own, to try one out before it is built in. */
const PAGE = process.env.ROLLCAGE_E2E_PAGE;
const TYPES = { ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };
const WIDE = { width: 1440, height: 900 };
const NARROW = { width: 390, height: 844 };

export function launch() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
    ],
  });
}

/** A page in a context of its own. `page.faults` grows with everything that it must not do. */
export async function open(
  browser,
  { theme = "light", narrow = false, expected = [], ...options } = {},
) {
  const context = await browser.newContext({
    viewport: narrow ? NARROW : WIDE,
    colorScheme: theme,
    deviceScaleFactor: 1,
    reducedMotion: "reduce",
    permissions: ["clipboard-read", "clipboard-write"],
    ...options,
  });
  if (PAGE) await context.route(/\/web\//, otherPage);
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.faults = [];
  const note = (text) => {
    if (!expected.some((known) => known.test(text))) page.faults.push(text);
  };
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type()))
      note(`console: ${message.text()} ${message.location().url}`);
  });
  page.on("pageerror", (error) => note(`exception: ${error.stack}`));
  page.on("dialog", (dialog) => {
    note(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("request", (request) => {
    const { protocol, hostname } = new URL(request.url());
    if (protocol.startsWith("http") && hostname !== "127.0.0.1" && hostname !== "localhost")
      note(`request to another host: ${request.url()}`);
  });
  page.waiting = new Set();
  page.on("request", (request) => {
    // The stream of events never ends.
    if (request.resourceType() !== "eventsource") page.waiting.add(request);
  });
  page.on("requestfinished", (request) => page.waiting.delete(request));
  page.on("requestfailed", (request) => page.waiting.delete(request));
  return page;
}

async function otherPage(route) {
  const path = new URL(route.request().url()).pathname.split("/web/")[1] || "index.html";
  const file = join(PAGE, path);
  if (!existsSync(file)) return route.continue();
  const body = readFileSync(file);
  // The program's own answer says what the page may load.
  if (path === "index.html") return route.fulfill({ response: await route.fetch(), body });
  return route.fulfill({ body, contentType: TYPES[extname(path)] });
}

/** Ends a page that must have done nothing wrong. */
export async function close(page) {
  assert.deepEqual(page.faults, []);
  await page.context().close();
}

/** Waits until everything that a page asked for is there, and drawn. */
export async function quiet(page) {
  const isStill = () => page.waiting.size === 0;
  const drawn = () =>
    page.evaluate(
      () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))),
    );
  for (let still = 0; still < 2; still = isStill() ? still + 1 : 0) {
    while (!isStill())
      await Promise.race([
        page.waitForEvent("requestfinished"),
        page.waitForEvent("requestfailed"),
      ]).catch(() => {});
    await drawn();
  }
}

/** One of the rollout page's tabs. */
export const tab = (page, name) =>
  page.getByRole("navigation", { name: "Parts of the rollout" }).getByRole("link", { name });

/** What axe finds that is serious or worse. */
export async function axe(page) {
  // Through the debugger, since the page's policy forbids scripts of others.
  await page.evaluate(AXE);
  const found = await page.evaluate(() => globalThis.axe.run({ resultTypes: ["violations"] }));
  const serious = found.violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
  return serious.map(({ id, help, nodes }) => {
    const where = nodes.slice(0, 3).map((node) => node.html.slice(0, 160));
    return `${id}: ${help}\n    ${where.join("\n    ")}`;
  });
}

/** Takes a picture of the page as it is. */
export async function shot(page, name) {
  await page.screenshot({ path: join(shotsFolder(), `${name}.png`), animations: "disabled" });
}

/** Whether the page is wider than its window. */
export const overflows = (page) =>
  page.evaluate(() => document.documentElement.scrollWidth > innerWidth + 1);
