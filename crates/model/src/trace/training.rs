//! OpenEnv's training contract: what a trainer reads, and its rules.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

/// The only version there is.
pub const SCHEMA_VERSION: u32 = 1;

/// Turns in the order a trainer chains them: each conversation's turns one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrainingTrace {
    pub schema_version: u32,
    pub turns: Vec<TrainingTurn>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrainingTurn {
    pub node_id: String,
    /// The engine's own tokenisation, never ours.
    pub prompt_token_ids: Vec<u32>,
    pub completion_token_ids: Vec<u32>,
    /// One for each completion token.
    pub per_token_logps: Vec<f64>,
    /// Over prompt and completion; 1 where the token was sampled and may be trained on.
    pub loss_mask: Vec<u8>,
    #[serde(default)]
    pub request: Map<String, Value>,
    #[serde(default)]
    pub response: Map<String, Value>,
    #[serde(default)]
    pub metadata: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TraceError {
    #[error("the trace has schema version {version}, not {SCHEMA_VERSION}")]
    Version { version: u32 },
    #[error("turn {node_id:?}: {rule}")]
    Turn { node_id: String, rule: &'static str },
}

impl TrainingTrace {
    /// Checks the rules that the types do not.
    pub fn check(&self) -> Result<(), TraceError> {
        if self.schema_version != SCHEMA_VERSION {
            return Err(TraceError::Version {
                version: self.schema_version,
            });
        }
        let mut seen = std::collections::HashSet::new();
        for turn in &self.turns {
            let broken = |rule| TraceError::Turn {
                node_id: turn.node_id.clone(),
                rule,
            };
            if turn.node_id.is_empty() || !seen.insert(turn.node_id.as_str()) {
                return Err(broken("the node id is empty or not the only one"));
            }
            turn.check().map_err(broken)?;
        }
        Ok(())
    }

    pub fn n_trainable_tokens(&self) -> u64 {
        let masks = self.turns.iter().flat_map(|turn| &turn.loss_mask);
        masks.map(|&mask| u64::from(mask)).sum()
    }
}

impl TrainingTurn {
    fn check(&self) -> Result<(), &'static str> {
        let n_prompt = self.prompt_token_ids.len();
        if n_prompt == 0 {
            return Err("there are no prompt token ids");
        }
        if self.per_token_logps.len() != self.completion_token_ids.len() {
            return Err("there is not one logprob for each completion token");
        }
        if !self
            .per_token_logps
            .iter()
            .all(|logp| logp.is_finite() && *logp <= 0.0)
        {
            return Err("a logprob is not finite or above 0");
        }
        if self.loss_mask.len() != n_prompt + self.completion_token_ids.len() {
            return Err("the loss mask is not as long as prompt and completion");
        }
        if self.loss_mask.iter().any(|mask| *mask > 1) {
            return Err("the loss mask has other values than 0 and 1");
        }
        if self.loss_mask[..n_prompt].contains(&1) {
            return Err("the loss mask trains the prompt");
        }
        Ok(())
    }
}
