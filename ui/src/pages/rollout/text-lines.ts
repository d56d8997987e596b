// Starts and ends of long texts. Pure.

/** At most so many lines, and not much longer than such lines are. */
export function beginning(text: string, lines: number): string {
  let end = -1;
  for (let line = 0; line < lines; line++) {
    end = text.indexOf("\n", end + 1);
    if (end < 0) break;
  }
  let cut = Math.min(end < 0 ? text.length : end, lines * 160);
  // Not through the middle of a character.
  if (/[\ud800-\udbff]/.test(text.charAt(cut - 1))) cut -= 1;
  // A few lines more are no reason to fold.
  return lineCount(text) <= lines + 3 && text.length <= lines * 200 ? text : text.slice(0, cut);
}

/** A line feed at the end starts no line. */
export function lineCount(text: string): number {
  let count = text.endsWith("\n") ? 0 : 1;
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) count += 1;
  return count;
}

/** The last lines. */
export function ending(text: string, lines: number): string {
  let at = text.length - 1;
  for (let line = 0; line < lines && at > 0; line++) at = text.lastIndexOf("\n", at - 1);
  return at > 0 ? text.slice(at + 1) : text;
}

/** A line feed at the end starts no line. */
export function linesOf(text: string): string[] {
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  return lines;
}

/** What a press shows of a list of which only a part is shown; null where the rest is too small to be left out. */
export function moreOf(
  total: number,
  shown: number,
  step: number,
): { next: number; isAll: boolean } | null {
  // A button takes a line itself.
  if (total <= shown + 3) return null;
  const isAll = total <= shown + step;
  return { next: isAll ? total : shown + step, isAll };
}
