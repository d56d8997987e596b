// Draws the picture of the page in README.md from a real run: scripts/page/picture.
import { fileURLToPath } from "node:url";
import { launch, open } from "./browser.mjs";
import { newHome, Server } from "./server.mjs";

const target = fileURLToPath(new URL("../../docs/page.png", import.meta.url));
const server = await new Server(newHome()).start();
const browser = await launch();
try {
  const { presets } = await server.json("/v1/presets");
  const { request } = presets.find(({ id }) => id === "fix-the-bug");
  const { rollout_id: id } = await server.json("/v1/rollouts", request);
  await server.ended(id);
  const { turns } = await server.json(`/v1/rollouts/${id}/turns`);
  // The call that changes the file has the most to show.
  const longest = turns.toSorted((a, b) => b.completion_tokens - a.completion_tokens)[0];
  const page = await open(browser, { viewport: { width: 1280, height: 800 } });
  await page.goto(`${server.url}/web/#/rollout/${id}/tokens?turn=${longest.turn}&token=12`);
  await page.getByText("In its place").waitFor();
  await page.waitForTimeout(1000);
  await page.screenshot({ path: target });
  console.log(target);
} finally {
  await browser.close();
  await server.remove();
}
