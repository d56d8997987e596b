//! OpenEnv's training trace and the trace entries made from it, turn by turn.

use std::io::Write;

use serde::Serialize;
use serde_json::{Map, Value};

use super::{ExportError, Head, Meta, Stream, write_line};
use crate::trace::{Interpretation, SCHEMA_VERSION, TrainingTurn};

/// The only place that OpenEnv leaves for what else is known is each turn's metadata.
pub(super) fn write_trace(
    seen: &Interpretation,
    meta: &Meta,
    out: &mut (dyn Write + Send),
) -> Result<(), ExportError> {
    #[derive(Serialize)]
    struct Trace<T> {
        schema_version: u32,
        turns: T,
    }
    let trace = Trace {
        schema_version: SCHEMA_VERSION,
        turns: Stream(|| turns(seen, meta)),
    };
    write_line(&trace, out)
}

fn turns<'a>(seen: &'a Interpretation, meta: &'a Meta) -> impl Iterator<Item = TrainingTurn> + 'a {
    let head = Head::new(meta, seen).members();
    seen.training_turns().map(move |mut turn| {
        for (name, value) in &head {
            // What the call itself says goes first: its model may be another than the rollout's.
            turn.metadata
                .entry(name)
                .and_modify(|own| {
                    if own.is_null() {
                        own.clone_from(value);
                    }
                })
                .or_insert_with(|| value.clone());
        }
        turn
    })
}

/// One model call as TRL takes it: a training turn with its node's name among the metadata.
#[derive(Serialize)]
struct TraceEntry {
    request: Map<String, Value>,
    response: Map<String, Value>,
    prompt_token_ids: Vec<u32>,
    completion_token_ids: Vec<u32>,
    per_token_logps: Vec<f64>,
    loss_mask: Vec<u8>,
    /// Null when it was not scored, or when the score says nothing of the agent.
    reward: Option<f64>,
    metadata: Map<String, Value>,
}

impl TraceEntry {
    fn new(turn: TrainingTurn, reward: Option<f64>) -> Self {
        let mut metadata = turn.metadata;
        metadata.insert("node_id".to_owned(), turn.node_id.into());
        TraceEntry {
            request: turn.request,
            response: turn.response,
            prompt_token_ids: turn.prompt_token_ids,
            completion_token_ids: turn.completion_token_ids,
            per_token_logps: turn.per_token_logps,
            loss_mask: turn.loss_mask,
            reward,
            metadata,
        }
    }
}

pub(super) fn write_entries(
    seen: &Interpretation,
    meta: &Meta,
    out: &mut (dyn Write + Send),
) -> Result<(), ExportError> {
    #[derive(Serialize)]
    struct Entries<'a, T> {
        session_id: &'a str,
        entries: T,
    }
    let reward = meta.reward.filter(|_| meta.reward_valid);
    let entries = Entries {
        session_id: &meta.rollout_id,
        entries: Stream(|| turns(seen, meta).map(|turn| TraceEntry::new(turn, reward))),
    };
    write_line(&entries, out)
}
