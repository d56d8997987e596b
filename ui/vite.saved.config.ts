import preact from "@preact/preset-vite";
import { defineConfig, type Plugin } from "vite";

/** The script and the stylesheet stand inside a page, where these would end them. */
const embeddable: Plugin = {
  name: "embeddable",
  generateBundle(_, bundle) {
    for (const file of Object.values(bundle)) {
      const text = file.type === "chunk" ? file.code : `${file.source}`;
      const found = /<\/(script|style)|<!--/i.exec(text);
      if (found) this.error(`${file.fileName} holds ${found[0]}, so it cannot stand inside a page`);
    }
  },
};

// The viewer of a rollout that was saved as one HTML file: one script and one stylesheet, which the program puts into the
// file. It runs after `vite build`, beside whose output it writes.
export default defineConfig({
  plugins: [preact({ devToolsEnabled: false, prefreshEnabled: false }), embeddable],
  publicDir: false,
  build: {
    outDir: "dist",
    emptyOutDir: false,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    sourcemap: false,
    rolldownOptions: {
      input: "src/saved.tsx",
      // A classic script has none; what Vite would ask of it is for chunks, which there are not.
      transform: { define: { "import.meta": "{}" } },
      output: {
        format: "iife",
        codeSplitting: false,
        entryFileNames: "saved.js",
        assetFileNames: "saved[extname]",
      },
    },
  },
});
