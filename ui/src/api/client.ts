// Calls of the public `/v1` API. Addresses are relative to the page (`…/web/`), so any path prefix works. A saved page has
// no server: it replaces `source`.
import { signal } from "@preact/signals";
import { visible } from "../ui/unseen";

export type Query = Record<string, string | number | boolean | null | undefined | string[]>;

/** An answer of 400 or more, or none at all. */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, message: string) {
    // It may repeat what an agent or an endpoint wrote.
    super(visible(message));
    this.status = status;
    this.code = code;
  }
}

/** Where answers come from. */
export interface Source {
  readonly isSaved: boolean;
  request(method: string, path: string, body?: unknown, abort?: AbortSignal): Promise<unknown>;
}

/** Set by the first answer that asks for a token, and cleared by signing in. */
export const needsToken = signal(false);

/** What addresses are relative to. A saved file may have no address that others can be relative to; it asks nobody. */
const root = () => (isSaved() ? "saved:///" : new URL("..", document.baseURI));

/** The address of a route such as `v1/rollouts`, with its query. */
export function address(path: string, query: Query = {}): string {
  const url = new URL(path, root());
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") url.searchParams.append(name, `${one}`);
    }
  }
  return url.href;
}

const server: Source = {
  isSaved: false,
  async request(method, path, body, abort) {
    const init: RequestInit = { method, credentials: "same-origin", signal: abort ?? null };
    if (body !== undefined) {
      init.headers = { "content-type": "application/json" };
      init.body = JSON.stringify(body);
    }
    let answer: Response;
    try {
      answer = await fetch(path, init);
    } catch (error) {
      if (abort?.aborted) throw error;
      throw new ApiError(0, "unreachable", method === "GET" ? AWAY : AWAY_ONCE);
    }
    if (answer.status === 401) needsToken.value = true;
    if (!answer.ok) throw await problem(answer);
    if (answer.status === 204) return null;
    const type = answer.headers.get("content-type") ?? "";
    return type.includes("json") ? answer.json() : answer.text();
  },
};

const AWAY = "The server does not answer. It is tried again.";
/** What changes something is never sent twice by itself. */
const AWAY_ONCE = "The server does not answer. Try again.";

async function problem(answer: Response): Promise<ApiError> {
  const text = await answer.text();
  try {
    const body = JSON.parse(text);
    const { code, message } = body.error ?? { code: "error", message: body.detail };
    return new ApiError(answer.status, code, `${message ?? text}`);
  } catch {
    // A proxy's own words: the server behind it is away, and is tried again.
    if ([502, 503, 504].includes(answer.status))
      return new ApiError(answer.status, "unreachable", AWAY);
    return new ApiError(answer.status, "error", text || `HTTP ${answer.status}`);
  }
}

let source: Source = server;

export function useSource(other: Source) {
  source = other;
}

/** Whether this page is a file without a server. */
export const isSaved = () => source.isSaved;

export const get = <T>(path: string, query?: Query, abort?: AbortSignal) =>
  source.request("GET", address(path, query), undefined, abort) as Promise<T>;

export const post = <T>(path: string, body: unknown = {}, query?: Query) =>
  source.request("POST", address(path, query), body) as Promise<T>;

export const remove = (path: string) => source.request("DELETE", address(path));

/** An answer as a file, whatever its type. */
export async function getBlob(path: string, query?: Query): Promise<Blob> {
  const answer = await fetch(address(path, query), { credentials: "same-origin" }).catch(() => {
    throw new ApiError(0, "unreachable", AWAY_ONCE);
  });
  if (answer.status === 401) needsToken.value = true;
  if (!answer.ok) throw await problem(answer);
  return answer.blob();
}
