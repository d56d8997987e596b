// Characters that nobody sees, or that hide and reorder others. Pure.

/**
 * One at a time, so that the time it takes grows with the text and no faster: control characters but tab and line feed,
 * soft hyphens, joiners, bidirectional controls, fillers, variation selectors, byte order marks, tags, and halves of
 * characters. Emoji are made with a joiner and two of the selectors, which are left alone there.
 */
const UNSEEN = new RegExp(
  [
    String.raw`[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f]`,
    String.raw`[\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff9-\ufffb]`,
    String.raw`[\u{1d173}-\u{1d17a}\u{e0000}-\u{e007f}\u{e0100}-\u{e01ef}]|\p{Cs}`,
    String.raw`(?<!\p{Emoji})[\ufe0e\ufe0f]`,
    String.raw`(?<![\p{Extended_Pictographic}\p{Emoji_Modifier}\ufe0f])\u200d|\u200d(?!\p{Extended_Pictographic})`,
  ].join("|"),
  "gu",
);

/** More than this in one text are not told one by one. */
const MARKS_MAX = 2000;

const nameOf = (character: string) =>
  `U+${character.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}`;

/** A piece of a text: as it is, or the same unseen character some times. */
export type Piece = string | { name: string; times: number };

/** The text in pieces; nothing of it is left out. */
export function piecesOf(text: string): Piece[] {
  const pieces: Piece[] = [];
  let marks = 0;
  let from = 0;
  for (const { 0: found, index } of text.matchAll(UNSEEN)) {
    if (found === "\r" && text[index + 1] === "\n") continue;
    const name = nameOf(found);
    const last = pieces.at(-1);
    if (index === from && typeof last === "object" && last.name === name) {
      last.times += 1;
    } else {
      if (++marks > MARKS_MAX) return [...pieces, visible(text.slice(from))];
      if (index > from) pieces.push(text.slice(from, index));
      pieces.push({ name, times: 1 });
    }
    from = index + found.length;
  }
  if (from < text.length) pieces.push(text.slice(from));
  return pieces;
}

/** The same for places that take no elements, such as titles. */
export const visible = (text: string): string =>
  text.replace(UNSEEN, (found) => `[${nameOf(found)}]`);
