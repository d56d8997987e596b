// A stretch of sampled tokens.
import type { ComponentChildren } from "preact";
import { memo } from "preact/compat";
import type { Token } from "../../../api/types";
import { marked } from "../../../ui/text";
import { type Block, isSpecial } from "./blocks";
import { level } from "./scale";
import type { Colouring } from "./sampled-view";

interface Props {
  tokens: Token[];
  block: Block;
  hasMarks: boolean;
  hasIds: boolean;
  colouring: Colouring;
  chosen: number | null;
  /** Whether the keyboard enters the text at this block's first token. */
  isEntry: boolean;
}

export const TokenBlock = memo(
  function TokenBlock({ tokens, block, hasMarks, hasIds, colouring, chosen, isEntry }: Props) {
    const spans: ComponentChildren[] = [];
    for (let index = block.start; index < block.end; index += 1) {
      const token = tokens[index]!;
      const isChosen = index === chosen;
      const canEnter = isChosen || (isEntry && index === block.start);
      spans.push(
        <span
          key={index}
          data-token={index}
          class={`token ${classOf(token, colouring)}${isChosen ? " chosen" : ""}`}
          role="button"
          tabIndex={canEnter ? 0 : -1}
          aria-pressed={isChosen}
          aria-label={!hasMarks && token.text?.trim() === "" ? blankName(token.text) : undefined}
        >
          {hasIds ? <b>{shown(token, true, "")}</b> : shown(token, hasMarks, "\n")}
          {hasIds && <small>{token.id ?? "–"}</small>}
        </span>,
      );
      // Above its id a token cannot break a line by itself.
      if (hasIds && token.text?.endsWith("\n")) spans.push("\n");
    }
    return <div class="token-block">{spans}</div>;
  },
  // The list of tokens grows behind this block; what is in it stays.
  (old, next) =>
    old.block.start === next.block.start &&
    old.block.end === next.block.end &&
    old.tokens[old.block.start] === next.tokens[next.block.start] &&
    old.hasMarks === next.hasMarks &&
    old.hasIds === next.hasIds &&
    old.colouring === next.colouring &&
    old.chosen === next.chosen &&
    old.isEntry === next.isEntry,
);

/** White space has no name of its own. */
const blankName = (text: string) =>
  text === "" ? "empty" : text.includes("\n") ? "line break" : "space";

function classOf(token: Token, colouring: Colouring): string {
  const special = token.text && isSpecial(token.text) ? " special" : "";
  if (colouring === "none") return special;
  if (colouring === "mask") return (token.mask === 1 ? "trained" : "untrained") + special;
  const step = level(token.logprob);
  return (step === null ? "unknown" : `lp${step}`) + special;
}

function shown(token: Token, hasMarks: boolean, lineBreak: string): ComponentChildren {
  const text = token.text ?? null;
  // Never a guess: without a text there is the id, and without both a mark.
  if (text === null) return <i class="mark">{token.id === null ? "?" : `⟨${token.id}⟩`}</i>;
  if (text === "") return <i class="mark">∅</i>;
  if (!hasMarks) return text === "\n" ? [<i class="mark line"> </i>, "\n"] : marked(text);
  return text.split(/([ \n\t])/).map((part) => {
    if (part === " ") return [<i class="mark">␣</i>, <wbr />];
    if (part === "\n") return [<i class="mark">⏎</i>, lineBreak];
    if (part === "\t") return [<i class="mark">⇥</i>, "\t"];
    return marked(part);
  });
}
