//! What the scripted endpoint sent and when it was asked, kept for tests that compare a trace with it token by token and
//! for benchmarks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::drill::Played;

/// One answer. Ids and logprobs are those of the answer whether or not the request asked to see them.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// When the request's head was there.
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
    /// What of the drill it was, if that is played.
    pub played: Option<Played>,
}

/// The first answers, in order, up to a limit.
#[derive(Debug)]
pub struct Log {
    entries_max: usize,
    entries: Mutex<Vec<Served>>,
}

impl Log {
    pub fn new(entries_max: usize) -> Arc<Self> {
        Arc::new(Log {
            entries_max,
            entries: Mutex::default(),
        })
    }

    /// Everything kept so far, oldest first.
    pub fn served(&self) -> Vec<Served> {
        self.entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The same, and forgets it.
    pub fn take(&self) -> Vec<Served> {
        std::mem::take(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Answers after the limit are not kept.
    pub(super) fn push(&self, served: Served) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() < self.entries_max {
            entries.push(served);
        }
    }
}
