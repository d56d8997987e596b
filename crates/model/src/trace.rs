//! Stored exchanges to what a trainer reads, and to what a reader must know about it.
//!
//! A hole is reported, not guessed at: a turn whose tokens are not exact is left out of the training trace, and a finding
//! says so.

mod change;
mod lacking;
mod listed;
mod model_name;
mod reply;
mod stored;
mod survey;
mod training;

use std::borrow::Borrow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::exchange::Exchange;
use crate::finding::{CaptureLevel, Finding, Level, RolloutType};
use crate::graph::{Graph, Role};
use crate::tokens::Tokens;
use crate::turn::{Interner, Turn};

pub use stored::{Facts, interpret_record};
pub use training::{SCHEMA_VERSION, TraceError, TrainingTrace, TrainingTurn};

/// Sums over all turns, failed ones too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageTotals {
    pub calls: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub cached_tokens: u64,
}

/// Everything that can be said of a rollout's exchanges.
#[derive(Clone, Debug, PartialEq)]
pub struct Interpretation {
    /// One for each exchange, in order.
    pub turns: Vec<Turn>,
    pub graph: Graph,
    /// Only for a rollout of type `Train`, and only as [`interpret`] gives it.
    pub training_trace: Option<TrainingTrace>,
    pub capture_level: CaptureLevel,
    pub rollout_type: RolloutType,
    pub findings: Vec<Finding>,
    pub usage: UsageTotals,
    /// Tokens with a loss mask of 1; 0 when there is no trace.
    pub n_trainable_tokens: u64,
}

/// Interprets stored exchanges. A pure function: the same exchanges always give the same result.
pub fn interpret<E: Borrow<Exchange>>(exchanges: impl IntoIterator<Item = E>) -> Interpretation {
    let mut seen = read(exchanges);
    if seen.rollout_type == RolloutType::Train {
        seen.training_trace = Some(TrainingTrace {
            schema_version: SCHEMA_VERSION,
            turns: seen.training_turns().collect(),
        });
    }
    seen
}

/// As [`interpret`], but without the training trace, so that what is held grows with what is new in each turn. Takes
/// exchanges one by one and needs none of them afterwards.
pub fn read<E: Borrow<Exchange>>(exchanges: impl IntoIterator<Item = E>) -> Interpretation {
    let mut interner = Interner::default();
    let turn = |exchange: E| Turn::read(exchange.borrow(), &mut interner);
    let mut turns: Vec<Turn> = exchanges.into_iter().map(turn).collect();
    turns.sort_by_key(|turn| turn.exchange);
    let graph = Graph::new(&turns);
    let capture_level = level_of(&turns);
    let findings = survey::findings(&turns, &graph, capture_level);
    let is_fatal = findings.iter().any(|finding| finding.level == Level::Fatal);
    let mut seen = Interpretation {
        usage: total_usage(&turns),
        n_trainable_tokens: 0,
        rollout_type: if capture_level == CaptureLevel::Tokens && !is_fatal {
            RolloutType::Train
        } else {
            RolloutType::Eval
        },
        turns,
        graph,
        training_trace: None,
        capture_level,
        findings,
    };
    let trainable = seen.training_nodes();
    let tokens = trainable
        .iter()
        .map(|(_, turn)| turn.n_trainable_tokens() as u64);
    seen.n_trainable_tokens = tokens.sum();
    seen
}

impl Interpretation {
    /// The turns of the training trace, each made when it is asked for. A rollout of type `Eval` has none.
    pub fn training_turns(&self) -> impl Iterator<Item = TrainingTurn> + '_ {
        let nodes = self.training_nodes().into_iter();
        nodes.filter_map(|(index, turn)| training_turn(turn, index))
    }

    /// The indices of the turns that are trained, in the order of the training trace.
    pub fn trained(&self) -> impl Iterator<Item = usize> + '_ {
        self.training_nodes().into_iter().map(|(index, _)| index)
    }

    /// A conversation's turns stay together, since trainers chain them in this order; a turn that two paths share is
    /// there once, one that is not exact is not.
    fn training_nodes(&self) -> Vec<(usize, &Turn)> {
        if self.rollout_type == RolloutType::Eval {
            return Vec::new();
        }
        let agents = self.graph.sequences.iter();
        let agents = agents.filter(|sequence| sequence.role == Role::Agent);
        let mut agents: Vec<&[usize]> = agents.map(|sequence| sequence.nodes.as_slice()).collect();
        agents.sort();
        let mut is_taken = vec![false; self.graph.nodes.len()];
        let mut nodes = Vec::new();
        for &at in agents.into_iter().flatten() {
            let index = self.graph.nodes[at].turn;
            if !std::mem::replace(&mut is_taken[at], true) && self.turns[index].is_exact() {
                nodes.push((index, &self.turns[index]));
            }
        }
        nodes
    }
}

/// The best that any turn has: a turn with less is a hole, and reported as one.
fn level_of(turns: &[Turn]) -> CaptureLevel {
    let live = || turns.iter().filter(|turn| !turn.is_failed());
    let has_ids =
        |turn: &Turn| turn.prompt_token_ids.is_some() && turn.completion_token_ids.is_some();
    if live().any(|turn| has_ids(turn) && !turn.tokens.is_empty()) {
        CaptureLevel::Tokens
    } else if live().any(|turn| !turn.tokens.is_empty()) {
        CaptureLevel::Logprobs
    } else {
        CaptureLevel::Text
    }
}

fn total_usage(turns: &[Turn]) -> UsageTotals {
    let mut totals = UsageTotals::default();
    for turn in turns {
        let n_prompt = turn.prompt_token_ids.as_ref().map_or(0, Tokens::len);
        let n_sampled = turn.completion_token_ids.as_ref().map_or(0, Vec::len);
        let counted = (n_prompt as u64, n_sampled as u64, 0);
        let (prompt, completion, cached) = turn.usage.map_or(counted, |usage| {
            (
                usage.prompt_tokens,
                usage.completion_tokens,
                usage.cached_tokens,
            )
        });
        totals.calls += 1;
        totals.prompt_tokens = totals.prompt_tokens.saturating_add(prompt);
        totals.completion_tokens = totals.completion_tokens.saturating_add(completion);
        totals.cached_tokens = totals.cached_tokens.saturating_add(cached);
    }
    totals
}

/// `None` for a turn that is not exact.
fn training_turn(turn: &Turn, index: usize) -> Option<TrainingTurn> {
    if !turn.is_exact() {
        return None;
    }
    let prompt_token_ids = turn.prompt_token_ids.as_ref()?.to_vec();
    let completion_token_ids = turn.completion_token_ids.clone()?;
    let per_token_logps = turn.logprobs.clone()?;
    let message = turn.message.as_ref()?.to_value();
    let mut loss_mask = vec![0; prompt_token_ids.len()];
    loss_mask.resize(prompt_token_ids.len() + completion_token_ids.len(), 1);
    Some(TrainingTurn {
        node_id: turn.node_id(),
        prompt_token_ids,
        completion_token_ids,
        per_token_logps,
        loss_mask,
        request: object(json!({ "messages": turn.messages, "tools": turn.tools })),
        response: object(
            json!({ "choices": [{ "message": message, "finish_reason": turn.finish_reason }] }),
        ),
        metadata: metadata_of(turn, index),
    })
}

fn metadata_of(turn: &Turn, index: usize) -> Map<String, Value> {
    let mut metadata = object(json!({
            "node_id": turn.node_id(),
            "index": index,
            "model": turn.model,
            "n_tools": turn.n_tools,
            "harness_session_id": turn.harness_session_id,
            "parent_session_id": turn.parent_session_id,
            "sampling_params": turn.sampling,
            "requested_sampling_params": turn.requested_sampling,
    }));
    if let Some(mode) = turn.logprobs_of {
        metadata.insert("logprobs_of".to_owned(), mode.as_str().into());
    }
    metadata
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests;
