// What can be done with several rollouts at once.
import { address, ApiError, getBlob, post, remove } from "../../api/client";
import type { RolloutRow } from "../../api/types";
import { shortId } from "../../format";
import { link } from "../../router";

/** At once: a browser has six connections to a server, and the page needs some itself. */
const AT_ONCE = 3;

/** What did not work, in words: how many, for which of them, and why. */
function failed(failures: [string, string][], many: number): ApiError {
  const byReason = new Map<string, string[]>();
  for (const [name, reason] of failures)
    byReason.set(reason, [...(byReason.get(reason) ?? []), name]);
  const kinds = [...byReason].slice(0, REASONS_MAX).map(([reason, names]) => {
    const more = names.length > NAMES_MAX ? ` and ${names.length - NAMES_MAX} more` : "";
    return `${reason} (${names.slice(0, NAMES_MAX).join(", ")}${more})`;
  });
  return new ApiError(0, "failed", `${failures.length} of ${many} failed: ${kinds.join("; ")}`);
}

const REASONS_MAX = 3;
const NAMES_MAX = 5;

const reasonOf = (error: unknown) => (error instanceof Error ? error.message : String(error));

/** Does it for each; says at the end what did not work. */
export async function forEach(
  rows: RolloutRow[],
  run: (row: RolloutRow) => Promise<unknown>,
  progress: (done: number) => void,
): Promise<void> {
  const failures: [string, string][] = [];
  let [next, done] = [0, 0];
  const work = async () => {
    while (next < rows.length) {
      const row = rows[next++]!;
      try {
        await run(row);
      } catch (error) {
        failures.push([shortId(row.rollout_id), reasonOf(error)]);
      }
      progress(++done);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  if (failures.length > 0) throw failed(failures, rows.length);
}

export const cancel = (row: RolloutRow) => post(`v1/rollouts/${row.rollout_id}/cancel`);
export const erase = (row: RolloutRow) => remove(`v1/rollouts/${row.rollout_id}`);

export const traceAddress = (id: string, format: string) =>
  address(`v1/rollouts/${id}/trace`, { format });

/** Where the chosen ones are compared; null where there is no one way to. */
export function comparison(rows: RolloutRow[]): string | null {
  const [first] = rows;
  if (!first) return null;
  if (rows.length <= 2) return link(["compare"], { ids: rows.map((row) => row.rollout_id).join() });
  for (const [name, value] of [
    ["group", (row: RolloutRow) => row.group],
    ["task", (row: RolloutRow) => row.task_id],
  ] as const) {
    const common = value(first);
    if (common && rows.every((row) => value(row) === common))
      return link(["compare"], { [name]: common });
  }
  return null;
}

const isLines = (type: string) => type.includes("ndjson");

/**
 * Adds an export to one file of several: lines after each other, documents as a JSON array. Parquet files cannot be
 * joined. The browser keeps a `Blob` of some size on disk, so the page itself holds one export at a time.
 */
export async function added(file: Blob[], part: Blob): Promise<Blob[]> {
  if (part.size === 0) return file;
  if (!isLines(part.type)) return [...file, new Blob([file.length > 0 ? ",\n" : "[", part])];
  const end = await part.slice(-1).text();
  return [...file, end === "\n" ? part : new Blob([part, "\n"])];
}

/** Puts the exports of many rollouts into one file and has the browser save it. What is refused is left out and told. */
export async function saveMany(
  rows: RolloutRow[],
  format: string,
  progress: (done: number) => void,
): Promise<void> {
  const failures: [string, string][] = [];
  let file: Blob[] = [];
  let type = "";
  for (const [at, { rollout_id }] of rows.entries()) {
    try {
      const part = await getBlob(`v1/rollouts/${rollout_id}/trace`, { format });
      type = part.type;
      file = await added(file, part);
    } catch (error) {
      failures.push([shortId(rollout_id), reasonOf(error)]);
    }
    progress(at + 1);
  }
  if (file.length > 0) save(isLines(type) ? file : [...file, "]\n"], `rollouts-${format}`, type);
  if (failures.length > 0) throw failed(failures, rows.length);
}

function save(parts: BlobPart[], name: string, type: string) {
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(new Blob(parts, { type: "application/octet-stream" }));
  anchor.download = `${name}.${isLines(type) ? "jsonl" : "json"}`;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 60_000);
}
