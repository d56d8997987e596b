// JSON as people read it.

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
  const line = () => `\n${"  ".repeat(depth)}`;
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
