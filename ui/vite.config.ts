import preact from "@preact/preset-vite";
import { defineConfig } from "vite";

// Relative addresses, so that the page works below any path prefix. `ROLLCAGE_URL` is where `npm run dev` finds a server.
const server = process.env.ROLLCAGE_URL ?? "http://127.0.0.1:8000";

export default defineConfig({
  base: "./",
  plugins: [preact({ devToolsEnabled: false, prefreshEnabled: false })],
  build: {
    outDir: "dist",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    // Data addresses would need a laxer content security policy.
    assetsInlineLimit: 0,
    sourcemap: false,
    reportCompressedSize: true,
  },
  server: { proxy: { "/v1": server, "/openapi.json": server } },
});
