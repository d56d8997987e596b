// What a terminal would show of a text: colours, and the last state of lines that are written again and again, as
// progress bars are. Cursors do not move otherwise, titles and links are left out. Pure, and one pass over the text.

export interface Run {
  text: string;
  /** Names of classes, with spaces between them. */
  style: string;
}

// Control sequences with their parameters, also such that end before their last letter; strings such as titles, if they
// end before the line does; other escapes; ends of lines. What begins no sequence is text, and is marked as unseen.
// Nothing is looked at twice: no part of a sequence can begin another one.
const SEQUENCE =
  // eslint-disable-next-line no-control-regex
  /(?:\u001b\[|\u009b)([0-?]*)([ -/]*)([@-~])?|(?:\u001b[\]PX^_]|[\u0090\u0098\u009d-\u009f])[^\u0007\n\u001b\u0090\u0098\u009b-\u009f]*(?:\u0007|\u001b\\|\u009c)|\u001b[ -/]{0,2}[0-~]|\r?\n|\r/g;

const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
const DECORATIONS: Record<number, string> = {
  1: "bold",
  2: "dim",
  3: "italic",
  4: "underline",
  7: "reverse",
  9: "strikethrough",
};
/** What ends each of them. */
const ENDS: Record<number, string[]> = {
  21: ["bold"],
  22: ["bold", "dim"],
  23: ["italic"],
  24: ["underline"],
  27: ["reverse"],
  29: ["strikethrough"],
};

/** The named colour of one of 256: sixteen are named, then there is a cube of 6 × 6 × 6, and greys. */
function indexed(index: number): number {
  if (index < 16) return index;
  if (index >= 232) return nearest(Array<number>(3).fill(8 + 10 * (index - 232)));
  const level = (step: number) => (step === 0 ? 0 : 55 + 40 * step);
  const at = index - 16;
  return nearest([level(Math.floor(at / 36)), level(Math.floor(at / 6) % 6), level(at % 6)]);
}

/** The named colour that is closest to red, green and blue: only those can be read in light and in dark. */
function nearest([red = 0, green = 0, blue = 0]: number[]): number {
  const [most, least] = [Math.max(red, green, blue), Math.min(red, green, blue)];
  const isGrey = most - least < 40;
  if (isGrey) return most < 64 ? 0 : most < 160 ? 8 : most < 224 ? 7 : 15;
  const middle = (most + least) / 2;
  const hue = Number(red > middle) + 2 * Number(green > middle) + 4 * Number(blue > middle);
  return most > 215 ? hue + 8 : hue;
}

/** The colours and decorations that hold for what comes next. */
class Style {
  private foreground = "";
  private background = "";
  private readonly decorations = new Set<string>();
  /** As names of classes. */
  name = "";

  /** Takes the numbers of a sequence that ends in `m`. */
  apply(parameters: string) {
    // Those with colons or a sign before them mean other things.
    if (!/^[\d;]*$/.test(parameters)) return;
    const codes = parameters.split(";").map(Number);
    for (let at = 0; at < codes.length; at++) {
      const code = codes[at]!;
      if (code !== 38 && code !== 48) {
        this.one(code);
        continue;
      }
      // One of 256 colours, or one by its red, green and blue.
      const isIndexed = codes[at + 1] === 5;
      const index = isIndexed ? indexed(codes[at + 2] ?? 0) : nearest(codes.slice(at + 2, at + 5));
      this.one((index < 8 ? index + 30 : index + 82) + (code - 38));
      at += isIndexed ? 2 : 4;
    }
    const all = [this.foreground, this.background, ...this.decorations];
    this.name = all.filter(Boolean).join(" ");
  }

  private one(code: number) {
    const colour = COLOURS[code % 10];
    if (code === 0) {
      this.foreground = this.background = "";
      this.decorations.clear();
    } else if (DECORATIONS[code]) this.decorations.add(`ansi-${DECORATIONS[code]}`);
    else if (ENDS[code]) ENDS[code].forEach((name) => this.decorations.delete(`ansi-${name}`));
    else if (code === 39) this.foreground = "";
    else if (code === 49) this.background = "";
    else if (!colour) return;
    else if (code >= 30 && code < 40) this.foreground = `ansi-${colour}`;
    else if (code >= 90 && code < 100) this.foreground = `ansi-bright-${colour}`;
    else if ((code >= 40 && code < 50) || (code >= 100 && code < 110))
      this.background = `ansi-${colour}-bg`;
  }
}

/** Lines that are written character by character, and are over at their end. */
class Screen {
  readonly runs: Run[] = [];
  private characters: string[] = [];
  private styles: string[] = [];
  private column = 0;

  write(text: string, style: string) {
    for (const character of text) {
      this.characters[this.column] = character;
      this.styles[this.column] = style;
      this.column += 1;
    }
  }

  toStart() {
    this.column = 0;
  }

  /** Erases from here to the line's end. */
  erase() {
    this.characters.length = this.styles.length = this.column;
  }

  end(lineBreak: string) {
    let from = 0;
    for (let at = 1; at <= this.characters.length; at++) {
      if (this.styles[at] === this.styles[from] && at < this.characters.length) continue;
      this.add(this.characters.slice(from, at).join(""), this.styles[from]!);
      from = at;
    }
    if (lineBreak) this.add(lineBreak, this.runs.at(-1)?.style ?? "");
    this.characters = [];
    this.styles = [];
    this.column = 0;
  }

  private add(text: string, style: string) {
    const last = this.runs.at(-1);
    if (last?.style === style) last.text += text;
    else this.runs.push({ text, style });
  }
}

export function runsOf(text: string): Run[] {
  const screen = new Screen();
  const style = new Style();
  let from = 0;
  for (const match of text.matchAll(SEQUENCE)) {
    const [found, parameters = "", between = "", last] = match;
    screen.write(text.slice(from, match.index), style.name);
    from = match.index + found.length;
    if (found.endsWith("\n")) screen.end("\n");
    else if (found === "\r") screen.toStart();
    else if (between) continue;
    else if (last === "m") style.apply(parameters);
    else if (last === "G" && Number(parameters) <= 1) screen.toStart();
    else if (last === "K") eraseLine(screen, parameters);
  }
  screen.write(text.slice(from), style.name);
  screen.end("");
  return screen.runs;
}

function eraseLine(screen: Screen, how: string) {
  // What erases all of a line is followed by what is written from its start.
  if (how === "2") screen.toStart();
  if (how === "" || how === "0" || how === "2") screen.erase();
}
