//! Whether an answer is by the model that was asked: endpoints that fall back to another one say so in its name alone.
//!
//! Two names are of one model if they are equal without
//!
//! - what stands before the last slash (`Qwen/Qwen3-8B` and a path to it), the case of letters and the end `.gguf`;
//! - a revision at the end: a date (`-2026-01-01`, `-20260101`, `-08-2024`, `-07-25`), a number of three digits or more
//!   (`-0613`, `-002`), `-0`, or a word such as `latest`;
//! - a tag (`:free`, `:latest`, the adapter in `base:adapter`), where only one of them has it. Tags of both must be equal:
//!   `qwen3:8b` is not `qwen3:14b`.

use std::borrow::Cow;

use super::listed::listed;
use crate::finding::{Code, Finding};
use crate::turn::Turn;

const REVISIONS: [&str; 6] = ["0", "latest", "preview", "exp", "experimental", "stable"];
/// How many pairs of names are told.
const PAIRS_MAX: usize = 10;

/// One finding for each pair of names that are not of one model.
pub(super) fn other_models(turns: &[Turn]) -> Vec<Finding> {
    let mut found: Vec<(&str, &str, Vec<String>)> = Vec::new();
    for turn in turns.iter().filter(|turn| !turn.is_failed()) {
        let (Some(asked), Some(answered)) = (&turn.asked_model, &turn.model) else {
            continue;
        };
        let is_known = |it: &&mut (&str, &str, Vec<String>)| (it.0, it.1) == (asked, answered);
        let is_full = found.len() == PAIRS_MAX;
        match found.iter_mut().find(is_known) {
            Some((_, _, ids)) => ids.push(turn.node_id()),
            None if is_full || is_one_model(asked, answered) => {}
            None => found.push((asked, answered, vec![turn.node_id()])),
        }
    }
    let tell = |(asked, answered, ids): (&str, &str, Vec<String>)| {
        let text = format!(
            "{}: `{asked}` was asked, and the endpoint says that `{answered}` answered",
            listed(&ids)
        );
        Finding::warn(Code::OtherModel, text)
    };
    found.into_iter().map(tell).collect()
}

fn is_one_model(asked: &str, answered: &str) -> bool {
    let ((asked, one), (answered, other)) = (parts(asked), parts(answered));
    let is_same_tag = one.is_none() || other.is_none() || one == other;
    // Some servers name none.
    answered.is_empty() || asked == answered && is_same_tag
}

/// A name without what may differ, and its tag.
fn parts(name: &str) -> (String, Option<String>) {
    let name = name.to_lowercase().replace('@', "-");
    let name = name.trim_end_matches('/').rsplit('/').next();
    let name = name.unwrap_or_default();
    let (name, tag) = match name.split_once(':') {
        Some((name, tag)) => (name, Some(tag.to_owned())),
        None => (name, None),
    };
    let name = name.strip_suffix(".gguf").unwrap_or(name);
    let mut words: Vec<Cow<'_, str>> = name.split('-').map(Cow::from).collect();
    while words.len() > 1 {
        let n_words = revision_words(&words);
        if n_words == 0 || n_words >= words.len() {
            break;
        }
        words.truncate(words.len() - n_words);
    }
    (words.join("-"), tag)
}

/// How many words at the end are a revision.
fn revision_words(words: &[Cow<'_, str>]) -> usize {
    let digits = |word: &str| match word.bytes().all(|byte| byte.is_ascii_digit()) {
        true => word.len(),
        false => 0,
    };
    let last = words.last().map_or("", |word| word.as_ref());
    let before = |count: usize| {
        let at = words.len().checked_sub(count + 1);
        at.map_or(0, |at| digits(&words[at]))
    };
    match (before(2), before(1), digits(last)) {
        (4, 2, 2) => 3,
        (_, 2, 2 | 4) => 2,
        (_, _, 3..) => 1,
        _ => usize::from(REVISIONS.contains(&last)),
    }
}

#[cfg(test)]
mod tests {
    use super::is_one_model;

    #[test]
    fn revisions_paths_and_tags_are_of_one_model() {
        for (asked, answered) in [
            ("gpt-x", "gpt-x-2026-01-01"),
            ("gpt-4", "gpt-4-0613"),
            ("gemini-2.5-pro", "gemini-2.5-pro-preview-05-06"),
            ("gemini-1.5-pro-002", "gemini-1.5-pro"),
            ("command-r", "command-r-08-2024"),
            ("claude-sonnet-4-0", "claude-sonnet-4-20250514"),
            ("claude-3-7-sonnet-latest", "claude-3-7-sonnet-20250219"),
            ("claude-sonnet-4@20250514", "claude-sonnet-4-20250514"),
            ("qwen/qwen3-coder:free", "qwen/qwen3-coder"),
            ("qwen3-coder", "qwen/qwen3-coder-07-25"),
            ("Qwen3-8B", "/models/qwen/Qwen3-8B/"),
            ("Qwen/Qwen3-8B", "qwen3-8b"),
            ("qwen3-8b-q4_k_m", "qwen3-8b-q4_k_m.gguf"),
            ("base:adapter", "base"),
            ("/loras/mine", "mine"),
            ("m", "m"),
            ("m", ""),
        ] {
            assert!(is_one_model(asked, answered), "{asked} {answered}");
            assert!(
                answered.is_empty() || is_one_model(answered, asked),
                "{answered} {asked}"
            );
        }
    }

    #[test]
    fn sizes_versions_and_families_are_other_models() {
        for (asked, answered) in [
            ("gpt-x", "gpt-x-mini"),
            ("gpt-x", "gpt-x-mini-2026-01-01"),
            ("gpt-4", "gpt-4.1"),
            ("claude-opus-4", "claude-opus-4-1"),
            ("claude-opus-4-20250514", "claude-opus-4-1-20250805"),
            ("qwen3:8b", "qwen3:14b"),
            ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B-FP8"),
            ("Qwen/Qwen3-8B", "Qwen/Qwen3-14B"),
            ("mine", "Qwen/Qwen3-8B"),
        ] {
            assert!(!is_one_model(asked, answered), "{asked} {answered}");
            assert!(!is_one_model(answered, asked), "{answered} {asked}");
        }
    }
}
