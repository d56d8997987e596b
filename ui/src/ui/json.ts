// Values of agents as text. They may be nested deeper than the browser can follow.

/** A text as it is, any other value as JSON. */
export function written(value: unknown): string {
  return typeof value === "string" ? value : (json(value) ?? "");
}

/** The value as JSON; null where it is nested deeper than the browser can follow. */
export function json(value: unknown, indent = 0): string | null {
  try {
    return JSON.stringify(value, null, indent) ?? null;
  } catch {
    return null;
  }
}

/** Deeper lines begin no further to the right: indentation grows with the square of the depth. */
const DEPTH_MAX = 40;

/**
 * The same JSON over several lines; null where the text is no object or list. It moves white space alone: numbers and
 * escapes stay as they were written, which parsing and writing it again would not promise.
 */
export function indented(text: string): string | null {
  const start = text.trimStart()[0];
  if (start !== "{" && start !== "[") return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  const parts: string[] = [];
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, DEPTH_MAX))}`;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[^\s"{}[\],:]+|[{}[\],:]/g)) {
    const last = parts.at(-1);
    if (token === "{" || token === "[") {
      parts.push(token);
      depth += 1;
      parts.push(line());
    } else if (token === "}" || token === "]") {
      depth -= 1;
      const isEmpty = parts.at(-2) === (token === "}" ? "{" : "[") && last?.startsWith("\n");
      if (isEmpty) parts.pop();
      else parts.push(line());
      parts.push(token);
    } else if (token === ",") parts.push(token, line());
    else if (token === ":") parts.push(": ");
    else parts.push(token);
  }
  return parts.join("");
}
