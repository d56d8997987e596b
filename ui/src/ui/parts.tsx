// Small parts that every page uses.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { ApiError } from "../api/client";
import type { RolloutRow, Verdict } from "../api/types";
import { count, words } from "../format";
import { toClipboard } from "./clipboard";
import { Dialog } from "./dialog";
import { visible } from "./text";

const VERDICTS: Record<Verdict, [string, string]> = {
  pass: ["PASS", "good"],
  partial: ["PARTIAL", "part"],
  fail: ["FAIL", "bad"],
  invalid: ["NO REWARD", ""],
  open: ["OPEN", "run"],
};

export function VerdictBadge({ verdict }: { verdict: Verdict }) {
  const [name, kind] = VERDICTS[verdict];
  return <span class={`badge ${kind}`}>{name}</span>;
}

/** What a rollout does, or how it came out. */
export function StateBadge({ row }: { row: RolloutRow }) {
  if (row.status === "ended") return <VerdictBadge verdict={row.verdict} />;
  if (row.status === "queued") return <span class="badge">QUEUED</span>;
  const doing = row.idle ? "IDLE" : (row.phase ?? "running").toUpperCase();
  return (
    <span class="badge run">
      <Spinner /> {words(doing)}
    </span>
  );
}

export function Spinner({ label }: { label?: string }) {
  return (
    <>
      <svg class="spin" width="10" height="10" viewBox="0 0 10 10" aria-hidden="true">
        <path d="M5 1a4 4 0 1 1-4 4" fill="none" stroke="currentColor" stroke-width="1.6" />
      </svg>
      {label && <span class="visually-hidden">{label}</span>}
    </>
  );
}

export function Panel(props: {
  title?: ComponentChildren;
  actions?: ComponentChildren;
  children: ComponentChildren;
  class?: string;
  flush?: boolean;
}) {
  return (
    <section class={`panel ${props.class ?? ""}`}>
      {(props.title || props.actions) && (
        <header>
          {props.title && <h2>{props.title}</h2>}
          <div class="row" style={{ marginLeft: "auto" }}>
            {props.actions}
          </div>
        </header>
      )}
      {props.flush ? props.children : <div class="body">{props.children}</div>}
    </section>
  );
}

/** Names and values; empty values are left out. */
export function Facts({ facts }: { facts: [string, ComponentChildren][] }) {
  const shown = facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return (
    <dl class="facts">
      {shown.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Problem({ error, retry }: { error: ApiError | null; retry?: () => void }) {
  if (!error) return null;
  return (
    <div class="notice bad row spread" role="alert">
      <span>{error.message}</span>
      {retry && (
        <button type="button" class="small" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return (
    <p class="muted" style={{ padding: "24px", textAlign: "center" }}>
      {children}
    </p>
  );
}

interface CopyProps {
  /** Where it has to be fetched first, null means that there is nothing to copy, and that somebody else says why. */
  text: string | (() => Promise<string | null>);
  label?: string;
}

export function Copy({ text, label = "Copy" }: CopyProps) {
  const [isCopied, setCopied] = useState(false);
  /** What the browser does not let a page copy. */
  const [shown, setShown] = useState<string | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const copy = async () => {
    try {
      const found = typeof text === "string" ? text : await text();
      if (found === null) return;
      if (await toClipboard(found)) {
        setCopied(true);
        setTimeout(() => setCopied(false), 1500);
      } else setShown(found);
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
  };
  return (
    <>
      <button type="button" class="small" onClick={copy}>
        <span aria-live="polite">{isCopied ? "Copied" : label}</span>
      </button>
      {shown !== null && (
        <Dialog title="Copy it from here" close={() => setShown(null)}>
          <p>The browser does not let this page copy by itself. The text is selected.</p>
          <textarea
            class="mono"
            readOnly
            rows={6}
            aria-label="Text to copy"
            value={shown}
            ref={(field) => field?.select()}
          />
          <Close close={() => setShown(null)} />
        </Dialog>
      )}
      {problem !== null && (
        <Dialog title="Nothing was copied" close={() => setProblem(null)}>
          <p class="notice bad" role="alert">
            {visible(problem)}
          </p>
          <Close close={() => setProblem(null)} />
        </Dialog>
      )}
    </>
  );
}

const Close = ({ close }: { close: () => void }) => (
  <div class="row dialog-actions">
    <button type="button" onClick={close}>
      Close
    </button>
  </div>
);

export interface Tab {
  id: string;
  name: string;
  href: string;
  /** How many there are; no part of the link's name. */
  count?: number | undefined;
}

export function Tabs({ tabs, current, label }: { tabs: Tab[]; current: string; label: string }) {
  const nav = useRef<HTMLElement>(null);
  // On a phone not all of them fit.
  useEffect(() => {
    const shown = nav.current?.querySelector("[aria-current]");
    if (!nav.current || !shown) return;
    const [all, one] = [nav.current, shown].map((it) => it.getBoundingClientRect());
    if (one!.right > all!.right || one!.left < all!.left)
      nav.current.scrollLeft += one!.left - all!.left - 24;
  }, [current]);
  return (
    <nav class="tabs" aria-label={label} ref={nav}>
      {tabs.map((tab) => (
        <a key={tab.id} href={tab.href} aria-current={tab.id === current ? "page" : undefined}>
          {tab.name}
          {tab.count !== undefined && (
            <span class="tab-count" aria-hidden="true">
              {count(tab.count)}
            </span>
          )}
        </a>
      ))}
    </nav>
  );
}
