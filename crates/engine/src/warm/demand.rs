//! How many warm sandboxes of one kind are worth having.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::limits::WarmLimits;

/// Rollouts that came within this time are expected to come again.
const RECENT: Duration = Duration::from_secs(60);
/// More than any limit on warm sandboxes.
const NOTED_MAX: usize = 256;

/// When rollouts of one kind came.
#[derive(Debug, Default)]
pub(super) struct Demand {
    times: VecDeque<Instant>,
}

impl Demand {
    pub(super) fn note(&mut self, now: Instant) {
        self.times.push_back(now);
        if self.times.len() > NOTED_MAX {
            self.times.pop_front();
        }
    }

    /// When the latest came.
    pub(super) fn last(&self) -> Option<Instant> {
        self.times.back().copied()
    }

    /// Rollouts that wait may all be of this kind; besides, as many as came lately, and one for as long as warm sandboxes
    /// linger.
    pub(super) fn wanted(&self, now: Instant, waiting: usize, limits: &WarmLimits) -> usize {
        let since = |time: &Instant| now.saturating_duration_since(*time);
        let lingering = match self.times.back() {
            Some(last) if since(last) < limits.linger => {
                let recent = self.times.iter().filter(|time| since(time) < RECENT);
                recent.count().max(1)
            }
            _ => 0,
        };
        lingering.max(waiting).min(limits.count_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: WarmLimits = WarmLimits {
        count_max: 4,
        linger: Duration::from_secs(300),
    };

    #[test]
    fn what_came_lately_is_expected_again() {
        let mut demand = Demand::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(demand.wanted(start, 0, &LIMITS), 0);
        for _ in 0..3 {
            demand.note(start);
        }
        assert_eq!(demand.wanted(after(1), 0, &LIMITS), 3);
        assert_eq!(demand.wanted(after(1), 9, &LIMITS), 4);
        assert_eq!(demand.wanted(after(61), 0, &LIMITS), 1);
        assert_eq!(demand.wanted(after(301), 0, &LIMITS), 0);
    }

    #[test]
    fn a_single_command_keeps_only_what_its_waiting_rollouts_need() {
        let limits = WarmLimits {
            linger: Duration::ZERO,
            ..LIMITS
        };
        let mut demand = Demand::default();
        let now = Instant::now();
        demand.note(now);
        assert_eq!(demand.wanted(now, 0, &limits), 0);
        assert_eq!(demand.wanted(now, 2, &limits), 2);
    }
}
