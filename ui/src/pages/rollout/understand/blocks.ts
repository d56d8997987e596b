// Sampled tokens cut into blocks, of which a page draws only those that are seen.

interface HasText {
  text?: string | null;
}

export interface Block {
  /** Its first token. */
  start: number;
  /** Behind its last token. */
  end: number;
}

/** A block ends at a line's end once it has this many tokens. */
const TOKENS = 48;
/** And anywhere once it has this many. */
const TOKENS_MAX = 400;

/** Blocks end at the ends of lines, so that a text flows as it was written. */
export function blocks(tokens: HasText[]): Block[] {
  const found: Block[] = [];
  let start = 0;
  for (let at = 0; at < tokens.length; at += 1) {
    const length = at + 1 - start;
    const isLineEnd = tokens[at]?.text?.endsWith("\n") ?? false;
    if ((isLineEnd && length >= TOKENS) || length >= TOKENS_MAX) {
      found.push({ start, end: at + 1 });
      start = at + 1;
    }
  }
  if (start < tokens.length) found.push({ start, end: tokens.length });
  return found;
}

/** The block that holds a token; the last one for a token behind the end. */
export function blockOf(all: Block[], token: number): number {
  let [low, high] = [0, all.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (all[middle]!.start <= token) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Whether a text is a chat template's own mark, such as `<|im_end|>`, rather than words. */
export const isSpecial = (text: string) =>
  /^(<[|｜][^<>]{1,60}[|｜]>|<\/?s>|<(bos|eos|pad|unk|start_of_turn|end_of_turn)>|\[\/?INST\])$/.test(
    text,
  );

/** A text between quotes, with white space and control characters as escapes. */
export function quoted(text: string): string {
  // JSON writes all but the controls of Latin-1 and separators; those are marked where the text is shown.
  return JSON.stringify(text);
}
