// Routes live in the fragment (`#/rollout/ID/tokens?turn=3`): they work below any prefix, in a frame, and in a saved file.
import { signal } from "@preact/signals";

export interface Route {
  /** The parts of the path, decoded; empty for the start. */
  path: string[];
  query: URLSearchParams;
}

function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean);
  return { path: parts.map(decode), query: new URLSearchParams(query) };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const route = signal<Route>(parse(location.hash));

addEventListener("hashchange", () => {
  route.value = parse(location.hash);
});

export type Params = Record<string, string | number | null | undefined>;

/** A link to a place of this page. Empty parameters are left out. */
export function link(path: (string | number)[], params: Params = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, `${value}`);
  }
  const text = query.toString();
  return `#/${path.map((part) => encodeURIComponent(part)).join("/")}${text ? `?${text}` : ""}`;
}

/** Goes to a place; `replace` leaves no entry in the history. */
export function go(to: string, how: "push" | "replace" = "push") {
  if (how === "push") location.hash = to;
  else {
    history.replaceState(null, "", to);
    route.value = parse(location.hash);
  }
}

/** Changes parameters of the current place. */
export function setParams(changes: Params, how: "push" | "replace" = "replace") {
  const { path, query } = route.value;
  const params: Params = Object.fromEntries(query);
  go(link(path, { ...params, ...changes }), how);
}
