//! Counts over all rollouts of a process, for whoever watches it from outside.

use std::sync::{Mutex, PoisonError};

use rollcage_model::ending::Ended;
use rollcage_model::event::{Phase, What};

/// Upper bounds of the histogram of rollout times, in seconds.
pub const SECONDS: [f64; 12] = [
    0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
];

/// What was counted since the process started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Numbers {
    pub ended: Vec<(Ended, u64)>,
    pub calls: u64,
    pub failed_calls: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub sandbox_starts: u64,
    /// Rollouts that took at most as long as each of [`SECONDS`], not cumulated; the last is all that took longer.
    pub durations: [u64; SECONDS.len() + 1],
    pub seconds: f64,
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    numbers: Mutex<Numbers>,
}

impl Tally {
    pub(crate) fn count(&self, what: &What) {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        match what {
            What::Queued
            | What::CommandStarted { .. }
            | What::Command { .. }
            | What::AgentExited { .. }
            | What::Collected { .. } => {}
            What::Entered { phase } => {
                numbers.sandbox_starts += u64::from(*phase == Phase::Sandbox);
            }
            What::Call {
                status,
                prompt_tokens,
                completion_tokens,
                ..
            } => {
                numbers.calls += 1;
                numbers.failed_calls += u64::from(status.is_none_or(|status| status >= 400));
                numbers.prompt_tokens += prompt_tokens.unwrap_or_default();
                numbers.completion_tokens += completion_tokens.unwrap_or_default();
            }
            What::Finished { ended, wall_s, .. } => {
                match numbers.ended.iter_mut().find(|(known, _)| known == ended) {
                    Some((_, count)) => *count += 1,
                    None => numbers.ended.push((*ended, 1)),
                }
                let bucket = SECONDS.partition_point(|bound| bound < wall_s);
                numbers.durations[bucket] += 1;
                numbers.seconds += wall_s;
            }
        }
    }

    pub(crate) fn numbers(&self) -> Numbers {
        self.numbers
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
        let tally = Tally::default();
        for (ended, wall_s) in [
            (Ended::Completed, 0.5),
            (Ended::Completed, 0.6),
            (Ended::Cancelled, 99999.0),
        ] {
            tally.count(&What::Finished {
                ended,
                reward: None,
                wall_s,
                error: None,
            });
        }
        let numbers = tally.numbers();
        assert_eq!(
            numbers.ended,
            [(Ended::Completed, 2), (Ended::Cancelled, 1)]
        );
        assert_eq!(
            (
                numbers.durations[0],
                numbers.durations[1],
                numbers.durations[12]
            ),
            (1, 1, 1)
        );
    }
}
