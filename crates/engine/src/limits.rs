//! How much a process takes on, and for how long it waits for others.

use std::time::Duration;

/// How much may run and wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rollouts that run at once.
    pub slots: usize,
    /// Rollouts that wait for a slot; more are refused.
    pub queue_max: usize,
    /// Slots that one owner may hold at once.
    pub owner_slots: usize,
    /// How long the sandbox of an aborted rollout waits for whoever wants its grade; zero is not at all.
    pub keep_aborted: Duration,
}

/// Unless somebody says otherwise.
pub const KEEP_ABORTED: Duration = Duration::from_secs(60);

impl Default for Limits {
    /// A slot for every core, all of which one owner may hold.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Limits {
            slots: cores,
            queue_max: 1000,
            owner_slots: cores,
            keep_aborted: KEEP_ABORTED,
        }
    }
}
