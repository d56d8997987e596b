// A rollout saved as one HTML file: the same page without a server.
import { render } from "preact";
import { Suspense } from "preact/compat";
import { useSource } from "./api/client";
import { time } from "./format";
import RolloutPage from "./pages/rollout/page";
import { go, link, route } from "./router";
import { type Saved, savedSource } from "./saved/source";
import { nextTheme, theme } from "./theme";
import { Boundary } from "./ui/boundary";
import { AgentText } from "./ui/text";
import "./styles/base.css";
import "./styles/parts.css";

/** The file's data: base64 of compressed JSON. */
async function read(): Promise<Saved> {
  const packed = document.getElementById("saved")?.textContent?.trim() ?? "";
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const saved = (await new Response(unpacked).json()) as Saved;
  if (saved.version !== 1)
    throw new Error(`it is of version ${saved.version}, and this page reads 1`);
  return saved;
}

function SavedApp({ saved }: { saved: Saved }) {
  const [first, , ...rest] = route.value.path;
  return (
    <>
      <header class="topbar">
        <a class="brand" href={link(["rollout", saved.rollout_id])}>
          Rollcage
        </a>
        <span class="muted small">
          Saved on {time(saved.saved_at)} by <AgentText text={saved.program} />
        </span>
        <div class="rest">
          <button class="plain" onClick={nextTheme} title="Light, dark, or as the system has it">
            {theme.value === "system" ? "Auto" : theme.value === "dark" ? "Dark" : "Light"}
            <span class="visually-hidden"> theme; change</span>
          </button>
        </div>
      </header>
      <main id="main" tabIndex={-1}>
        <Boundary place={route.value.path.join("/")}>
          <Suspense fallback={null}>
            <RolloutPage
              path={[saved.rollout_id, ...(first === "rollout" ? rest : [])]}
              query={route.value.query}
            />
          </Suspense>
        </Boundary>
      </main>
    </>
  );
}

async function start() {
  const root = document.getElementById("app")!;
  try {
    const saved = await read();
    useSource(savedSource(saved));
    if (route.value.path[0] !== "rollout") go(link(["rollout", saved.rollout_id]), "replace");
    render(<SavedApp saved={saved} />, root);
  } catch (error) {
    root.textContent = `This file cannot be read: ${error instanceof Error ? error.message : error}. Save the rollout again.`;
  }
}

void start();
