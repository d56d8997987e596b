// Puts the page of /docs into dist/docs: Swagger UI as its package has it, and our own files of ui/docs.
import { copyFileSync, mkdirSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const ui = join(dirname(fileURLToPath(import.meta.url)), "..");
const target = join(ui, "dist", "docs");
const swagger = dirname(createRequire(import.meta.url).resolve("swagger-ui-dist/package.json"));
const OF_SWAGGER = ["swagger-ui.css", "swagger-ui-bundle.js", "swagger-ui-bundle.js.LICENSE.txt"];

mkdirSync(target, { recursive: true });
for (const name of OF_SWAGGER) {
  copyFileSync(join(swagger, name), join(target, name));
}
for (const name of readdirSync(join(ui, "docs"))) {
  copyFileSync(join(ui, "docs", name), join(target, name));
}
