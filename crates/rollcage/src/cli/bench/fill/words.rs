//! Numbers and texts that look like anything and are always the same.

/// The numbers after a seed (SplitMix64).
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to below 1.
    pub(super) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From 0 to below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.share() * end as f64) as usize
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

const FILES: [&str; 8] = [
    "src/main.rs",
    "src/parse.rs",
    "src/queue.rs",
    "tests/parse.rs",
    "README.md",
    "lib/retry.py",
    "lib/cache.py",
    "web/index.ts",
];

const THOUGHTS: [&str; 6] = [
    "The test fails because the last field is cut off.",
    "Let me look at how the parser handles an empty line first.",
    "This function is called from two places, so both have to change.",
    "The cache is never cleared; that explains why the second run differs.",
    "I should run the tests again before I go on.",
    "There is an off-by-one error in the loop over the chunks.",
];

const WORDS: [&str; 5] = [
    "I look at the file.",
    "Now I change the loop.",
    "I run the tests again.",
    "The retry should wait longer each time.",
    "One more place needs the same change.",
];

/// What an agent does in one step: its words, a tool, its arguments, and what comes back.
pub(super) struct Step {
    pub(super) thought: Option<&'static str>,
    pub(super) words: &'static str,
    pub(super) tool: &'static str,
    pub(super) arguments: serde_json::Value,
    pub(super) result: String,
}

impl Step {
    pub(super) fn new(dice: &mut Dice, number: usize) -> Self {
        let file = format!("/home/user/workdir/{}", dice.pick(&FILES));
        let (tool, arguments, result) = match dice.below(4) {
            0 => (
                "read",
                serde_json::json!({"filePath": file, "offset": number % 400, "limit": 20}),
                source(number, 2),
            ),
            1 => (
                "edit",
                serde_json::json!({
                    "filePath": file,
                    "oldString": format!("    let limit = {number};\n"),
                    "newString": format!("    let limit = {};\n    check(limit)?;\n", number + 1),
                }),
                "Edit applied successfully.".to_owned(),
            ),
            2 => (
                "bash",
                serde_json::json!({"command": "cargo test --quiet", "description": "Runs the tests"}),
                format!(
                    "\u{1b}[32mtest result: ok\u{1b}[0m. {} passed; 0 failed",
                    number % 97 + 3
                ),
            ),
            _ => (
                "bash",
                serde_json::json!({"command": format!("grep -n retry {file}"), "description": "Finds uses"}),
                source(number + 7, 1),
            ),
        };
        Step {
            thought: (dice.below(3) == 0).then(|| *dice.pick::<&str>(&THOUGHTS)),
            words: dice.pick::<&str>(&WORDS),
            tool,
            arguments,
            result,
        }
    }
}

/// Lines of code.
fn source(seed: usize, lines: usize) -> String {
    let line = |line: usize| {
        let at = seed * 3 + line;
        format!(
            "{at:5}|    let part_{at} = parts.get({})?; // \"{}\"",
            at % 17,
            at % 5
        )
    };
    (0..lines).map(line).collect::<Vec<_>>().join("\n")
}
