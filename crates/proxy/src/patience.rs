//! How long failed calls are retried, and how much of the agent's time was lost to outages of the endpoint.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use rollcage_model::exchange::Attempt;

use crate::calls::Problem;

const FIRST_DELAY: Duration = Duration::from_millis(500);
/// Short enough that calls resume soon after a server has restarted.
const DOUBLED_DELAY_MAX: Duration = Duration::from_secs(10);
/// Caps the delay that an endpoint advises.
const ADVISED_DELAY_MAX: Duration = Duration::from_secs(30);

/// The time during which calls of a session waited for an endpoint that had failed. Overlapping waits count once.
#[derive(Debug, Default)]
pub(crate) struct Outages {
    state: Mutex<OutageState>,
}

#[derive(Debug, Default)]
struct OutageState {
    open: usize,
    since: Option<Instant>,
    total: Duration,
}

impl Outages {
    pub(crate) fn begin(self: &Arc<Self>) -> Outage {
        let mut state = self.state();
        state.open += 1;
        state.since.get_or_insert_with(Instant::now);
        Outage(Arc::clone(self))
    }

    /// The total time, including an outage in progress.
    pub(crate) fn total(&self) -> Duration {
        let state = self.state();
        state.total + state.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, OutageState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One call's wait, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Outage(Arc<Outages>);

impl Drop for Outage {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.open -= 1;
        if state.open == 0
            && let Some(since) = state.since.take()
        {
            state.total += since.elapsed();
        }
    }
}

/// How long an endpoint has sent nothing in a call. Time in which the agent does not read is not counted.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    state: Mutex<(Option<Instant>, Duration)>,
}

impl Silence {
    pub(crate) fn begin(&self) {
        self.state().0 = Some(Instant::now());
    }

    pub(crate) fn end(&self) {
        let mut state = self.state();
        if let Some(since) = state.0.take() {
            state.1 = state.1.max(since.elapsed());
        }
    }

    /// The start of the current silence; `None` while we are not waiting for the endpoint.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.state().0
    }

    pub(crate) fn longest(&self) -> Duration {
        self.state().1
    }

    fn state(&self) -> std::sync::MutexGuard<'_, (Option<Instant>, Duration)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The failed tries of a call so far.
#[derive(Debug, Default)]
pub(crate) struct RetryState {
    /// The failed tries, for the record.
    pub(crate) attempts: Vec<Attempt>,
    /// Why the last try failed, while another one is still to come.
    pub(crate) last_problem: Option<Problem>,
    pub(crate) silence: Arc<Silence>,
    /// When retrying began.
    since: Option<Instant>,
    tries: u32,
}

impl RetryState {
    /// The delay before the next try; `None` when `patience`, the time for retries, is used up.
    pub(crate) fn delay(
        &mut self,
        patience: Duration,
        advised: Option<Duration>,
    ) -> Option<Duration> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let left = patience.saturating_sub(since.elapsed());
        if left.is_zero() {
            return None;
        }
        let doubled = FIRST_DELAY * 2_u32.saturating_pow(self.tries.min(16));
        self.tries += 1;
        let delay = match advised {
            Some(advised) => advised.min(ADVISED_DELAY_MAX),
            None => doubled.min(DOUBLED_DELAY_MAX),
        };
        // The last try is made exactly when patience ends.
        Some(delay.min(left))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn delays_grow_until_patience_ends() {
        let mut retry = RetryState::default();
        let patience = Duration::from_secs(180);
        let delays: Vec<f64> = (0..7)
            .map(|_| retry.delay(patience, None).unwrap().as_secs_f64())
            .collect();
        assert_eq!(delays, [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]);
        let advised = retry.delay(patience, Some(Duration::from_secs(99)));
        assert_eq!(advised, Some(ADVISED_DELAY_MAX));
        advance(patience).await;
        assert_eq!(retry.delay(patience, None), None);
        assert_eq!(RetryState::default().delay(Duration::ZERO, None), None);
        let short = Duration::from_millis(10);
        assert_eq!(RetryState::default().delay(short, None), Some(short));
    }

    #[tokio::test(start_paused = true)]
    async fn outages_at_the_same_time_count_once() {
        let second = Duration::from_secs(1);
        let outages = Arc::new(Outages::default());
        assert_eq!(outages.total(), Duration::ZERO);
        let (one, other) = (outages.begin(), outages.begin());
        advance(second).await;
        drop(one);
        assert_eq!(outages.total(), second);
        advance(second).await;
        drop(other);
        assert_eq!(outages.total(), 2 * second);
        advance(second).await;
        assert_eq!(outages.total(), 2 * second, "no outage is in progress");
    }

    #[tokio::test(start_paused = true)]
    async fn only_time_spent_waiting_for_the_endpoint_is_silence() {
        let second = Duration::from_secs(1);
        let silence = Silence::default();
        assert_eq!(silence.since(), None);
        silence.begin();
        assert_eq!(silence.since(), Some(Instant::now()));
        advance(second).await;
        silence.end();
        assert_eq!(silence.since(), None);
        advance(second).await;
        silence.end();
        assert_eq!(silence.longest(), second);
    }
}
