// Runs `test/*.test.ts`: Vite makes JavaScript of them as it does of the page, and node's own runner runs that.
import { spawnSync } from "node:child_process";
import { readdirSync, rmSync } from "node:fs";
import { join, parse } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "vite";

const root = fileURLToPath(new URL("..", import.meta.url));
const out = join(root, "node_modules/.tests");
const wanted = process.argv.slice(2);
const names = readdirSync(join(root, "test")).filter(
  (name) =>
    /\.test\.tsx?$/.test(name) && (wanted.length === 0 || wanted.some((it) => name.startsWith(it))),
);
if (names.length === 0) {
  console.error(`no test of this name in ui/test: ${wanted.join(" ")}`);
  process.exit(1);
}
rmSync(out, { recursive: true, force: true });
await build({
  root,
  configFile: join(root, "vite.config.ts"),
  logLevel: "error",
  build: {
    ssr: true,
    outDir: out,
    emptyOutDir: true,
    target: "node20",
    rolldownOptions: {
      input: Object.fromEntries(names.map((name) => [parse(name).name, join(root, "test", name)])),
      output: { entryFileNames: "[name].mjs" },
    },
  },
});
const files = names.map((name) => join(out, `${parse(name).name}.mjs`));
const run = spawnSync(process.execPath, ["--test", ...files], { stdio: "inherit" });
process.exit(run.status ?? 1);
