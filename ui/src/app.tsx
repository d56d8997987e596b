// The frame around all pages, and which page is shown.
import type { ComponentType } from "preact";
import { lazy, Suspense } from "preact/compat";
import { address, needsToken } from "./api/client";
import { session } from "./api/session";
import { SignIn } from "./pages/signin";
import { RolloutsPage } from "./pages/rollouts/page";
import { link, route } from "./router";
import { Boundary } from "./ui/boundary";
import { useHeadingFocus } from "./ui/focus";
import { Empty, Spinner } from "./ui/parts";
import { Connection, KeyboardHelp, Session, ThemeButton } from "./ui/shell";
import "./styles/shell.css";

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
  // The tabs of one rollout are one place.
  useHeadingFocus(first === "rollout" || first === "live" ? `${first}/${path[0] ?? ""}` : first);
  const place = route.value.path.join("/");
  return (
    <>
      <a class="skip" href="#main" onClick={skip}>
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
          <KeyboardHelp />
          <ThemeButton />
          <Session />
        </div>
      </header>
      <main id="main" tabIndex={-1}>
        {needsToken.value ? (
          <SignIn />
        ) : session.value === null ? (
          <Waiting />
        ) : Page ? (
          <Boundary place={place}>
            <Suspense fallback={<Waiting />}>
              <Page path={path} query={route.value.query} />
            </Suspense>
          </Boundary>
        ) : (
          <>
            <h1>Nothing here</h1>
            <p>
              There is no such page. <a href={link(["rollouts"])}>All rollouts</a>
            </p>
          </>
        )}
      </main>
    </>
  );
}

function Waiting() {
  return (
    <Empty>
      <Spinner label="Loading" />
    </Empty>
  );
}

/** The fragment is the route, so the browser cannot do it. */
function skip(click: Event) {
  click.preventDefault();
  document.getElementById("main")?.focus();
}
