//! A result's model calls in the format of OpenEnv's original environment.

use std::path::Path;

use rollcage_model::finding::RolloutType;
use rollcage_model::record::{RolloutResult, RolloutTurn};
use rollcage_model::trace::{Interpretation, SCHEMA_VERSION, TrainingTrace};

use crate::result::proxy_turns;
use crate::store::{StoreError, interpret_at};

/// A result's model calls in OpenEnv's format, and the strict trace made from them. Every prompt is whole in both, so
/// they grow with the square of the conversation's length.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenEnvTrace {
    pub proxy_turns: Vec<RolloutTurn>,
    /// Only for a training rollout.
    pub training_trace: Option<TrainingTrace>,
}

impl OpenEnvTrace {
    /// Reads the record at the path stored in the result.
    pub fn read(result: &RolloutResult) -> Result<Self, StoreError> {
        let interpretation = interpret_at(result, Path::new(&result.record))?;
        Ok(OpenEnvTrace::new(&interpretation))
    }

    pub fn new(interpretation: &Interpretation) -> Self {
        let trace = || TrainingTrace {
            schema_version: SCHEMA_VERSION,
            turns: interpretation.training_turns().collect(),
        };
        OpenEnvTrace {
            proxy_turns: proxy_turns(interpretation).collect(),
            training_trace: (interpretation.rollout_type == RolloutType::Train).then(trace),
        }
    }
}
