//! The model calls of one rollout: rows of a list, and one call in full.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Reading;
use super::text::{line_of, reasoning_of};
use crate::finding::Code;
use crate::graph::{Node, echo_of};
use crate::tokens::Tokens;
use crate::turn::{Exactness, Turn};
use rollcage_dialect::Dialect;
use rollcage_dialect::chat::{Message, Usage};

/// Of a reply or an error in a list.
const PREVIEW_CHARS: usize = 200;

/// One model call in a list.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TurnRow {
    /// Counts the rollout's calls from 0.
    pub turn: usize,
    /// The call's name in findings and rows.
    pub node_id: String,
    /// `agent`, `auxiliary`, `discarded`, `failed`, or `pending` while it has no answer.
    pub role: String,
    /// Why the role is not the agent's: `beside`, `summary`, `asked_again` or `thrown_away`.
    pub reason: Option<String>,
    /// The call that this one goes on from, by whatever link.
    pub before: Option<usize>,
    /// The first call of its conversation.
    pub root: Option<usize>,
    /// Whether its conversation is a subagent's.
    pub is_subagent: bool,
    /// Unix seconds, when the request came.
    pub at: f64,
    /// Null while there is no answer.
    pub latency_s: Option<f64>,
    /// As the endpoint calls it.
    pub model: Option<String>,
    /// Tokens of the prompt, as the endpoint counted or as there are ids.
    pub prompt_tokens: Option<u64>,
    /// Sampled tokens.
    pub completion_tokens: Option<u64>,
    /// Those of the prompt's that were cached.
    pub cached_tokens: Option<u64>,
    /// As the endpoint gave it.
    pub finish_reason: Option<String>,
    /// Whether its tokens are trained.
    pub is_trained: bool,
    /// Why its tokens are not to be trained on; null where they are exact.
    pub not_exact: Option<Code>,
    /// Of the sampled tokens; null where there are no logprobs.
    pub mean_logprob: Option<f64>,
    /// The endpoint's HTTP status.
    pub upstream_status: Option<u16>,
    /// What the endpoint answered instead of a completion, in short.
    pub error: Option<String>,
    /// The start of what the model said.
    pub preview: String,
    /// Whether it reasoned.
    pub has_reasoning: bool,
    /// The names of the tools that it called.
    pub tool_calls: Vec<String>,
    /// Messages of the request.
    pub messages: usize,
}

/// A page of a rollout's calls.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TurnPage {
    /// From `start` on, in the order of the requests.
    pub turns: Vec<TurnRow>,
    /// The first one's number.
    pub start: usize,
    /// How many there are.
    pub total: usize,
}

/// One model call in full, without its tokens.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TurnDetail {
    /// As in the list.
    #[serde(flatten)]
    pub row: TurnRow,
    /// The call that it goes on from by its messages, where its tokens do not.
    pub retokenised_from: Option<usize>,
    /// The call whose reply the agent changed before it sent it back.
    pub changed_from: Option<usize>,
    /// The call whose reply the agent left out.
    pub left_out: Option<usize>,
    /// The last call of the conversation that this one takes the place of.
    pub compacts: Option<usize>,
    /// The call that started this one's session.
    pub spawned_by: Option<usize>,
    /// How many messages of the request stand before `messages`; they repeat an earlier call's.
    pub messages_before: usize,
    /// The request's messages that are new, in the words of chat completions; all of them where that was asked for.
    pub messages: Vec<Value>,
    /// The reply.
    pub message: Option<Value>,
    /// The tools that were offered.
    pub tools: Option<Value>,
    /// As the endpoint counted.
    pub usage: Option<Usage>,
    /// What it answered instead of a completion.
    pub upstream_error: Option<Value>,
    /// As the endpoint was asked.
    pub sampling_params: Map<String, Value>,
    /// As the agent had asked.
    pub requested_sampling_params: Map<String, Value>,
    /// What of the request makes the tokens unfit for training, in words.
    pub unfit: Option<String>,
    /// What the logprobs are of, where it was measured.
    pub logprobs_of: Option<String>,
    /// What of the request had no counterpart in the endpoint's dialect.
    pub dropped: Vec<String>,
    /// Members that the endpoint does not take.
    pub refused: Vec<String>,
    /// The dialect that the agent speaks.
    pub dialect: String,
    /// What the agent says of its own session.
    pub harness_session_id: Option<String>,
    /// How many ids of the prompt are known.
    pub prompt_ids: usize,
    /// How many sampled ids are known.
    pub completion_ids: usize,
    /// Whether the endpoint told alternatives to the sampled tokens.
    pub has_alternatives: bool,
}

/// Which of a call's messages are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MessageRange {
    /// Those that no earlier call of its conversation had.
    #[default]
    New,
    /// All of them.
    All,
}

impl Reading {
    /// A page of the calls.
    pub fn turns(&self, start: usize, limit: usize) -> TurnPage {
        let total = self.n_turns();
        let end = start.saturating_add(limit).min(total);
        TurnPage {
            turns: (start..end).filter_map(|turn| self.row(turn)).collect(),
            start,
            total,
        }
    }

    fn row(&self, index: usize) -> Option<TurnRow> {
        let turn = self.turn(index)?;
        let is_pending = self.is_pending(index);
        let node = self.node(index);
        let aside = node.and_then(|node| node.aside);
        let message = turn.message.as_ref();
        let calls = message.map_or(&[][..], |message| &message.tool_calls);
        Some(TurnRow {
            turn: index,
            node_id: turn.node_id(),
            role: self.role(index).to_owned(),
            reason: aside.map(|aside| aside.as_str().to_owned()),
            before: self.before(index).any(),
            root: Some(self.root(index)),
            is_subagent: self.is_subagent(index),
            at: turn.at,
            latency_s: turn.latency_s,
            model: turn.model.clone(),
            prompt_tokens: prompt_tokens(turn),
            completion_tokens: completion_tokens(turn),
            cached_tokens: turn.usage.map(|usage| usage.cached_tokens),
            finish_reason: turn.finish_reason.clone(),
            is_trained: self.is_trained(index),
            not_exact: match turn.exactness {
                Exactness::NotExact(code) if !is_pending => Some(code),
                Exactness::NotExact(_) | Exactness::Exact => None,
            },
            mean_logprob: mean_logprob(turn),
            upstream_status: turn.upstream_status,
            error: error_of(turn).filter(|_| !is_pending),
            preview: message.map(preview).unwrap_or_default(),
            has_reasoning: message.is_some_and(|message| reasoning_of(&message.other).is_some()),
            tool_calls: calls.iter().map(|call| call.name.clone()).collect(),
            messages: turn.messages.len(),
        })
    }

    /// One call; `None` where there is none of this number.
    pub fn detail(&self, index: usize, messages: MessageRange) -> Option<TurnDetail> {
        let turn = self.turn(index)?;
        let node = self.node(index);
        let of = |pick: fn(&Node) -> Option<usize>| node.and_then(pick).map(|at| self.call_of(at));
        let messages_before = match messages {
            MessageRange::New => self.repeated_messages(index),
            MessageRange::All => 0,
        };
        let shown = turn.messages[messages_before..].iter();
        let error = turn.upstream_error.clone();
        Some(TurnDetail {
            row: self.row(index)?,
            retokenised_from: of(|node| node.retokenised),
            changed_from: of(|node| node.changed),
            left_out: of(|node| node.left_out),
            compacts: of(|node| node.compacts),
            spawned_by: of(|node| node.spawned_by),
            messages_before,
            messages: shown.map(|message| Value::clone(message)).collect(),
            message: turn.message.as_ref().map(Message::to_value),
            tools: turn.tools.as_deref().cloned(),
            usage: turn.usage,
            upstream_error: error.filter(|_| !self.is_pending(index)),
            sampling_params: turn.sampling.clone(),
            requested_sampling_params: turn.requested_sampling.clone(),
            unfit: turn.unfit.clone(),
            logprobs_of: turn.logprobs_of.map(|mode| mode.as_str().to_owned()),
            dropped: turn.dropped.clone(),
            refused: turn.refused.clone(),
            dialect: dialect_name(turn.dialect).to_owned(),
            harness_session_id: turn.harness_session_id.clone(),
            prompt_ids: turn.prompt_token_ids.as_ref().map_or(0, Tokens::len),
            completion_ids: turn.completion_token_ids.as_ref().map_or(0, Vec::len),
            has_alternatives: self.has_alternatives(index),
        })
    }

    /// How many messages at the start of a request its conversation had before: those of the call it goes on from, and
    /// that one's reply where it was sent back unchanged.
    fn repeated_messages(&self, index: usize) -> usize {
        let Some(before) = self.before(index).call else {
            return 0;
        };
        let is_changed = self.node(index).is_some_and(|node| node.changed.is_some());
        let (before, turn) = (&self.seen.turns[before], &self.seen.turns[index]);
        let pairs = turn.messages.iter().zip(&before.messages);
        let same = pairs.take_while(|(one, other)| one.place() == other.place());
        let same = same.count();
        if is_changed || same < before.messages.len() {
            return same;
        }
        let echo = echo_of(before, turn);
        let echo = (same..).zip(&echo).take_while(|(place, at)| place == *at);
        same + echo.count()
    }
}

/// As the endpoint counted, or as there are ids.
fn prompt_tokens(turn: &Turn) -> Option<u64> {
    let counted = turn.usage.map(|usage| usage.prompt_tokens);
    let ids = turn.prompt_token_ids.as_ref();
    counted.or_else(|| ids.map(|ids| ids.len() as u64))
}

fn completion_tokens(turn: &Turn) -> Option<u64> {
    let counted = turn.usage.map(|usage| usage.completion_tokens);
    let ids = turn.completion_token_ids.as_ref();
    counted.or_else(|| ids.map(|ids| ids.len() as u64))
}

fn mean_logprob(turn: &Turn) -> Option<f64> {
    let logprobs = turn.logprobs.as_ref().filter(|list| !list.is_empty())?;
    Some(logprobs.iter().sum::<f64>() / logprobs.len() as f64)
}

fn preview(message: &Message) -> String {
    let text = message.content.as_deref().unwrap_or_default();
    line_of(text, PREVIEW_CHARS)
}

/// What the endpoint said, without the object around it.
fn error_of(turn: &Turn) -> Option<String> {
    let error = turn.upstream_error.as_ref()?;
    let places = ["/message", "/error/message", "/detail", "/error"];
    let text = places
        .iter()
        .find_map(|place| error.pointer(place)?.as_str());
    let text = text.map_or_else(|| error.to_string(), str::to_owned);
    Some(line_of(&text, PREVIEW_CHARS))
}

fn dialect_name(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Chat => "chat",
        Dialect::Responses => "responses",
        Dialect::Anthropic => "anthropic",
        Dialect::Gemini => "gemini",
    }
}
