// Looking for a text in the entries that are loaded. Pure.
import type { Entry } from "../../../api/types";

/** The numbers of the entries that hold the text, in order; capitals do not matter. */
export function matches(entries: Iterable<Entry>, text: string): number[] {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return [];
  const found: number[] = [];
  for (const entry of entries) {
    const calls = entry.tool_calls.flatMap((call) => [
      call.name,
      call.arguments,
      call.result ?? "",
    ]);
    const texts = [entry.text, entry.reasoning ?? "", entry.note ?? "", ...calls];
    if (texts.some((it) => it.toLowerCase().includes(wanted))) found.push(entry.entry);
  }
  return found.sort((one, other) => one - other);
}
