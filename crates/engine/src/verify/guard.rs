//! What keeps files of the agent's from deciding how they are checked: which Python modules the author names, so that the
//! agent's count, and what our programs inside say they did not obey.
//!
//! Code under test can write to where they say it, so it is findings and nothing else.

use std::collections::BTreeSet;

use rollcage_model::finding::Code;
use rollcage_model::text::tail;
use rollcage_sandbox::guest::VERIFY_FOUND;
use rollcage_sandbox::{Error, Sandbox};

use super::{home, unstarved};
use crate::plan::Plan;

const FOUND_BYTES_MAX: u64 = 64 << 10;
/// How much of each kind a finding shows.
const SHOWN_MAX: usize = 5;
const SHOWN_CHARS: usize = 200;
/// More names than an author gives to modules.
const MODULES_MAX: usize = 500;

/// Kinds of what our programs write down, and what a finding says of them.
const KINDS: [(&str, Code, &str); 4] = [
    (
        "modules",
        Code::ModulesShadowed,
        "Python files that the agent added hide modules of the standard library or of setup's packages, or are bytecode, and \
         were not used (`verify_trust = [\"modules\"]` has them used)",
    ),
    (
        "pytest",
        Code::PytestSettingsIgnored,
        "pytest did not take what is not the verifier's for the verifier's tests (`verify_trust = [\"pytest\"]` has it taken)",
    ),
    (
        "git",
        Code::GitSettingsIgnored,
        "git did not obey all of the repository's configuration (`verify_trust = [\"git\"]` has it obeyed, \"hooks\" has hooks run)",
    ),
    (
        "failed",
        Code::VerifyUnguarded,
        "what keeps the agent's files from deciding how they are checked failed",
    ),
];

/// The names of Python modules whose files the author names: in what is the verifier's, or in what the agent is told to do.
pub(super) fn named_modules(plan: &Plan) -> String {
    let mut named = BTreeSet::new();
    for text in home::verifier_texts(plan) {
        collect(&text, &mut named);
    }
    collect(&plan.task.instruction, &mut named);
    let named: Vec<String> = named.into_iter().take(MODULES_MAX).collect();
    named.join(",")
}

fn collect(text: &str, named: &mut BTreeSet<String>) {
    let is_of_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
    for (at, _) in text.match_indices(".py") {
        let is_whole = !text[at + 3..].starts_with(is_of_name);
        let stem = &text[..at];
        let stem = &stem[stem.trim_end_matches(is_of_name).len()..];
        if is_whole && !stem.is_empty() {
            named.insert(stem.to_owned());
        }
    }
}

/// What our programs wrote down during a command.
pub(super) async fn found(sandbox: &dyn Sandbox) -> Result<Vec<(Code, String)>, Error> {
    match unstarved(|| sandbox.read_file(VERIFY_FOUND, FOUND_BYTES_MAX)).await {
        Ok(content) => Ok(texts(&String::from_utf8_lossy(&content))),
        Err(error @ Error::Gone { .. }) => Err(error),
        // Nothing, or something that code under test put there.
        Err(_) => Ok(Vec::new()),
    }
}

fn texts(found: &str) -> Vec<(Code, String)> {
    let lines: BTreeSet<(&str, &str)> = found
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .collect();
    let of_kind = |&(kind, code, says): &(&str, Code, &str)| {
        let own: Vec<_> = lines.iter().filter(|line| line.0 == kind).collect();
        let shown = own.iter().take(SHOWN_MAX);
        let shown: Vec<_> = shown.map(|line| tail(line.1, SHOWN_CHARS)).collect();
        let more = match own.len().saturating_sub(SHOWN_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let text = format!("{says}: {}{more}", shown.join(", "));
        (!own.is_empty()).then_some((code, text))
    };
    KINDS.iter().filter_map(of_kind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_modules_are_named_wherever_they_stand() {
        let mut named = BTreeSet::new();
        let text = "pytest ~/tests/test_a.py::x && python3 queue.py; cat .pyc a.pyc 'json.py'. my-stats.py";
        collect(text, &mut named);
        let named: Vec<String> = named.into_iter().collect();
        assert_eq!(named, ["json", "queue", "stats", "test_a"]);
    }

    #[test]
    fn what_was_found_is_one_text_of_each_kind() {
        let found = "modules\t/a.py\nmodules\t/a.py\nmodules\t/b.py\nnoise\nother\tx\n";
        let texts = texts(found);
        assert_eq!(texts.len(), 1);
        assert_eq!(texts[0].0, Code::ModulesShadowed);
        assert!(texts[0].1.ends_with(": /a.py, /b.py"), "{}", texts[0].1);
    }
}
