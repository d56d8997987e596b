//! Limits on what one process runs, queues and keeps.

use std::time::Duration;

/// Limits of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Rollouts that run concurrently.
    pub slots: usize,
    /// Rollouts that wait for a slot; more are refused.
    pub queue_max: usize,
    /// Slots that one owner may hold concurrently.
    pub owner_slots: usize,
    /// How long the sandbox of an aborted rollout is kept for grading; zero means not at all.
    pub keep_aborted: Duration,
    pub warm: WarmLimits,
    /// Live agents that one owner may have.
    pub live_per_owner: usize,
    /// Live agents of all owners.
    pub live_max: usize,
    /// A live agent's sandbox that is older is saved after a turn, and the next turn goes on in a new one.
    pub live_age_max: Duration,
}

/// Limits on sandboxes in which an agent's server stands ready for the next rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarmLimits {
    /// How many there may be; none at 0.
    pub count_max: usize,
    /// How long one is kept after the last rollout that wanted its kind; zero keeps them only for rollouts that wait.
    pub linger: Duration,
}

const LIVE_AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// The default of [`EngineLimits::keep_aborted`].
pub const KEEP_ABORTED: Duration = Duration::from_secs(60);
/// The default of [`EngineLimits::live_per_owner`].
const LIVE_PER_OWNER: usize = 8;
/// The default of [`EngineLimits::live_max`].
const LIVE_MAX: usize = 64;

impl Default for EngineLimits {
    /// One slot per core, all of which one owner may hold.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        EngineLimits {
            slots: cores,
            queue_max: 1000,
            owner_slots: cores,
            keep_aborted: KEEP_ABORTED,
            warm: WarmLimits {
                count_max: cores,
                linger: Duration::ZERO,
            },
            live_per_owner: LIVE_PER_OWNER,
            live_max: LIVE_MAX,
            live_age_max: LIVE_AGE_MAX,
        }
    }
}
