// Writes dist/licences.txt: the licences of the packages whose code is in dist. Permissive licences ask for their notice in
// what is passed on.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const ui = join(dirname(fileURLToPath(import.meta.url)), "..");
const { packages } = JSON.parse(readFileSync(join(ui, "package-lock.json"), "utf8"));
// What is only needed to build or to test is not in dist; Swagger UI is copied there.
const isPassedOn = ([path, it]) => path && (!it.dev || path.endsWith("/swagger-ui-dist"));
const parts = ["The page holds code of these packages. Their licences follow.\n"];
for (const [path, { version, license }] of Object.entries(packages).filter(isPassedOn)) {
  const folder = join(ui, path);
  const names = readdirSync(folder).filter((name) => /^(licen[cs]e|notice)/i.test(name));
  const texts = names.map((name) => readFileSync(join(folder, name), "utf8").trim());
  const name = path.replace(/^.*node_modules\//, "");
  parts.push(`${"=".repeat(80)}\n${name} ${version} (${license})\n\n${texts.join("\n\n")}\n`);
}
writeFileSync(join(ui, "dist", "licences.txt"), parts.join("\n"));
