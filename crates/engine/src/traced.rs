//! A result's calls in the form of OpenEnv's original.

use std::path::Path;

use rollcage_model::finding::RolloutType;
use rollcage_model::record::{RolloutResult, RolloutTurn};
use rollcage_model::trace::{Interpretation, SCHEMA_VERSION, TrainingTrace};

use crate::result::proxy_turns;
use crate::store::{StoreError, of_result};

/// A result's calls as OpenEnv's original has them, and the strict trace made of them: every prompt whole, so that both
/// grow with the square of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Traced {
    pub proxy_turns: Vec<RolloutTurn>,
    /// Only of a rollout that is for training.
    pub training_trace: Option<TrainingTrace>,
}

impl Traced {
    /// From where the result says that its record lies.
    pub fn read(result: &RolloutResult) -> Result<Self, StoreError> {
        let seen = of_result(result, Path::new(&result.record))?;
        Ok(Traced::new(&seen))
    }

    pub fn new(seen: &Interpretation) -> Self {
        let trace = || TrainingTrace {
            schema_version: SCHEMA_VERSION,
            turns: seen.training_turns().collect(),
        };
        Traced {
            proxy_turns: proxy_turns(seen).collect(),
            training_trace: (seen.rollout_type == RolloutType::Train).then(trace),
        }
    }
}
