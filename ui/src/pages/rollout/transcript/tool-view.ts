// How a tool call is shown: as a command, an edit, a patch, or its arguments. Pure; arguments are the model's own text and
// may be anything.
import { indented, json } from "../../../ui/json";

export interface Edit {
  path: string | null;
  before: string;
  after: string;
}

export type ToolView =
  | { kind: "shell"; command: string; about: string; rest: string | null }
  | { kind: "edits"; edits: Edit[]; rest: string | null }
  | { kind: "patch"; patch: string }
  | { kind: "arguments"; text: string; isShort: boolean };

/** Characters that fit beside the tool's name. */
const SHORT = 120;

type Members = Record<string, unknown>;

const COMMAND = ["command", "cmd", "script", "shell_command"];
const PATH = ["filePath", "file_path", "path", "filename", "file", "target_file"];
const BEFORE = ["oldString", "old_string", "old_str", "old_text", "oldText"];
const AFTER = ["newString", "new_string", "new_str", "new_text", "newText"];
const CONTENT = ["content", "file_text", "contents", "text"];
const PATCH = ["patchText", "patch", "input", "diff"];

export function toolView(name: string, text: string): ToolView {
  const parsed = parse(text);
  if (!isMembers(parsed)) return isPatch(text) ? { kind: "patch", patch: text } : asWritten(text);
  return shell(parsed) ?? edits(name, parsed) ?? patch(parsed) ?? asWritten(text);
}

/** What a call is about, in one line, beside what is shown of it. */
export function toolLine(view: ToolView): string {
  switch (view.kind) {
    case "shell":
      return firstLine(view.about);
    case "edits":
      return view.edits.map((edit) => edit.path ?? "").find(Boolean) ?? "";
    case "patch":
      return firstLine(view.patch.replace(/^\*\*\* Begin Patch\s*/, ""));
    case "arguments":
      return view.isShort && view.text !== "{}" ? view.text : "";
  }
}

export function firstLine(text: string): string {
  const line = text.trimStart().split("\n", 1)[0] ?? "";
  return line.length > 200 ? `${line.slice(0, 200)}…` : line;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Short ones as the model wrote them, others line by line. */
function asWritten(text: string): ToolView {
  if (text.length <= SHORT && !text.includes("\n"))
    return { kind: "arguments", text, isShort: true };
  return { kind: "arguments", text: indented(text) ?? text, isShort: false };
}

function isMembers(value: unknown): value is Members {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

const isPatch = (text: string) =>
  text.includes("*** Begin Patch") || /^(diff --git |--- .+\n\+\+\+ )/m.test(text);

/** The first of these members that is a text, and which one. */
function textOf(members: Members, names: string[]): [string, string] | null {
  for (const name of names) {
    const value = members[name];
    if (typeof value === "string") return [name, value];
  }
  return null;
}

/** The members that are shown nowhere else. */
function rest(members: Members, shown: (string | undefined)[]): string | null {
  const left = Object.entries(members).filter(([name]) => !shown.includes(name));
  return left.length > 0
    ? (json(Object.fromEntries(left), 2) ?? "nested too deep to be shown")
    : null;
}

function shell(members: Members): ToolView | null {
  const name = COMMAND.find((name) => members[name] !== undefined);
  if (!name || textOf(members, PATH)) return null;
  const value = members[name];
  const isWords = Array.isArray(value) && value.every((word) => typeof word === "string");
  if (typeof value !== "string" && !isWords) return null;
  const command = typeof value === "string" ? value : unwrapped(value as string[]);
  if (isPatch(command)) return { kind: "patch", patch: command };
  const about = typeof members.description === "string" ? members.description : "";
  return { kind: "shell", command, about, rest: rest(members, [name, about && "description"]) };
}

/** `bash -lc SCRIPT` is the script. */
function unwrapped(words: string[]): string {
  const isShell = words.length === 3 && /^-[a-z]*c$/.test(words[1]!);
  return isShell ? words[2]! : words.map(quoted).join(" ");
}

const quoted = (word: string) =>
  /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;

function edits(name: string, members: Members): ToolView | null {
  const path = textOf(members, PATH);
  if (Array.isArray(members.edits) && members.edits.every(isMembers)) {
    const found = (members.edits as Members[]).map((edit) => oneEdit(edit, path?.[1] ?? null));
    if (found.length > 0 && found.every((edit) => edit !== null))
      return { kind: "edits", edits: found, rest: rest(members, ["edits", path?.[0]]) };
  }
  const edit = oneEdit(members, path?.[1] ?? null);
  if (edit) {
    const shown = [path, textOf(members, BEFORE), textOf(members, AFTER)].map((it) => it?.[0]);
    return { kind: "edits", edits: [edit], rest: rest(members, shown) };
  }
  const content = textOf(members, CONTENT);
  if (!content || !path || !/write|create|edit|save/i.test(name)) return null;
  const written = { path: path[1], before: "", after: content[1] };
  return { kind: "edits", edits: [written], rest: rest(members, [path[0], content[0]]) };
}

function oneEdit(members: Members, path: string | null): Edit | null {
  const [before, after] = [textOf(members, BEFORE), textOf(members, AFTER)];
  if (!before || !after) return null;
  return { path: textOf(members, PATH)?.[1] ?? path, before: before[1], after: after[1] };
}

function patch(members: Members): ToolView | null {
  const found = textOf(members, PATCH);
  return found && isPatch(found[1]) ? { kind: "patch", patch: found[1] } : null;
}
