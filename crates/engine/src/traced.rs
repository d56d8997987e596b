//! What was captured of a rollout, read from its record when somebody asks for it. Results hold no tokens.

use std::io;
use std::path::Path;

use rollcage_model::exchange;
use rollcage_model::record::{RolloutResult, RolloutTurn};
use rollcage_model::trace::{self, Interpretation, RolloutType, SCHEMA_VERSION, TrainingTrace};

use crate::result::{BLACK_BOX, proxy_turns};
use crate::store::{Store, StoreError};

/// The file of a record that holds what was asked and answered.
pub const EXCHANGES_FILE: &str = "exchanges.rec";

/// Reads the exchanges of a record; a rollout that ended before its proxy opened has none.
pub fn read(record: &Path) -> Result<Interpretation, StoreError> {
    let path = record.join(EXCHANGES_FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(source) => return Err(StoreError::Read { path, source }),
    };
    Ok(trace::read(exchange::Reader::new(&bytes)))
}

impl Store {
    /// What a result says of its calls, in full. A rollout whose calls are no part of its result has none.
    pub fn interpretation(&self, result: &RolloutResult) -> Result<Interpretation, StoreError> {
        of(result, &self.directory(result.rollout_id))
    }
}

fn of(result: &RolloutResult, record: &Path) -> Result<Interpretation, StoreError> {
    if result.mode == BLACK_BOX {
        return Ok(trace::read(Vec::<exchange::Exchange>::new()));
    }
    read(record)
}

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
        let seen = of(result, Path::new(&result.record))?;
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
