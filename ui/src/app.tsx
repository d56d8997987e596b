// The frame around all pages, and which page is shown.
import type { ComponentType } from "preact";
import { lazy, Suspense } from "preact/compat";
import { address, needsToken } from "./api/client";
import { connection } from "./api/stream";
import { SignIn } from "./pages/signin";
import { RolloutsPage } from "./pages/rollouts/page";
import { link, route } from "./router";
import { nextTheme, theme } from "./theme";
import { Empty, Spinner } from "./ui/parts";

export interface PageProps {
  path: string[];
  query: URLSearchParams;
}

// The list is what people open first; the others are loaded when they are wanted.
const StartPage = lazy(() => import("./pages/start/page"));
const RolloutPage = lazy(() => import("./pages/rollout/page"));
const ComparePage = lazy(() => import("./pages/compare/page"));
const LivePage = lazy(() => import("./pages/live/page"));

const PAGES: [string, string, ComponentType<PageProps>][] = [
  ["rollouts", "Rollouts", RolloutsPage],
  ["start", "Start", StartPage],
  ["compare", "Compare", ComparePage],
  ["live", "Live agents", LivePage],
];

export function App() {
  const [first = "rollouts", ...path] = route.value.path;
  const Page = first === "rollout" ? RolloutPage : PAGES.find(([name]) => name === first)?.[2];
  const section = first === "rollout" ? "rollouts" : first;
  return (
    <>
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <header class="topbar">
        <a class="brand" href="#/">
          <img src="./icon.svg" alt="" /> Rollcage
        </a>
        <nav aria-label="Pages">
          {PAGES.map(([name, title]) => (
            <a key={name} href={link([name])} aria-current={name === section ? "page" : undefined}>
              {title}
            </a>
          ))}
          <a href={address("docs")}>API</a>
        </nav>
        <div class="rest">
          <Connection />
          <button class="plain" onClick={nextTheme} title="Light, dark, or as the system has it">
            {theme.value === "system" ? "Auto" : theme.value === "dark" ? "Dark" : "Light"}
            <span class="visually-hidden"> theme; change</span>
          </button>
        </div>
      </header>
      <main id="main" tabIndex={-1}>
        {needsToken.value ? (
          <SignIn />
        ) : Page ? (
          <Suspense
            fallback={
              <Empty>
                <Spinner label="Loading" />
              </Empty>
            }
          >
            <Page path={path} query={route.value.query} />
          </Suspense>
        ) : (
          <Empty>There is no such page.</Empty>
        )}
      </main>
    </>
  );
}

function Connection() {
  if (connection.value === "live") return <span class="badge good">Live</span>;
  if (connection.value === "lost")
    return <span class="badge bad">Connection lost, trying again</span>;
  return <span class="badge">Connecting</span>;
}
