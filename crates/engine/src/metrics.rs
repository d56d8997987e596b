//! Counters over all rollouts of a process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rollcage_model::ending::Ended;
use rollcage_model::event::{Phase, What};
use rollcage_model::live::ReplyKind;

/// Upper bounds of the histogram of rollout durations, in seconds.
pub const DURATION_BUCKETS_S: [f64; 12] = [
    0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
];

/// Counters since the process started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    pub ended: Vec<(Ended, u64)>,
    pub calls: u64,
    pub failed_calls: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub sandbox_starts: u64,
    /// Rollouts per duration bucket, not cumulative; the last bucket counts those above all of [`DURATION_BUCKETS_S`].
    pub durations: [u64; DURATION_BUCKETS_S.len() + 1],
    pub seconds: f64,
    /// Turns of live agents by their end: `final`, or the code of the error.
    pub live_turns: Vec<(&'static str, u64)>,
}

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    counters: Mutex<Counters>,
    /// Events that were published.
    events: AtomicU64,
}

impl Metrics {
    pub(crate) fn count(&self, what: &What) {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        match what {
            What::Queued
            | What::CommandStarted { .. }
            | What::Command { .. }
            | What::AgentExited { .. }
            | What::Session { .. }
            | What::TurnStarted { .. }
            | What::Reply { .. }
            | What::Idle { .. }
            | What::Collected { .. } => {}
            What::Entered { phase } => {
                counters.sandbox_starts += u64::from(*phase == Phase::Sandbox);
            }
            What::Call {
                status,
                prompt_tokens,
                completion_tokens,
                ..
            } => {
                counters.calls += 1;
                counters.failed_calls += u64::from(status.is_none_or(|status| status >= 400));
                counters.prompt_tokens += prompt_tokens.unwrap_or_default();
                counters.completion_tokens += completion_tokens.unwrap_or_default();
            }
            What::Finished { ended, wall_s, .. } => {
                match counters.ended.iter_mut().find(|(known, _)| known == ended) {
                    Some((_, count)) => *count += 1,
                    None => counters.ended.push((*ended, 1)),
                }
                let bucket = DURATION_BUCKETS_S.partition_point(|bound| bound < wall_s);
                counters.durations[bucket] += 1;
                counters.seconds += wall_s;
            }
        }
    }

    /// Counts an event, once readers can see it.
    pub(crate) fn published(&self) {
        self.events.fetch_add(1, Ordering::Release);
    }

    /// How many events were published. Who sees a number sees the events that it counts.
    pub(crate) fn events(&self) -> u64 {
        self.events.load(Ordering::Acquire)
    }

    /// Counts a turn of a live agent by its last reply.
    pub(crate) fn count_turn(&self, end: &ReplyKind) {
        let end = match end {
            ReplyKind::Error { code, .. } => code.as_str(),
            _ => "final",
        };
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let turns = &mut counters.live_turns;
        match turns.iter_mut().find(|(known, _)| *known == end) {
            Some((_, count)) => *count += 1,
            None => turns.push((end, 1)),
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollouts_are_counted_by_their_end_and_time() {
        let metrics = Metrics::default();
        for (ended, wall_s) in [
            (Ended::Completed, 0.5),
            (Ended::Completed, 0.6),
            (Ended::Cancelled, 99999.0),
        ] {
            metrics.count(&What::Finished {
                ended,
                reward: None,
                wall_s,
                error: None,
            });
        }
        let counters = metrics.counters();
        assert_eq!(
            counters.ended,
            [(Ended::Completed, 2), (Ended::Cancelled, 1)]
        );
        assert_eq!(
            (
                counters.durations[0],
                counters.durations[1],
                counters.durations[12]
            ),
            (1, 1, 1)
        );
    }
}
