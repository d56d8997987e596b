//! Turns a reply into a "sampled" completion: tokens and logprobs, truncated at the token limit.
//!
//! Logprobs are derived from a hash of all preceding tokens, so the same request always gets the same numbers.

use super::player::Reply;
use super::template::{self, AssistantTurn, Channel, SampledToken};
use super::tokenizer::{self, Special, VOCABULARY};
use super::toolbox::ToolCall;

/// Logprobs are multiples of this: exact as 32-bit floats, like those of a real engine, and short enough in decimal for
/// every JSON parser (serde_json without `float_roundtrip` may be off by one bit for longer ones).
const LOGPROB_UNIT: f64 = 1.0 / (1 << 12) as f64;
const LOGPROB_SPREAD: f64 = 3.0;
/// Logprob of the first alternative if the sampled token has probability 1.
const LOGPROB_FLOOR: f64 = -20.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    Stop,
    ToolCalls,
    Length,
}

/// One sampled answer.
#[derive(Debug)]
pub(super) struct Completion {
    pub(super) prompt_ids: Vec<u32>,
    pub(super) tokens: Vec<SampledToken>,
    /// One per token.
    pub(super) logprobs: Vec<f64>,
    pub(super) finish: Finish,
    /// The visible content of the tokens; shorter than the script's reply if the limit truncated it.
    pub(super) reply: Reply,
    /// Base of the ids of tool calls.
    call_id: String,
}

impl Completion {
    /// The id of a tool call by its index.
    pub(super) fn call_id(&self, index: usize) -> String {
        match index {
            0 => self.call_id.clone(),
            index => format!("{}{index}", self.call_id),
        }
    }
}

impl Finish {
    pub(super) fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::ToolCalls => "tool_calls",
            Finish::Length => "length",
        }
    }
}

/// Samples a reply to a prompt, up to `tokens_max` tokens.
pub(super) fn complete(prompt_ids: Vec<u32>, reply: Reply, tokens_max: usize) -> Completion {
    let mut tokens = template::answer(&turn(&reply));
    let (finish, reply) = if tokens.len() > tokens_max {
        tokens.truncate(tokens_max);
        (Finish::Length, cut(&mut tokens, reply.calls))
    } else if reply.calls.is_empty() {
        (Finish::Stop, reply)
    } else {
        (Finish::ToolCalls, reply)
    };
    sample(prompt_ids, tokens, finish, reply)
}

/// The same, truncated in the middle of its last call's arguments, with the first half visible: engines that parse
/// calls while streaming do that.
pub(super) fn complete_to_half_a_call(prompt_ids: Vec<u32>, mut reply: Reply) -> Completion {
    let mut tokens = template::answer(&turn(&reply));
    let last = reply.calls.len().saturating_sub(1);
    let is_argument = |token: &SampledToken| token.channel == Channel::Arguments(last);
    let first = tokens.iter().position(is_argument).unwrap_or(tokens.len());
    let count = tokens.iter().filter(|token| is_argument(token)).count();
    tokens.truncate(first + count / 2);
    if let Some(call) = reply.calls.last_mut() {
        call.arguments = shown(&tokens, Channel::Arguments(last)).unwrap_or_default();
    }
    sample(prompt_ids, tokens, Finish::Length, reply)
}

fn sample(
    prompt_ids: Vec<u32>,
    tokens: Vec<SampledToken>,
    finish: Finish,
    reply: Reply,
) -> Completion {
    let mut state = prompt_ids.iter().fold(0, |state, id| mix(state, *id));
    let logprobs = tokens.iter().map(|token| {
        state = mix(state, token.id);
        logprob(state)
    });
    let logprobs = logprobs.collect();
    Completion {
        prompt_ids,
        tokens,
        logprobs,
        finish,
        reply,
        call_id: format!("call_{state:016x}"),
    }
}

/// Alternatives to a sampled token, most likely first.
pub(super) fn alternatives(id: u32, logprob: f64, count: usize) -> Vec<(u32, f64)> {
    // Their total probability stays below what the sampled token leaves.
    let left = (1.0 - logprob.exp()).ln();
    let top = if logprob == 0.0 {
        LOGPROB_FLOOR
    } else {
        left.min(logprob)
    };
    let entry = |rank: u32| {
        let other = (id + rank) % VOCABULARY;
        (other, round(top - f64::from(rank)))
    };
    (1..=count as u32).map(entry).collect()
}

/// The longest prefix that is valid UTF-8.
pub(super) fn whole_characters(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let whole = &bytes[..error.valid_up_to()];
            std::str::from_utf8(whole).unwrap_or_default()
        }
    }
}

fn turn(reply: &Reply) -> AssistantTurn<'_> {
    let calls = reply.calls.iter();
    AssistantTurn {
        reasoning: reply.reasoning.as_deref().unwrap_or_default().into(),
        content: reply.content.as_deref().unwrap_or_default().into(),
        calls: calls
            .map(|call| (call.name.as_str().into(), call.arguments.as_str().into()))
            .collect(),
    }
}

/// The visible content of a truncated answer. The tokens of an incomplete tool call are hidden.
fn cut(tokens: &mut [SampledToken], mut calls: Vec<ToolCall>) -> Reply {
    let ends = tokens
        .iter()
        .filter(|token| token.id == Special::CallEnd.id());
    calls.truncate(ends.count());
    for token in tokens.iter_mut() {
        if let Channel::CallName(index) | Channel::Arguments(index) = token.channel
            && index >= calls.len()
        {
            token.channel = Channel::Hidden;
        }
    }
    Reply {
        reasoning: shown(tokens, Channel::Reasoning),
        content: shown(tokens, Channel::Content),
        calls,
    }
}

fn shown(tokens: &[SampledToken], channel: Channel) -> Option<String> {
    let mut bytes = Vec::new();
    let tokens = tokens.iter().filter(|token| token.channel == channel);
    tokens.for_each(|token| tokenizer::decode(token.id, &mut bytes));
    let text = whole_characters(&bytes);
    (!text.is_empty()).then(|| text.to_owned())
}

/// 0 for one in eight; the others are between 0 and minus `LOGPROB_SPREAD`, most of them near 0.
fn logprob(state: u64) -> f64 {
    if state.is_multiple_of(8) {
        return 0.0;
    }
    let uniform = (state >> 32) as f64 / f64::from(u32::MAX);
    round(-LOGPROB_SPREAD * uniform * uniform)
}

fn round(logprob: f64) -> f64 {
    // Adding 0.0 turns -0.0 into 0.0.
    (logprob / LOGPROB_UNIT).round() * LOGPROB_UNIT + 0.0
}

/// The finaliser of splitmix64.
fn mix(state: u64, id: u32) -> u64 {
    let mut mixed = (state ^ u64::from(id)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply() -> Reply {
        let call = ToolCall {
            name: "bash".into(),
            arguments: r#"{"command":"ls"}"#.into(),
        };
        Reply {
            reasoning: Some("Hmm é".into()),
            content: Some("Now ü".into()),
            calls: vec![call],
        }
    }

    #[test]
    fn logprobs_are_finite_and_never_positive_and_some_are_zero() {
        let say = Reply {
            content: Some("the quick brown fox ".repeat(50)),
            ..Reply::default()
        };
        let completion = complete(vec![1, 2, 3], say, usize::MAX);
        let numbers = &completion.logprobs;
        assert_eq!(numbers.len(), completion.tokens.len());
        assert!(
            numbers
                .iter()
                .all(|number| number.is_finite() && *number <= 0.0)
        );
        assert!(
            numbers
                .iter()
                .all(|number| f64::from(*number as f32) == *number)
        );
        assert!(numbers.contains(&0.0) && numbers.iter().any(|number| *number < -1.0));
    }

    #[test]
    fn alternatives_are_other_tokens_and_leave_room_for_the_sampled_one() {
        for logprob in [0.0, -0.25, -2.9] {
            let others = alternatives(VOCABULARY - 1, logprob, 20);
            let total: f64 = others.iter().map(|(_, logprob)| logprob.exp()).sum();
            assert!(total + f64::exp(logprob) < 1.000_001, "{total}");
            assert!(
                others
                    .iter()
                    .all(|(id, other)| *id < VOCABULARY - 1 && *other < logprob)
            );
        }
    }

    #[test]
    fn the_limit_truncates_to_exactly_that_many_tokens_and_hides_incomplete_calls() {
        let whole = complete(Vec::new(), reply(), usize::MAX);
        assert_eq!((whole.finish, &whole.reply), (Finish::ToolCalls, &reply()));
        for limit in 1..whole.tokens.len() {
            let cut = complete(Vec::new(), reply(), limit);
            assert_eq!((cut.finish, cut.tokens.len()), (Finish::Length, limit));
            assert_eq!(cut.logprobs, whole.logprobs[..limit]);
            let is_whole = limit == whole.tokens.len() - 1;
            assert_eq!(cut.reply.calls.len(), usize::from(is_whole));
            assert!(
                cut.reply
                    .content
                    .is_none_or(|text| "Now ü".starts_with(&text))
            );
            assert!(
                cut.reply
                    .reasoning
                    .is_none_or(|text| "Hmm é".starts_with(&text))
            );
        }
    }

    #[test]
    fn an_incomplete_call_is_visible_as_far_as_it_was_sampled() {
        let whole = complete(vec![1], reply(), usize::MAX);
        let half = complete_to_half_a_call(vec![1], reply());
        assert_eq!(half.finish, Finish::Length);
        let count = half.tokens.len();
        assert!(count < whole.tokens.len());
        assert_eq!(half.tokens, whole.tokens[..count]);
        assert_eq!(half.logprobs, whole.logprobs[..count]);
        let (call, all) = (&half.reply.calls[0], &whole.reply.calls[0].arguments);
        assert!(!call.arguments.is_empty() && all.starts_with(&call.arguments));
        assert!(call.arguments.len() < all.len());
    }
}
