// The replies of a turn, put together as people read them. Pure functions.
import type { Reply } from "../../api/types";

type Kind<K extends Reply["kind"]> = Extract<Reply, { kind: K }>;

export type Item =
  | { kind: "text" | "reasoning"; seq: number; text: string }
  | {
      kind: "tool";
      seq: number;
      callId: string;
      name: string;
      status: Kind<"tool">["status"];
      input: unknown;
      output: string | null;
    }
  | { kind: "permission"; seq: number; reply: Kind<"permission"> }
  | { kind: "question"; seq: number; reply: Kind<"question"> };

export type End = Kind<"final"> | Kind<"error">;

export interface Told {
  items: Item[];
  /** The reply that ended the turn. */
  end: End | null;
  /** The number of the last reply; those up to it are not taken again. */
  seq: number;
  sessionId: string | null;
}

export const NOTHING_TOLD: Told = { items: [], end: null, seq: 0, sessionId: null };

/** What is known after more replies. Text that goes on is one item, and so is a tool call whose status changes. */
export function tell(told: Told, replies: Reply[]): Told {
  const items = [...told.items];
  let { end, seq, sessionId } = told;
  for (const reply of replies) {
    if (reply.seq <= seq) continue;
    seq = reply.seq;
    sessionId = reply.session_id ?? sessionId;
    if (reply.kind === "final" || reply.kind === "error") end = reply;
    else add(items, reply);
  }
  return { items, end, seq, sessionId };
}

function add(items: Item[], reply: Exclude<Reply, End>) {
  const { seq } = reply;
  switch (reply.kind) {
    case "delta":
    case "reasoning": {
      const kind = reply.kind === "delta" ? "text" : "reasoning";
      const last = items.at(-1);
      if (last?.kind === kind) items[items.length - 1] = { ...last, text: last.text + reply.text };
      else items.push({ kind, seq, text: reply.text });
      break;
    }
    case "tool": {
      const place = items.findIndex((it) => it.kind === "tool" && it.callId === reply.call_id);
      const { call_id, name, status, input, output } = reply;
      const first = place >= 0 ? items[place]!.seq : seq;
      const item: Item = { kind: "tool", seq: first, callId: call_id, name, status, input, output };
      if (place >= 0) items[place] = item;
      else items.push(item);
      break;
    }
    case "permission":
      items.push({ kind: "permission", seq, reply });
      break;
    case "question":
      items.push({ kind: "question", seq, reply });
      break;
  }
}

export interface Choice {
  label: string;
  about: string;
}

export interface Question {
  title: string;
  text: string;
  choices: Choice[];
  isMultiple: boolean;
}

/** Questions as agents word them; whatever is missing is empty. */
export function readQuestions(value: unknown): Question[] {
  const list = Array.isArray(value) ? value : [];
  return list.map((it: unknown) => {
    const members = (typeof it === "object" && it !== null ? it : {}) as Record<string, unknown>;
    const options = Array.isArray(members.options) ? members.options : [];
    return {
      title: text(members.header),
      text: text(members.question),
      choices: options.map(readChoice).filter((choice) => choice.label !== ""),
      isMultiple: members.multiple === true,
    };
  });
}

function readChoice(value: unknown): Choice {
  if (typeof value === "string") return { label: value, about: "" };
  const members = (typeof value === "object" && value !== null ? value : {}) as Record<
    string,
    unknown
  >;
  return { label: text(members.label), about: text(members.description) };
}

const text = (value: unknown) => (typeof value === "string" ? value : "");

/** What a tool was asked to do, in a line: its command, path or pattern. */
export function inputLine(input: unknown): string {
  if (typeof input !== "object" || input === null) return "";
  const members = input as Record<string, unknown>;
  const names = ["command", "filePath", "path", "pattern", "url", "query", "description", "prompt"];
  for (const name of names) {
    const value = members[name];
    if (typeof value === "string" && value) return value.split("\n", 1)[0]!;
  }
  return "";
}
