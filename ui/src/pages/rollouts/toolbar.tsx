// What narrows the list: search, states, and what rollouts have in common.
import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "../../api/client";
import { useLoad } from "../../api/load";
import type { Facets, RolloutRow } from "../../api/types";
import { count, words } from "../../format";
import { setParams } from "../../router";
import { useKeys } from "../../ui/keys";
import { Menu } from "../../ui/menu";
import { Problem } from "../../ui/parts";
import { AgentText, visible } from "../../ui/text";
import { FILTER_NAMES, queryOf, type FilterName, type Filters } from "./filters";

const now = () => Date.now() / 1000;

export function Search({ text }: { text: string }) {
  const input = useRef<HTMLInputElement>(null);
  const timer = useRef(0);
  const [typed, setTyped] = useState(text);
  /** What this field itself put into the address: less than what is typed, which may end in a space. */
  const sent = useRef(text);
  useEffect(() => {
    if (sent.current !== text) setTyped(text);
    sent.current = text;
  }, [text]);
  useEffect(() => () => clearTimeout(timer.current), []);
  useKeys((key) => {
    if (key !== "/") return false;
    input.current?.focus();
    input.current?.select();
    return true;
  });
  const search = (value: string, delay: number) => {
    setTyped(value);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => {
      sent.current = value.trim();
      setParams({ q: sent.current });
    }, delay);
  };
  return (
    <div class="search">
      <input
        ref={input}
        type="search"
        value={typed}
        placeholder="Search task, agent, model, label, error, id"
        aria-label="Search rollouts"
        onInput={(event) => search(event.currentTarget.value, 100)}
        onKeyDown={(event) => {
          if (event.key === "Escape") {
            if (typed) search("", 0);
            else input.current?.blur();
          }
          if (event.key === "Enter") search(typed, 0);
        }}
      />
      <kbd aria-hidden="true">/</kbd>
    </div>
  );
}

const STATES: [string, Pick<Filters, "status" | "verdict">, string][] = [
  ["All", {}, ""],
  ["Running", { status: "running" }, "run"],
  ["Queued", { status: "queued" }, ""],
  ["Pass", { verdict: "pass" }, "good"],
  ["Partial", { verdict: "partial" }, "part"],
  ["Fail", { verdict: "fail" }, "bad"],
  ["No reward", { verdict: "invalid" }, ""],
];

/** One click for what is asked most often. */
export function States({ filters, facets }: { filters: Filters; facets: Facets | null }) {
  const number = ({ status, verdict }: Filters) => {
    if (!facets) return null;
    if (status) return facets.status[status] ?? 0;
    return verdict ? (facets.verdict[verdict] ?? 0) : facets.total;
  };
  return (
    <div class="states" role="group" aria-label="State">
      {STATES.map(([name, wanted, kind]) => {
        const isOn = wanted.status === filters.status && wanted.verdict === filters.verdict;
        const many = number(wanted);
        return (
          <button
            key={name}
            class={`state ${kind} ${many === 0 ? "none" : ""}`}
            aria-pressed={isOn}
            onClick={() =>
              setParams({ status: wanted.status ?? "", verdict: wanted.verdict ?? "" })
            }
          >
            {name} <span class="many">{many?.toLocaleString("en") ?? ""}</span>
          </button>
        );
      })}
    </div>
  );
}

const SINCE: [string, string][] = [
  ["", "Any time"],
  ["1h", "Last hour"],
  ["24h", "Last 24 hours"],
  ["7d", "Last 7 days"],
  ["30d", "Last 30 days"],
];

const MENUS: [FilterName, string][] = [
  ["task", "Task"],
  ["agent", "Agent"],
  ["model", "Model"],
  ["group", "Group"],
  ["label", "Label"],
  ["ended", "Ending"],
];

export function FilterMenus({
  filters,
  known,
}: {
  filters: Filters;
  known: () => Iterable<RolloutRow>;
}) {
  const since = SINCE.find(([value]) => value && value === filters.since)?.[1] ?? "Since";
  return (
    <>
      {MENUS.map(([name, title]) => (
        <Menu key={name} label={title} name={`Filter by ${title}`} isOn={!!filters[name]}>
          {(close) => <Values name={name} filters={filters} known={known} close={close} />}
        </Menu>
      ))}
      <Menu label={since} name={`${since}: filter by time`} isOn={!!filters.since}>
        {(close) => (
          <ul class="menu-list">
            {SINCE.map(([value, title]) => (
              <li key={value}>
                <button
                  class="menu-item"
                  onClick={() => {
                    setParams({ since: value });
                    close();
                  }}
                >
                  {title}
                </button>
              </li>
            ))}
          </ul>
        )}
      </Menu>
    </>
  );
}

interface ValuesProps {
  name: FilterName;
  filters: Filters;
  known: () => Iterable<RolloutRow>;
  close: () => void;
}

type Value = { value: string; count: number | null };

function valuesOf(name: FilterName, facets: Facets | null, known: Iterable<RolloutRow>): Value[] {
  const lists = {
    task: facets?.tasks,
    agent: facets?.agents,
    model: facets?.models,
    group: facets?.groups,
    ended: facets && Object.entries(facets.ended).map(([value, count]) => ({ value, count })),
  };
  if (name !== "label") return lists[name as keyof typeof lists] ?? [];
  // Nobody counts labels: those of rows that were seen are offered, others can be typed.
  const labels = [...known].flatMap((row) =>
    Object.entries(row.labels).map(([label, value]) => `${label}=${value}`),
  );
  return [...new Set(labels)].sort().map((value) => ({ value, count: null }));
}

/** The values there are, with how many rollouts have each, whatever is chosen of them now. */
function Values({ name, filters, known, close }: ValuesProps) {
  const [typed, setTyped] = useState("");
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.focus(), []);
  const others = { ...filters, [name]: undefined };
  const { data, error, reload } = useLoad(
    (abort) => get<Facets>("v1/rollouts/facets", queryOf(others, now()), abort),
    [name],
  );
  const found = valuesOf(name, data, known()).filter(({ value }) =>
    value.toLowerCase().includes(typed.toLowerCase()),
  );
  const choose = (value: string) => {
    setParams({ [name]: value });
    close();
  };
  return (
    <>
      <input
        ref={input}
        value={typed}
        aria-label={`Find a ${name}`}
        placeholder={name === "label" ? "name=value" : "Find"}
        onInput={(event) => setTyped(event.currentTarget.value)}
        onKeyDown={(event) => {
          const value = name === "label" ? typed : (found[0]?.value ?? "");
          if (event.key === "Enter" && value) choose(value);
        }}
      />
      <Problem error={error} retry={reload} />
      <ul class="menu-list">
        {filters[name] && (
          <li>
            <button class="menu-item muted" onClick={() => choose("")}>
              Any {name}
            </button>
          </li>
        )}
        {found.slice(0, 200).map(({ value, count: many }) => (
          <li key={value}>
            <button class="menu-item" title={visible(value)} onClick={() => choose(value)}>
              <span class="name cut">
                <AgentText text={name === "ended" ? words(value) : value} class="line" />
              </span>
              {many !== null && <span class="number muted">{count(many)}</span>}
            </button>
          </li>
        ))}
      </ul>
      {found.length > 200 && <p class="menu-note">{found.length - 200} more: type to find them.</p>}
      {data && found.length === 0 && (
        <p class="menu-note">
          {name === "label" ? "Type name=value and press Enter." : "Nothing of that name."}
        </p>
      )}
    </>
  );
}

const TITLES: Record<FilterName, string> = {
  q: "text",
  status: "status",
  verdict: "verdict",
  ended: "ending",
  task: "task",
  agent: "agent",
  model: "model",
  group: "group",
  label: "label",
  since: "since",
};

/** What is chosen, each to be taken away again. */
export function Chips({ filters }: { filters: Filters }) {
  const chosen = FILTER_NAMES.filter((name) => filters[name]);
  if (chosen.length === 0) return null;
  return (
    <div class="chips" role="group" aria-label="Active filters">
      {chosen.map((name) => (
        <button
          key={name}
          class="chip"
          title={`Remove the filter ${TITLES[name]}: ${visible(filters[name]!)}`}
          onClick={() => setParams({ [name]: "" })}
        >
          <span class="muted">{TITLES[name]}</span>
          <AgentText text={filters[name]!} class="line" />
          <span aria-hidden="true">×</span>
        </button>
      ))}
      <button
        class="plain small"
        onClick={() => setParams(Object.fromEntries(FILTER_NAMES.map((name) => [name, ""])))}
      >
        Clear all
      </button>
    </div>
  );
}
