// Text of agents and models. It is hostile: it is only ever shown as text, characters that hide or reorder others are made
// visible, and terminal colours become classes.
import Anser from "anser";
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import "../styles/terminal.css";

// Bidirectional controls, zero-width characters, byte order marks, tags, and control characters but tab and line feed.
const UNSEEN =
  // eslint-disable-next-line no-control-regex
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\udb40[\udc00-\udc7f]/g;

/** The text with every unseen character as a small mark. */
export function marked(text: string): ComponentChildren[] {
  const parts: ComponentChildren[] = [];
  let from = 0;
  for (const match of text.matchAll(UNSEEN)) {
    if (match[0] === "\r" && text[match.index + 1] === "\n") continue;
    parts.push(text.slice(from, match.index));
    const name = `U+${match[0].codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}`;
    parts.push(
      <span class="unseen" title={`the character ${name}, which cannot be seen`}>
        {name}
      </span>,
    );
    from = match.index + match[0].length;
  }
  parts.push(text.slice(from));
  return parts;
}

/** The same for places that take no elements, such as titles. */
export const visible = (text: string): string =>
  text.replace(UNSEEN, (found) => `[U+${found.codePointAt(0)!.toString(16).toUpperCase()}]`);

/** Plain text of an agent. */
export function AgentText({ text, class: extra = "" }: { text: string; class?: string }) {
  const parts = useMemo(() => marked(text), [text]);
  return <span class={`agent-text ${extra}`}>{parts}</span>;
}

/** What a command printed, with its colours. */
export function TerminalText({ text }: { text: string }) {
  const parts = useMemo(() => {
    // Other escape sequences than colours move the cursor or set titles.
    // eslint-disable-next-line no-control-regex
    const plain = text.replace(
      /\u001b\][^\u0007\u001b]*(\u0007|\u001b\\)|\u001b\[[0-9;?]*[A-HJ-Zf-ln-z]/g,
      "",
    );
    return Anser.ansiToJson(plain, { use_classes: true, remove_empty: true, json: true });
  }, [text]);
  return (
    <pre class="terminal agent-text">
      {parts.map((part) => {
        const classes = [
          part.fg,
          part.bg && `${part.bg}-bg`,
          ...part.decorations.map((it) => `ansi-${it}`),
        ];
        return <span class={classes.filter(Boolean).join(" ")}>{marked(part.content)}</span>;
      })}
    </pre>
  );
}
