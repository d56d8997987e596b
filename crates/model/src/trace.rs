//! Stored exchanges to what a trainer reads, and to what a reader must know about it.
//!
//! A hole is marked, not guessed: a turn whose tokens are not exact is left out of the training trace and told of.

mod finding;
mod survey;
mod training;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::exchange::Exchange;
use crate::graph::{Graph, Role};
use crate::turn::Turn;

pub use finding::{Code, Finding, Level};
pub use training::{SCHEMA_VERSION, TraceError, TrainingTrace, TrainingTurn};

/// How much of the model calls could be captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureLevel {
    /// Prompt ids, sampled ids and their logprobs.
    Tokens,
    Logprobs,
    Text,
}

/// What a rollout may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RolloutType {
    Train,
    Eval,
}

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
    /// Only for a rollout of type `Train`.
    pub training_trace: Option<TrainingTrace>,
    pub capture_level: CaptureLevel,
    pub rollout_type: RolloutType,
    pub findings: Vec<Finding>,
    pub usage: UsageTotals,
    /// Tokens with a loss mask of 1; 0 when there is no trace.
    pub n_trainable_tokens: u64,
}

/// A pure function of what was stored.
pub fn interpret(exchanges: &[Exchange]) -> Interpretation {
    let mut turns: Vec<Turn> = exchanges.iter().map(Turn::new).collect();
    turns.sort_by_key(|turn| turn.exchange);
    let graph = Graph::new(&turns);
    let capture_level = level_of(&turns);
    let findings = survey::findings(&turns, &graph, capture_level);
    let is_fatal = findings.iter().any(|finding| finding.level == Level::Fatal);
    let training_trace =
        (capture_level == CaptureLevel::Tokens && !is_fatal).then(|| build_trace(&turns, &graph));
    Interpretation {
        usage: total_usage(&turns),
        n_trainable_tokens: training_trace
            .as_ref()
            .map_or(0, TrainingTrace::n_trainable_tokens),
        rollout_type: if training_trace.is_some() {
            RolloutType::Train
        } else {
            RolloutType::Eval
        },
        turns,
        graph,
        training_trace,
        capture_level,
        findings,
    }
}

/// The best that any turn has: a turn with less is a hole, and told of as one.
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
        let count = |ids: &Option<Vec<u32>>| ids.as_ref().map_or(0, Vec::len) as u64;
        let counted = (
            count(&turn.prompt_token_ids),
            count(&turn.completion_token_ids),
            0,
        );
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

/// A conversation's turns stay together, since trainers chain them in this order; a turn that two paths share is
/// there once.
fn build_trace(turns: &[Turn], graph: &Graph) -> TrainingTrace {
    let mut is_taken = vec![false; graph.nodes.len()];
    let mut agents: Vec<&[usize]> = graph
        .sequences
        .iter()
        .filter(|sequence| sequence.role == Role::Agent)
        .map(|sequence| sequence.nodes.as_slice())
        .collect();
    agents.sort();
    let mut trace = TrainingTrace {
        schema_version: SCHEMA_VERSION,
        turns: Vec::new(),
    };
    for &at in agents.into_iter().flatten() {
        if !std::mem::replace(&mut is_taken[at], true) {
            let index = graph.nodes[at].turn;
            trace.turns.extend(training_turn(&turns[index], index));
        }
    }
    trace
}

/// `None` for a turn that is not exact.
fn training_turn(turn: &Turn, index: usize) -> Option<TrainingTurn> {
    if !turn.is_exact() {
        return None;
    }
    let prompt_token_ids = turn.prompt_token_ids.clone()?;
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
        metadata: object(json!({
            "node_id": turn.node_id(),
            "index": index,
            "model": turn.model,
            "n_tools": turn.n_tools,
            "harness_session_id": turn.harness_session_id,
            "parent_session_id": turn.parent_session_id,
            "sampling_params": turn.sampling,
            "requested_sampling_params": turn.requested_sampling,
        })),
    })
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests;
