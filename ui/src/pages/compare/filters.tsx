// What is compared: the list's filters, with the values that there are as suggestions.
import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "../../api/client";
import { useLoad } from "../../api/load";
import type { Facets } from "../../api/types";
import { setParams } from "../../router";
import { AgentText } from "../../ui/text";
import { FILTER_NAMES, type FilterName, type Filters } from "../rollouts/filters";

const FIELDS: [FilterName, string, "tasks" | "agents" | "models" | "groups" | null][] = [
  ["task", "Task", "tasks"],
  ["agent", "Agent", "agents"],
  ["model", "Model", "models"],
  ["group", "Group", "groups"],
  ["q", "Search", null],
];

const SPANS: [string, string][] = [
  ["", "at any time"],
  ["1h", "in the last hour"],
  ["24h", "in the last 24 hours"],
  ["7d", "in the last 7 days"],
  ["30d", "in the last 30 days"],
];
/** Values that a browser lists without trouble. */
const SUGGESTIONS = 200;

export function FilterBar({ filters }: { filters: Filters }) {
  const facets = useLoad((abort) => get<Facets>("v1/rollouts/facets", {}, abort), []);
  const shown = [...FIELDS.map(([name]) => name), "since"];
  // Filters that only the list has a field for.
  const others = FILTER_NAMES.filter((name) => filters[name] && !shown.includes(name));
  const isFiltered = FILTER_NAMES.some((name) => filters[name]);
  const cleared = Object.fromEntries(FILTER_NAMES.map((name) => [name, null]));
  return (
    <form
      class="compare-filters"
      role="search"
      aria-label="What is compared"
      onSubmit={(event) => event.preventDefault()}
    >
      {FIELDS.map(([name, title, values]) => (
        <TextFilter
          key={name}
          name={name}
          title={title}
          value={filters[name] ?? ""}
          choices={values ? (facets.data?.[values] ?? []) : null}
        />
      ))}
      <SinceFilter value={filters.since ?? ""} />
      <div class="row">
        {others.map((name) => (
          <button
            key={name}
            class="small"
            type="button"
            title="Remove this filter"
            onClick={() => setParams({ [name]: null })}
          >
            {name}: <AgentText text={filters[name] ?? ""} /> ×
          </button>
        ))}
        <button
          class="plain"
          type="button"
          disabled={!isFiltered}
          onClick={() => setParams(cleared)}
        >
          Clear
        </button>
      </div>
    </form>
  );
}

function TextFilter(props: {
  name: FilterName;
  title: string;
  value: string;
  choices: { value: string; count: number }[] | null;
}) {
  const { name, title, value, choices } = props;
  const [typed, setTyped] = useState(value);
  const timer = useRef(0);
  // What is in the address counts, also after going back.
  useEffect(() => setTyped(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const change = (text: string) => {
    setTyped(text);
    clearTimeout(timer.current);
    const isChosen = text === "" || choices?.some((choice) => choice.value === text);
    // Only the search takes parts of words; the others are whole values.
    const wait = choices === null ? 250 : isChosen ? 0 : 900;
    timer.current = window.setTimeout(() => setParams({ [name]: text }), wait);
  };
  const list = `compare-${name}`;
  return (
    <label class="field">
      <span>{title}</span>
      <input
        type="search"
        value={typed}
        list={choices ? list : undefined}
        placeholder={choices ? "all" : "id, task, label, error"}
        onInput={(event) => change(event.currentTarget.value)}
      />
      {choices && (
        <datalist id={list}>
          {choices.slice(0, SUGGESTIONS).map((choice) => (
            <option key={choice.value} value={choice.value} label={`${choice.count} rollouts`} />
          ))}
        </datalist>
      )}
    </label>
  );
}

function SinceFilter({ value }: { value: string }) {
  // A link may have a time of its own.
  const spans = SPANS.some(([span]) => span === value)
    ? SPANS
    : [...SPANS, [value, `since ${value}`]];
  return (
    <label class="field">
      <span>Started</span>
      <select value={value} onChange={(event) => setParams({ since: event.currentTarget.value })}>
        {spans.map(([span, name]) => (
          <option key={span} value={span}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}
