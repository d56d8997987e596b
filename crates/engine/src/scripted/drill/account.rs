//! What became of a drill's replies: compared token by token with what the endpoint sent.

use std::collections::HashMap;

use serde::Serialize;

use rollcage_model::record::RolloutResult;
use rollcage_model::trace::Interpretation;
use rollcage_model::turn::Turn;

use super::super::log::Served;
use super::{Conversation, Fate, Part};

/// What a rollout's trace has of a drill.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Whole replies of the agent's conversations, those that the token limit ended included.
    pub replies: usize,
    /// Of these, those that are in the training trace with the ids and logprobs that were sent.
    pub trained: usize,
    /// The other ones, and why.
    pub left_out: Vec<LeftOut>,
    /// Replies that the next prompt does not go on from: the agent sent them back in other words.
    pub changed: Vec<Part>,
    /// Turns of the trace that the endpoint did not send so.
    pub strange: Vec<String>,
}

/// A reply that is not trained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    pub part: Part,
    /// The turn's role, and what is said of it.
    pub why: String,
}

impl Account {
    /// Compares a result, and what was captured of it, with what the endpoint sent for its key.
    pub fn new(served: &[Served], result: &RolloutResult, seen: &Interpretation) -> Self {
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
            let Some(played) = reply.played else {
                continue;
            };
            let is_whole = matches!(played.fate, Fate::Whole | Fate::Cut);
            if !is_whole || played.conversation == Conversation::Aside {
                continue;
            }
            account.replies += 1;
            let tokens = (&reply.prompt_ids[..], &reply.sampled_ids[..]);
            let turn = turns.get(&tokens);
            if turn.is_some_and(|turn| turn.per_token_logps == reply.logprobs) {
                turns.remove(&tokens);
                account.trained += 1;
            } else {
                account.left_out.push(LeftOut {
                    part: played.part,
                    why: why(result, seen, reply),
                });
            }
            let mut later = served[at + 1..].iter();
            let next = later.find(|next| {
                let played = next.played.map(|played| played.conversation);
                played
                    == Some(
                        reply
                            .played
                            .map_or(Conversation::Aside, |it| it.conversation),
                    )
            });
            let is_gone_on_from = |next: &Served| {
                let rest = next.prompt_ids.strip_prefix(tokens.0);
                rest.is_some_and(|rest| rest.starts_with(tokens.1))
            };
            if next.is_some_and(|next| !is_gone_on_from(next)) {
                account.changed.push(played.part);
            }
        }
        let mut strange: Vec<_> = turns.values().map(|turn| turn.node_id.clone()).collect();
        strange.sort();
        account.strange = strange;
        account
    }

    /// How many rows the trained turns of one conversation are in, at the least: a changed reply begins a new one.
    pub fn rows(&self) -> usize {
        self.changed.len() + 1
    }
}

/// What the result says of a reply that is not in its trace.
fn why(result: &RolloutResult, seen: &Interpretation, reply: &Served) -> String {
    let is_it = |turn: &Turn| {
        let prompt = turn.prompt_token_ids.as_ref();
        prompt.is_some_and(|ids| ids.iter().eq(reply.prompt_ids.iter().copied()))
            && turn.completion_token_ids.as_ref() == Some(&reply.sampled_ids)
    };
    let Some(at) = seen.turns.iter().position(is_it) else {
        return "the result does not have it".to_owned();
    };
    let node_id = seen.turns[at].node_id();
    let role = seen.graph.node_of(at);
    let role = role.map_or("failed", |node| node.role.as_str());
    let names_it = |text: &str| {
        let mut words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
        words.any(|word| word == node_id)
    };
    let findings = result.findings.iter();
    let findings = findings.filter(|finding| names_it(&finding.text));
    let codes: Vec<_> = findings.map(|finding| finding.code.to_string()).collect();
    match codes.is_empty() {
        true => role.to_owned(),
        false => format!("{role} ({})", codes.join(", ")),
    }
}
