//! What an agent's model says in its conversations, and what the replies of each turn must be. Pure.

use rollcage_model::live::{Reply, ReplyKind, ToolStatus};
use rollcage_model::script::Step;

/// After so many turns a new conversation begins, so that prompts do not grow for ever.
const TURNS: usize = 10;
/// Turns of a conversation in which the agent uses its shell. Not the first: the first answer is also the one to the
/// proxy's probe of the endpoint, which has no shell.
const WITH_TOOL: [usize; 2] = [1, 6];
/// Turns of a conversation in which the model thinks aloud.
const WITH_REASONING: [usize; 1] = [3];

/// One turn of a conversation, as it must go.
pub(super) struct ExpectedTurn {
    pub(super) is_new_session: bool,
    text: String,
    reasoning: String,
    has_tool: bool,
}

/// Of an agent's turn, counted from 0. Every agent says something of its own, so that mixed up replies are seen.
pub(super) fn expected(agent: usize, turn: usize) -> ExpectedTurn {
    let place = turn % TURNS;
    let reasoning = match WITH_REASONING.contains(&place) {
        true => format!("Agent {agent} thinks about turn {place}: one, two, three, four, five."),
        false => String::new(),
    };
    ExpectedTurn {
        is_new_session: place == 0,
        text: format!(
            "This is answer {place} of agent {agent}. It has two sentences, so that it comes in several parts."
        ),
        reasoning,
        has_tool: WITH_TOOL.contains(&place),
    }
}

/// What the scripted model plays in every conversation of an agent: its place follows from the conversation.
pub(super) fn script(agent: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    for place in 0..TURNS {
        let turn = expected(agent, place);
        if turn.has_tool {
            steps.push(Step::shell(format!(
                "echo agent {agent} turn {place} >> notes.txt"
            )));
        }
        steps.push(Step {
            think: (!turn.reasoning.is_empty()).then_some(turn.reasoning),
            say: Some(turn.text),
            ..Step::default()
        });
    }
    steps
}

impl ExpectedTurn {
    /// Says what is wrong with the replies of a turn: each number once, one end, every text whole.
    pub(super) fn check(&self, replies: &[Reply], trace_id: &str) -> Result<(), String> {
        let numbers: Vec<u64> = replies.iter().map(|reply| reply.seq).collect();
        if !numbers.iter().copied().eq(1..=replies.len() as u64) {
            return Err(format!("replies are lost or doubled: {numbers:?}"));
        }
        if let Some(other) = replies.iter().find(|reply| reply.trace_id != trace_id) {
            return Err(format!("a reply of another turn: {}", other.trace_id));
        }
        let (Some(last), ends) = (replies.last(), ends(replies)) else {
            return Err("no replies".to_owned());
        };
        if ends != 1 {
            return Err(format!("{ends} terminal replies instead of one"));
        }
        let final_text = match &last.kind {
            ReplyKind::Final { text, .. } => text,
            ReplyKind::Error { code, message, .. } => {
                return Err(format!("the turn failed: {}: {message}", code.as_str()));
            }
            _ => return Err("the last reply is not the terminal one".to_owned()),
        };
        let reasoning = joined(replies, |kind| match kind {
            ReplyKind::Reasoning { text } => Some(text),
            _ => None,
        });
        let deltas = joined(replies, |kind| match kind {
            ReplyKind::Delta { text } => Some(text),
            _ => None,
        });
        same("the final text", final_text, &self.text)?;
        same("the text of all parts", &deltas, &self.text)?;
        same("the reasoning", reasoning.trim(), &self.reasoning)?;
        let completed = replies
            .iter()
            .filter(|reply| is_completed_call(&reply.kind));
        match (completed.count(), usize::from(self.has_tool)) {
            (count, expected) if count == expected => Ok(()),
            (count, expected) => Err(format!(
                "{count} completed tool calls instead of {expected}"
            )),
        }
    }
}

fn ends(replies: &[Reply]) -> usize {
    let ends = replies.iter().filter(|reply| reply.kind.is_terminal());
    ends.count()
}

fn joined<'a>(replies: &'a [Reply], text: fn(&'a ReplyKind) -> Option<&'a String>) -> String {
    let texts = replies.iter().filter_map(|reply| text(&reply.kind));
    texts.map(String::as_str).collect()
}

fn same(what: &str, found: &str, expected: &str) -> Result<(), String> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{what} is {found:?} instead of {expected:?}")),
    }
}

fn is_completed_call(kind: &ReplyKind) -> bool {
    let completed = ToolStatus::Completed;
    matches!(kind, ReplyKind::Tool { status, .. } if *status == completed)
}

#[cfg(test)]
mod tests {
    use rollcage_model::live::TurnUsage;

    use super::*;

    fn reply(seq: u64, kind: ReplyKind) -> Reply {
        Reply {
            trace_id: "t".to_owned(),
            seq,
            turn_id: "turn".to_owned(),
            session_id: None,
            kind,
        }
    }

    fn replies(turn: &ExpectedTurn) -> Vec<Reply> {
        let (start, end) = turn.text.split_at(9);
        let delta = |text: &str| ReplyKind::Delta { text: text.into() };
        let end_of_turn = ReplyKind::Final {
            text: turn.text.clone(),
            usage: TurnUsage::default(),
            finish: None,
        };
        vec![
            reply(1, delta(start)),
            reply(2, delta(end)),
            reply(3, end_of_turn),
        ]
    }

    #[test]
    fn a_lost_or_doubled_reply_is_found() {
        let turn = expected(4, 12);
        assert!(!turn.is_new_session && expected(4, 20).is_new_session);
        let whole = replies(&turn);
        assert_eq!(turn.check(&whole, "t"), Ok(()));
        assert!(turn.check(&whole, "u").is_err());
        assert!(
            expected(5, 12).check(&whole, "t").is_err(),
            "another agent's"
        );
        assert!(
            expected(4, 10).check(&whole, "t").is_err(),
            "another turn's"
        );
        assert!(expected(4, 13).check(&whole, "t").is_err(), "no reasoning");
        for lost in 0..whole.len() {
            let mut broken = whole.clone();
            broken.remove(lost);
            assert!(turn.check(&broken, "t").is_err());
            // Numbered anew, its text is still missed.
            for (seq, reply) in (1..).zip(&mut broken) {
                reply.seq = seq;
            }
            assert!(turn.check(&broken, "t").is_err());
        }
        let doubled = reply(4, whole[2].kind.clone());
        let doubled = [&whole[..], &[doubled]].concat();
        let problem = turn.check(&doubled, "t").unwrap_err();
        assert_eq!(problem, "2 terminal replies instead of one");
    }

    #[test]
    fn the_script_has_one_answer_for_each_turn_of_a_conversation() {
        let answers = script(1).into_iter().filter_map(|step| step.say);
        let expected: Vec<_> = (0..TURNS).map(|turn| expected(1, turn).text).collect();
        assert_eq!(answers.collect::<Vec<_>>(), expected);
    }
}
