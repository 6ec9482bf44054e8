import { createHash } from "node:crypto";
import { fileURLToPath } from "node:url";
import { defineConfig, type Plugin } from "vite";

/** Where `npm run dev` finds a server: `cargo run -- serve --demo`, unless told otherwise. */
const server = process.env.RUNCAST_URL ?? "http://127.0.0.1:8080";

const KINDS: Readonly<Record<string, string>> = {
  css: "text/css; charset=utf-8",
  html: "text/html; charset=utf-8",
  js: "text/javascript; charset=utf-8",
  svg: "image/svg+xml",
};

/** The files as a table that the program includes, so that building it needs no Node. */
function table(): Plugin {
  return {
    name: "table",
    generateBundle: {
      order: "post",
      handler(_, bundle) {
        const files = Object.entries(bundle).sort(([a], [b]) => (a < b ? -1 : 1));
        const rows = files.map(([path, file]) => {
          const bytes = file.type === "chunk" ? file.code : file.source;
          const etag = createHash("sha256").update(bytes).digest("hex").slice(0, 24);
          const kind = KINDS[path.split(".").at(-1) ?? ""];
          if (kind === undefined) throw new Error(`nobody has said what kind of file ${path} is`);
          return `    File { path: "${path}", kind: "${kind}", etag: "\\"${etag}\\"", bytes: include_bytes!("${path}") },\n`;
        });
        this.emitFile({ type: "asset", fileName: "table.rs", source: `&[\n${rows.join("")}]\n` });
      },
    },
  };
}

export default defineConfig({
  plugins: [table()],
  // Relative, so that the page also works behind a proxy that puts it under a path.
  base: "./",
  resolve: { alias: { "runcast-client": fileURLToPath(new URL("../clients/typescript/src/index.ts", import.meta.url)) } },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    target: "es2022",
    outDir: "dist",
    emptyOutDir: true,
    // Nothing is written into the page itself: its policy allows neither inline scripts nor data in the place of files.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    rolldownOptions: { output: { entryFileNames: "assets/[name]-[hash].js", assetFileNames: "assets/[name]-[hash][extname]", codeSplitting: false } },
  },
  server: { proxy: { "/v1": { target: server, ws: true, changeOrigin: true } } },
});
