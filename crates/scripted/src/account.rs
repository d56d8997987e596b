//! What became of a drill's replies: compared token by token with what the endpoint sent.

use std::collections::HashMap;

use serde::Serialize;

use rollcage_model::finding::{Code, Finding};
use rollcage_model::trace::Interpretation;
use rollcage_model::turn::Turn;

use super::drill::{Conversation, Fate, Part, Played};
use super::log::Served;

/// What a rollout's trace has of a drill.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Whole replies of the agent's conversations, those that the token limit ended included.
    pub replies: usize,
    /// Of these, those that are in the training trace with the ids and logprobs that were sent.
    pub trained: usize,
    /// The other ones.
    pub left_out: Vec<Told>,
    /// Replies that the next prompt does not go on from, since the agent sent them back in other words: a row begins.
    pub changed: Vec<Told>,
    /// Replies after which the same prompt came again.
    pub asked_again: Vec<Part>,
    /// Turns of the trace that the endpoint did not send so.
    pub strange: Vec<String>,
}

/// A reply, and what the result says of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Told {
    pub part: Part,
    pub why: String,
}

impl Account {
    /// Compares what was captured of a rollout with what the endpoint sent for its key.
    pub fn new(served: &[Served], seen: &Interpretation) -> Self {
        let trace: Vec<_> = seen.training_turns().collect();
        let mut turns: HashMap<_, _> = trace
            .iter()
            .map(|turn| {
                let tokens = (&turn.prompt_token_ids[..], &turn.completion_token_ids[..]);
                (tokens, turn)
            })
            .collect();
        let mut account = Account::default();
        for (at, reply) in served.iter().enumerate() {
            let Some(played) = reply.played.filter(is_whole) else {
                continue;
            };
            account.replies += 1;
            let tokens = (&reply.prompt_ids[..], &reply.sampled_ids[..]);
            let turn = turns.get(&tokens);
            if turn.is_some_and(|turn| turn.per_token_logps == reply.logprobs) {
                turns.remove(&tokens);
                account.trained += 1;
            } else {
                let why = why_left_out(seen, reply);
                account.left_out.push(Told {
                    part: played.part,
                    why,
                });
            }
            account.follow(played.part, reply, next(&served[at..]), seen);
        }
        let mut strange: Vec<_> = turns.values().map(|turn| turn.node_id.clone()).collect();
        strange.sort();
        account.strange = strange;
        account
    }

    /// Notes what came after a reply.
    fn follow(&mut self, part: Part, reply: &Served, next: Option<&Served>, seen: &Interpretation) {
        let Some(next) = next else {
            return;
        };
        let rest = next.prompt_ids.strip_prefix(&reply.prompt_ids[..]);
        match rest {
            Some([]) => self.asked_again.push(part),
            Some(rest) if rest.starts_with(&reply.sampled_ids) => {}
            _ => self.changed.push(Told {
                part,
                why: why_changed(seen, reply).unwrap_or_default(),
            }),
        }
    }
}

fn is_whole(played: &Played) -> bool {
    let is_whole = matches!(played.fate, Fate::Whole | Fate::Cut);
    is_whole && played.conversation != Conversation::Aside
}

/// The next answer in the conversation of the first of these.
fn next(served: &[Served]) -> Option<&Served> {
    let (first, later) = served.split_first()?;
    let conversation = |served: &Served| served.played.map(|played| played.conversation);
    let mut later = later.iter();
    later.find(|next| conversation(next) == conversation(first))
}

/// The name of a reply's turn, and its role.
fn turn_of(seen: &Interpretation, reply: &Served) -> Option<(String, &'static str)> {
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

/// The words of a finding, of which some are the names of turns.
fn words(finding: &Finding) -> impl Iterator<Item = &str> {
    let words = finding
        .text
        .split(|letter: char| !letter.is_ascii_alphanumeric());
    words.filter(|word| !word.is_empty())
}

/// The role of a reply that is not in the trace, and what is said of it.
fn why_left_out(seen: &Interpretation, reply: &Served) -> String {
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

/// What is said of a reply that came back changed.
fn why_changed(seen: &Interpretation, reply: &Served) -> Option<String> {
    let (id, _) = turn_of(seen, reply)?;
    let mut findings = seen.findings.iter();
    let finding = findings.find(|finding| match finding.code {
        Code::ReplyChanged => words(finding).next() == Some(&id),
        // It names the turn that goes on first, and then this one.
        Code::Retokenised => words(finding).skip(1).any(|word| word == id),
        Code::PerTurnCaptureOnly => true,
        _ => false,
    });
    finding.map(|finding| finding.text.clone())
}
