// Which endpoints answer. An answer belongs to its question, so a late one is never taken for that of another URL or key.
import { useEffect, useReducer, useState } from "preact/hooks";
import { ApiError, post } from "../../api/client";
import type { EndpointCheck, EndpointView } from "../../api/types";
import { isUrl, OWN_URL, type Draft } from "./form";

export interface Question {
  kind: string;
  /** Where it is not the server's own. */
  base_url?: string;
  api_key?: string;
}

export type CheckState = EndpointCheck | "asked" | undefined;

/** At once: a browser has six connections to a server, and the page needs some itself. */
const AT_ONCE = 3;
/** After the last key press in the URL or the key. */
const PAUSE_MS = 600;

/** Asks a few endpoints at a time, and each question once unless it is asked for again. */
export class Checker {
  private readonly states = new Map<string, CheckState>();
  private readonly waiting: Question[] = [];
  private running = 0;
  private readonly send: (question: Question) => Promise<EndpointCheck>;
  private readonly changed: () => void;

  constructor(send: (question: Question) => Promise<EndpointCheck>, changed: () => void) {
    this.send = send;
    this.changed = changed;
  }

  state(question: Question): CheckState {
    return this.states.get(JSON.stringify(question));
  }

  once(question: Question) {
    if (this.state(question) === undefined) this.again(question);
  }

  again(question: Question) {
    if (this.state(question) === "asked") return;
    this.states.set(JSON.stringify(question), "asked");
    this.waiting.push(question);
    this.changed();
    void this.work();
  }

  private async work() {
    if (this.running >= AT_ONCE) return;
    this.running++;
    for (let next = this.waiting.shift(); next; next = this.waiting.shift()) {
      this.states.set(JSON.stringify(next), await this.send(next));
      this.changed();
    }
    this.running--;
  }
}

/** Never fails: why an endpoint cannot be asked is an answer, too. */
async function ask({ kind, ...given }: Question): Promise<EndpointCheck> {
  try {
    return await post<EndpointCheck>(`v1/endpoints/${encodeURIComponent(kind)}/check`, given);
  } catch (error) {
    const message = error instanceof ApiError ? error.message : String(error);
    return { kind, reachable: false, error: message, models: [], seconds: 0 };
  }
}

/** What the chosen endpoint is asked, with what is typed; null where nothing can be asked yet. */
export function chosenQuestion(
  { endpoint = "", base_url = "", dialect }: Draft,
  apiKey: string,
  endpoints: EndpointView[],
): Question | null {
  if (endpoint === "scripted") return null;
  const url = base_url.trim();
  if (url && !isUrl(url)) return null;
  const typed = { ...(url && { base_url: url }), ...(apiKey && { api_key: apiKey }) };
  // The server has no kind for a URL alone. One that speaks the same asks a typed URL in the same way.
  const kind = endpoint !== OWN_URL ? endpoint : dialect === "anthropic" ? "anthropic" : "vllm";
  const known = endpoints.find((it) => it.kind === kind);
  const canAsk = endpoint === OWN_URL ? url !== "" : known?.configured || url || apiKey;
  return known && canAsk ? { kind, ...typed } : null;
}

/**
 * Asks what is set up when the page opens, and the chosen one whenever something is typed for it. A key that is typed goes
 * nowhere by itself: it is sent when somebody asks for it, and not to every host whose name a half-typed URL is.
 */
export function useChecks(endpoints: EndpointView[], chosen: Question | null): Checker {
  const [, draw] = useReducer((n: number) => n + 1, 0);
  const [checker] = useState(() => new Checker(ask, () => draw(undefined)));
  useEffect(() => {
    for (const { kind, configured } of endpoints)
      if (configured && kind !== "scripted") checker.once({ kind });
  }, [endpoints]);
  const key = JSON.stringify(chosen);
  useEffect(() => {
    if (!chosen || chosen.api_key) return;
    const timer = setTimeout(() => checker.once(chosen), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [key]);
  return checker;
}
