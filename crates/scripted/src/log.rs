//! A log of the scripted endpoint's answers and request times, for benchmarks and for tests that compare a trace with
//! it token by token.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::drill::PlayedPart;

/// One answer, with its ids and logprobs even if the request did not ask for them.
#[derive(Clone, Debug, PartialEq)]
pub struct ServedAnswer {
    /// When the request's headers had arrived.
    pub arrived: Instant,
    pub key: String,
    /// The request's body.
    pub request: String,
    pub prompt_ids: Vec<u32>,
    pub sampled_ids: Vec<u32>,
    /// One per sampled id.
    pub logprobs: Vec<f64>,
    pub finish_reason: &'static str,
    pub is_stream: bool,
    /// The part of the drill, if one is played.
    pub played: Option<PlayedPart>,
}

/// The first answers, in order, up to a limit.
#[derive(Debug)]
pub struct Log {
    entries_max: usize,
    entries: Mutex<Vec<ServedAnswer>>,
}

impl Log {
    pub fn new(entries_max: usize) -> Arc<Self> {
        Arc::new(Log {
            entries_max,
            entries: Mutex::default(),
        })
    }

    /// All entries so far, oldest first.
    pub fn served(&self) -> Vec<ServedAnswer> {
        self.entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Removes and returns all entries.
    pub fn take(&self) -> Vec<ServedAnswer> {
        std::mem::take(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ignores answers beyond the limit.
    pub(super) fn push(&self, served: ServedAnswer) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() < self.entries_max {
            entries.push(served);
        }
    }
}
