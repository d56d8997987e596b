// Parts of the frame around all pages: the connection, the theme, who is signed in, and the keys.
import { useEffect, useState } from "preact/hooks";
import { type ApiError, needsToken } from "../api/client";
import { session, signOut } from "../api/session";
import { connection } from "../api/stream";
import { go, link } from "../router";
import { nextTheme, theme } from "../theme";
import { Dialog } from "./dialog";
import { KEYS, PLACES } from "./key-list";
import { useKeys } from "./keys";
import { Menu } from "./menu";
import { Problem } from "./parts";
import { visible } from "./text";

export function Connection() {
  if (needsToken.value) return null;
  const [kind, name, about] = {
    live: ["good", "Live", "What is shown changes as it happens."],
    lost: ["bad", "Connection lost", "The server does not answer. It is tried again."],
    connecting: ["", "Connecting", "Waiting for the server."],
  }[connection.value] as [string, string, string];
  return (
    <span class={`badge ${kind}`} title={about} role="status">
      {name}
    </span>
  );
}

const THEMES = { system: "Auto", light: "Light", dark: "Dark" };
const ICONS = {
  system: "M8 2a6 6 0 0 0 0 12zM8 1.3a6.7 6.7 0 1 0 0 13.4A6.7 6.7 0 0 0 8 1.3",
  light: "M8 5a3 3 0 1 0 0 6a3 3 0 0 0 0-6M8 .8v2M8 13.200v2M.8 8h2M13.200 8h2",
  dark: "M13.500 10A6 6 0 0 1 6 2.500a6 6 0 1 0 7.500 7.500",
};

export function ThemeButton() {
  const name = THEMES[theme.value];
  return (
    <button
      class="plain theme"
      onClick={nextTheme}
      title="Light, dark, or as the system has it"
      aria-label={`${name} theme; change`}
    >
      <svg width="15" height="15" viewBox="0 0 16 16" aria-hidden="true">
        <path d={ICONS[theme.value]} />
      </svg>
      <span class="wide-only">{name}</span>
    </button>
  );
}

/** Whose rollouts are shown, where that depends on a token. */
export function Session() {
  const [error, setError] = useState<ApiError | null>(null);
  const leave = async () => {
    setError(null);
    try {
      await signOut();
    } catch (problem) {
      setError(problem as ApiError);
    }
  };
  const known = session.value;
  if (known === null || known === "unknown" || needsToken.value) return null;
  if (known.access !== "token") return null;
  const owner = visible(known.owner ?? "");
  return (
    <Menu
      label={<span class="cut owner">{owner || "Signed in"}</span>}
      name={`${owner || "Signed in"}: session`}
    >
      {() => (
        <>
          <p class="menu-note">
            Signed in. You see the rollouts of <strong>{owner}</strong>; those of other tokens are
            not shown.
          </p>
          <Problem error={error} />
          <button class="menu-item" onClick={() => void leave()}>
            Sign out
          </button>
        </>
      )}
    </Menu>
  );
}

export function KeyboardHelp() {
  const [isOpen, setOpen] = useState(false);
  const [isGoing, setGoing] = useState(false);
  useEffect(() => {
    if (!isGoing) return;
    const timer = setTimeout(() => setGoing(false), 1500);
    return () => clearTimeout(timer);
  }, [isGoing]);
  useKeys((key) => {
    if (isGoing) {
      setGoing(false);
      const place = PLACES[key];
      if (place) go(link([place[0]]));
      return place !== undefined;
    }
    if (key === "g") setGoing(true);
    else if (key === "?") setOpen(true);
    else return false;
    return true;
  });
  return (
    <>
      <button
        class="plain wide-only"
        onClick={() => setOpen(true)}
        title="Keys (?)"
        aria-label="Keyboard help"
      >
        <kbd aria-hidden="true">?</kbd>
      </button>
      {isOpen && (
        <Dialog title="Keys" close={() => setOpen(false)}>
          <div class="keys">
            {KEYS.map(([title, keys]) => (
              <section key={title}>
                <h3>{title}</h3>
                <dl>
                  {keys.map(([key, about]) => (
                    <div key={key}>
                      <dt>
                        {key.split(" ").map((one) => (
                          <kbd key={one}>{one}</kbd>
                        ))}
                      </dt>
                      <dd>{about}</dd>
                    </div>
                  ))}
                </dl>
              </section>
            ))}
          </div>
          <div class="row dialog-actions">
            <button onClick={() => setOpen(false)}>Close</button>
          </div>
        </Dialog>
      )}
    </>
  );
}
