// What is compared: the list's filters, with the values that there are as suggestions.
import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "../../api/client";
import { useLoad } from "../../api/load";
import type { Facets } from "../../api/types";
import { setParams } from "../../router";
import { FILTERS, type Filter, type Filters } from "./query";

const NAMES: Record<Filter, string> = {
  task: "Task",
  agent: "Agent",
  model: "Model",
  group: "Group",
  q: "Search",
  since: "Started",
};

const DAY = 86_400;
const SPANS: [string, number][] = [
  ["in the last hour", 3600],
  ["in the last day", DAY],
  ["in the last week", 7 * DAY],
  ["in the last 30 days", 30 * DAY],
];
/** Values that a browser lists without trouble. */
const SUGGESTIONS = 200;

export function FilterBar({ filters }: { filters: Filters }) {
  const facets = useLoad((abort) => get<Facets>("v1/rollouts/facets", {}, abort), []);
  const values = facets.data;
  const isFiltered = FILTERS.some((name) => filters[name]);
  const cleared = Object.fromEntries(FILTERS.map((name) => [name, null]));
  return (
    <form
      class="compare-filters"
      role="search"
      aria-label="What is compared"
      onSubmit={(event) => event.preventDefault()}
    >
      <ChoiceFilter name="task" value={filters.task} choices={values?.tasks} />
      <ChoiceFilter name="agent" value={filters.agent} choices={values?.agents} />
      <ChoiceFilter name="model" value={filters.model} choices={values?.models} />
      <ChoiceFilter name="group" value={filters.group} choices={values?.groups} />
      <SinceFilter value={filters.since} />
      <ChoiceFilter name="q" value={filters.q} />
      <button class="plain" type="button" disabled={!isFiltered} onClick={() => setParams(cleared)}>
        Clear
      </button>
    </form>
  );
}

interface Choice {
  value: string;
  count: number;
}

function ChoiceFilter(props: { name: Filter; value?: string; choices?: Choice[] }) {
  const { name, value = "", choices } = props;
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
    const wait = name === "q" ? 250 : isChosen ? 0 : 900;
    timer.current = window.setTimeout(() => setParams({ [name]: text }), wait);
  };
  const list = `compare-${name}`;
  return (
    <label class="field">
      <span>{NAMES[name]}</span>
      <input
        type="search"
        value={typed}
        list={choices ? list : undefined}
        placeholder={name === "q" ? "id, task, label, error" : "all"}
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

function SinceFilter({ value }: { value?: string }) {
  const now = Date.now() / 1000;
  // The address has a moment; the nearest span that it was chosen by is shown.
  const passed = value ? now - Number(value) : 0;
  const span = value ? SPANS.find(([, length]) => passed <= length * 1.5) : undefined;
  const choose = (length: string) =>
    setParams({ since: length ? Math.floor(now - Number(length)) : null });
  return (
    <label class="field">
      <span>{NAMES.since}</span>
      <select
        value={value ? `${span?.[1] ?? "other"}` : ""}
        onChange={(event) => choose(event.currentTarget.value)}
      >
        <option value="">at any time</option>
        {SPANS.map(([name, length]) => (
          <option key={length} value={`${length}`}>
            {name}
          </option>
        ))}
        {value && !span && (
          <option value="other">
            since {new Date(Number(value) * 1000).toLocaleDateString("en-CA")}
          </option>
        )}
      </select>
    </label>
  );
}
