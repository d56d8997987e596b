// All keys of the page, for the help. Whoever adds a key adds it here.

/** Where `g` and a key lead: the place and its title. */
export const PLACES: Record<string, [string, string]> = {
  r: ["rollouts", "Rollouts"],
  s: ["start", "Start"],
  c: ["compare", "Compare"],
  l: ["live", "Live agents"],
};

const LEADS = Object.entries(PLACES).map(([key, [, title]]): [string, string] => [
  `g ${key}`,
  title,
]);

/** By place: keys, with spaces between them, and what they do. */
export const KEYS: [string, [string, string][]][] = [
  ["Everywhere", [["?", "This help"], ...LEADS, ["Esc", "Close what is open"]]],
  [
    "Rollouts",
    [
      ["/", "Search"],
      ["j k ↓ ↑", "Next, previous"],
      ["PgDn PgUp", "A page on, a page back"],
      ["Home End", "First, last"],
      ["Enter", "Open"],
      ["x", "Select; with Shift up to here"],
      ["c", "Cancel a running one"],
      ["Esc", "Select none"],
    ],
  ],
  ["Transcript and turns", [["j k", "Next, previous"]]],
  ["Files, in the list", [["j k ↓ ↑", "Next, previous file"]]],
  [
    "Tokens",
    [
      ["j k", "Next, previous turn"],
      ["→ ←", "Next, previous token"],
      ["n p", "Next, previous unlikely token"],
      ["Home End", "First, last token"],
      ["Esc", "Choose no token"],
    ],
  ],
  [
    "Graph, once it is clicked",
    [
      ["← → ↑ ↓", "Move it"],
      ["+ -", "Zoom"],
      ["0", "Show all of it"],
    ],
  ],
  ["Compare side by side", [["n p", "Next, previous difference"]]],
  [
    "Messages to an agent",
    [
      ["Enter", "Send to a live agent; with Shift a new line"],
      ["Ctrl Enter", "Send to a rollout's agent"],
    ],
  ],
];
