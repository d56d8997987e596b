//! How long calls bear with an endpoint that is out of order, and how much of the agent's time that was.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use rollcage_model::exchange::Attempt;

use crate::calls::Problem;

const FIRST_DELAY: Duration = Duration::from_millis(500);
/// A restarted server should not wait long for its calls.
const DOUBLED_DELAY_MAX: Duration = Duration::from_secs(10);
/// Of what an endpoint advises.
const ADVISED_DELAY_MAX: Duration = Duration::from_secs(30);

/// The times during which calls of a session waited for an endpoint that had failed them. Calls at the same time wait
/// for the same endpoint, so their times count once.
#[derive(Debug, Default)]
pub(crate) struct Outages {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
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

    /// All of them together, with what is under way.
    pub(crate) fn total(&self) -> Duration {
        let state = self.state();
        state.total + state.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One call's wait. It ends when this is dropped.
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

/// Since when an endpoint has said nothing in a call. Time in which the agent does not read is not counted.
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

    /// `None` while the endpoint is not waited for.
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

/// What went wrong with a call so far.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    /// The tries that failed, for the record.
    pub(crate) attempts: Vec<Attempt>,
    /// What the last try failed of, while another is to come.
    pub(crate) failing: Option<Problem>,
    pub(crate) silence: Arc<Silence>,
    /// Since when it is tried again.
    since: Option<Instant>,
    tries: u32,
}

impl Trouble {
    /// How long to wait before the next try; `None` when patience is used up.
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
        // The last try is made when patience ends.
        Some(delay.min(left))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn delays_grow_until_patience_ends() {
        let mut trouble = Trouble::default();
        let patience = Duration::from_secs(180);
        let delays: Vec<f64> = (0..7)
            .map(|_| trouble.delay(patience, None).unwrap().as_secs_f64())
            .collect();
        assert_eq!(delays, [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]);
        let advised = trouble.delay(patience, Some(Duration::from_secs(99)));
        assert_eq!(advised, Some(ADVISED_DELAY_MAX));
        advance(patience).await;
        assert_eq!(trouble.delay(patience, None), None);
        assert_eq!(Trouble::default().delay(Duration::ZERO, None), None);
        let short = Duration::from_millis(10);
        assert_eq!(Trouble::default().delay(short, None), Some(short));
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
        assert_eq!(outages.total(), 2 * second, "nothing is out of order");
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
