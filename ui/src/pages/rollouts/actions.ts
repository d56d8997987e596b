// What can be done with several rollouts at once.
import { address, ApiError, post, remove } from "../../api/client";
import type { RolloutRow } from "../../api/types";
import { link } from "../../router";

/** At once: a browser has six connections to a server, and the page needs some itself. */
const AT_ONCE = 3;

/** Does it for each; says at the end what did not work. */
export async function forEach<T>(
  items: T[],
  run: (item: T) => Promise<unknown>,
  progress: (done: number) => void,
): Promise<void> {
  const failures: string[] = [];
  let [next, done] = [0, 0];
  const work = async () => {
    while (next < items.length) {
      const item = items[next++]!;
      try {
        await run(item);
      } catch (error) {
        failures.push(error instanceof Error ? error.message : String(error));
      }
      progress(++done);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  if (failures.length > 0) {
    const kinds = [...new Set(failures)].slice(0, 3).join("; ");
    throw new ApiError(0, "failed", `${failures.length} of ${items.length} failed: ${kinds}`);
  }
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

/** Several exports as one file: lines after each other, documents as a JSON array. Parquet files cannot be joined. */
export function join(parts: string[], contentType: string): { text: string; extension: string } {
  if (contentType.includes("ndjson")) {
    const lines = parts.map((part) => (part === "" || part.endsWith("\n") ? part : `${part}\n`));
    return { text: lines.join(""), extension: "jsonl" };
  }
  return { text: `[${parts.join(",\n")}]\n`, extension: "json" };
}

/** Puts the exports of many rollouts into one file and has the browser save it. */
export async function saveMany(
  rows: RolloutRow[],
  format: string,
  progress: (done: number) => void,
): Promise<void> {
  const texts = new Map<string, string>();
  let type = "";
  await forEach(
    rows,
    async ({ rollout_id }) => {
      const answer = await fetch(traceAddress(rollout_id, format), { credentials: "same-origin" });
      const text = await answer.text();
      if (!answer.ok) throw new ApiError(answer.status, "error", `HTTP ${answer.status}`);
      type = answer.headers.get("content-type") ?? "";
      texts.set(rollout_id, text);
    },
    progress,
  );
  const parts = rows.map(({ rollout_id }) => texts.get(rollout_id) ?? "");
  const { text, extension } = join(parts, type);
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
  anchor.download = `rollouts-${format}.${extension}`;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 60_000);
}
