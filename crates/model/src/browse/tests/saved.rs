use super::*;
use crate::browse::saved::NewPrompt;

/// Puts a prompt together as a reader of the file does: ids, and where they were sampled.
fn whole(reading: &Reading, turn: usize) -> Vec<(Option<u32>, Option<usize>)> {
    let prompt = reading.new_prompt(turn).unwrap();
    let mut ids = Vec::new();
    if let Some(before) = prompt.before {
        assert!(before < turn);
        ids = whole(reading, before);
        let sampled = reading.tokens(before, Part::Completion, 0, 9999).unwrap();
        let sampled = sampled.tokens.iter();
        ids.extend(sampled.map(|token| (token.id, Some(before))));
        assert!(prompt.shared <= ids.len());
        ids.truncate(prompt.shared);
    }
    ids.extend(prompt.tokens);
    ids
}

#[track_caller]
fn check(reading: &Reading) {
    for turn in 0..reading.n_turns() {
        let told = reading.tokens(turn, Part::Prompt, 0, 9999).unwrap().tokens;
        let told: Vec<_> = told
            .iter()
            .map(|token| (token.id, token.sampled_in))
            .collect();
        assert_eq!(whole(reading, turn), told, "{turn}");
    }
}

#[test]
fn prompts_are_put_together_from_what_is_new() {
    let reading = read(&work());
    assert_eq!(
        reading.new_prompt(2),
        Some(NewPrompt {
            before: Some(1),
            shared: 7,
            tokens: vec![(Some(8), None), (Some(9), None)],
        })
    );
    check(&reading);
}

#[test]
fn a_stretch_that_was_sampled_and_came_back_in_other_ids_is_not_shared() {
    let [first, second, mut third] = work();
    // The second of the two ids that the first call sampled is another one now.
    third.prompt = vec![1, 2, 3, 4, 50, 6, 7, 8, 9];
    let reading = read(&[title(), first, second, third]);
    check(&reading);
    assert_eq!(reading.new_prompt(3).unwrap().shared, 3);
}

#[test]
fn calls_without_ids_have_no_prompt_and_are_no_start() {
    let [first, mut second, third] = work();
    second.prompt = Vec::new();
    let reading = read(&[first, second, third]);
    assert_eq!(reading.new_prompt(1), None);
    assert_eq!(reading.new_prompt(9), None);
    let told = reading.tokens(2, Part::Prompt, 0, 99).unwrap();
    assert_eq!(told.total, whole(&reading, 2).len());
}
