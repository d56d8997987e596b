//! Compares the captured trace of a drill, token by token, with what the endpoint sent.

use std::collections::HashMap;

use serde::Serialize;

use rollcage_model::finding::{Code, Finding};
use rollcage_model::trace::Interpretation;
use rollcage_model::turn::Turn;

use super::drill::{Conversation, Delivery, Part, PlayedPart};
use super::log::ServedAnswer;

/// How much of a drill is in a rollout's trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DrillReport {
    /// Complete replies in the agent's conversations, including those that the token limit ended.
    pub replies: usize,
    /// Of these, the replies in the training trace with exactly the ids and logprobs that were sent.
    pub trained: usize,
    /// Of these, the others.
    pub left_out: Vec<ReplyNote>,
    /// Replies that the agent sent back changed, so that the next prompt does not continue them: a new row begins.
    pub changed: Vec<ReplyNote>,
    /// Replies after which the agent sent the same prompt again.
    pub asked_again: Vec<Part>,
    /// Turns of the trace that differ from everything the endpoint sent.
    pub strange: Vec<String>,
}

/// A reply, and what the result's findings say about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplyNote {
    pub part: Part,
    pub why: String,
}

impl DrillReport {
    /// Compares a rollout's interpretation with what the endpoint sent for its key.
    pub fn new(served: &[ServedAnswer], seen: &Interpretation) -> Self {
        let trace: Vec<_> = seen.training_turns().collect();
        let mut turns: HashMap<_, _> = trace
            .iter()
            .map(|turn| {
                let tokens = (&turn.prompt_token_ids[..], &turn.completion_token_ids[..]);
                (tokens, turn)
            })
            .collect();
        let mut report = DrillReport::default();
        for (at, reply) in served.iter().enumerate() {
            let Some(played) = reply.played.filter(is_whole) else {
                continue;
            };
            report.replies += 1;
            let tokens = (&reply.prompt_ids[..], &reply.sampled_ids[..]);
            let turn = turns.get(&tokens);
            if turn.is_some_and(|turn| turn.per_token_logps == reply.logprobs) {
                turns.remove(&tokens);
                report.trained += 1;
            } else {
                let why = why_left_out(seen, reply);
                report.left_out.push(ReplyNote {
                    part: played.part,
                    why,
                });
            }
            report.follow(played.part, reply, next(&served[at..]), seen);
        }
        let mut strange: Vec<_> = turns.values().map(|turn| turn.node_id.clone()).collect();
        strange.sort();
        report.strange = strange;
        report
    }

    /// Records how the agent continued after a reply.
    fn follow(
        &mut self,
        part: Part,
        reply: &ServedAnswer,
        next: Option<&ServedAnswer>,
        seen: &Interpretation,
    ) {
        let Some(next) = next else {
            return;
        };
        let rest = next.prompt_ids.strip_prefix(&reply.prompt_ids[..]);
        match rest {
            Some([]) => self.asked_again.push(part),
            Some(rest) if rest.starts_with(&reply.sampled_ids) => {}
            _ => self.changed.push(ReplyNote {
                part,
                why: why_changed(seen, reply).unwrap_or_default(),
            }),
        }
    }
}

fn is_whole(played: &PlayedPart) -> bool {
    let is_whole = matches!(played.delivery, Delivery::Whole | Delivery::Cut);
    is_whole && played.conversation != Conversation::Aside
}

/// The next answer in the same conversation as the first of these.
fn next(served: &[ServedAnswer]) -> Option<&ServedAnswer> {
    let (first, later) = served.split_first()?;
    let conversation = |served: &ServedAnswer| served.played.map(|played| played.conversation);
    let mut later = later.iter();
    later.find(|next| conversation(next) == conversation(first))
}

/// The id of a reply's turn, and its role.
fn turn_of(seen: &Interpretation, reply: &ServedAnswer) -> Option<(String, &'static str)> {
    let is_it = |turn: &Turn| {
        let prompt = turn.prompt_token_ids.as_ref();
        prompt.is_some_and(|ids| ids.iter().eq(reply.prompt_ids.iter().copied()))
            && turn.completion_token_ids.as_ref() == Some(&reply.sampled_ids)
    };
    let at = seen.turns.iter().position(is_it)?;
    let node = seen.graph.node_of(at);
    let role = node.map_or("failed", |node| node.role.as_str());
    Some((seen.turns[at].node_id(), role))
}

/// The words of a finding's text, some of which are ids of turns.
fn words(finding: &Finding) -> impl Iterator<Item = &str> {
    let words = finding
        .text
        .split(|letter: char| !letter.is_ascii_alphanumeric());
    words.filter(|word| !word.is_empty())
}

/// The role of a reply that is not in the trace, and the codes of the findings about it.
fn why_left_out(seen: &Interpretation, reply: &ServedAnswer) -> String {
    let Some((id, role)) = turn_of(seen, reply) else {
        return "the result does not have it".to_owned();
    };
    let findings = seen.findings.iter();
    let findings = findings.filter(|finding| words(finding).any(|word| word == id));
    let codes: Vec<_> = findings.map(|finding| finding.code.to_string()).collect();
    match codes.is_empty() {
        true => role.to_owned(),
        false => format!("{role} ({})", codes.join(", ")),
    }
}

/// The text of the finding about a reply that the agent changed.
fn why_changed(seen: &Interpretation, reply: &ServedAnswer) -> Option<String> {
    let (id, _) = turn_of(seen, reply)?;
    let mut findings = seen.findings.iter();
    let finding = findings.find(|finding| match finding.code {
        Code::ReplyChanged => words(finding).next() == Some(&id),
        // Names the continuing turn first, then this one.
        Code::Retokenised => words(finding).skip(1).any(|word| word == id),
        Code::PerTurnCaptureOnly => true,
        _ => false,
    });
    finding.map(|finding| finding.text.clone())
}
