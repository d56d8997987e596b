//! What one rollout tells of itself: its last events, numbered, and where it stands. Readers come and go; each reads
//! from the number it knows and waits for more.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, watch};

use rollcage_model::event::{Event, Phase, What};
use rollcage_model::id::RolloutId;

use crate::tally::Tally;

/// Events kept per rollout: a few for each model call, and agents make hundreds. The oldest go first, which shows as a
/// gap in the numbers.
const EVENTS_MAX: usize = 4096;

/// One event and its number, which counts from 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    pub seq: u64,
    pub event: Event,
}

/// Where a rollout stands, as its events say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// `None` while it waits.
    pub phase: Option<Phase>,
    pub calls: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// Unix seconds.
    pub started_at: Option<f64>,
    /// Since when the sandbox of an aborted rollout is kept.
    pub kept_at: Option<f64>,
    pub finished_at: Option<f64>,
}

/// The events of one rollout.
#[derive(Debug)]
pub struct Feed {
    rollout: RolloutId,
    seen: Mutex<Seen>,
    /// The number of the last event.
    last: watch::Sender<u64>,
    tally: Arc<Tally>,
    /// Hears the events of all rollouts in one order. Unbounded because a rollout says a few things per model call, and
    /// whoever listens only prints.
    listener: Option<mpsc::UnboundedSender<Event>>,
}

#[derive(Debug, Default)]
struct Seen {
    events: VecDeque<Event>,
    /// How many were dropped from the front.
    dropped: u64,
    standing: Standing,
}

impl Feed {
    pub(crate) fn new(
        rollout: RolloutId,
        tally: Arc<Tally>,
        listener: Option<mpsc::UnboundedSender<Event>>,
    ) -> Self {
        Feed {
            rollout,
            seen: Mutex::default(),
            last: watch::Sender::new(0),
            tally,
            listener,
        }
    }

    pub(crate) fn rollout(&self) -> RolloutId {
        self.rollout
    }

    pub(crate) fn tell(&self, what: What) {
        log(self.rollout, &what);
        self.tally.count(&what);
        let event = Event {
            rollout: self.rollout,
            at: rollcage_proxy::clock::now(),
            what,
        };
        let mut seen = self.seen();
        seen.standing.note(&event);
        if let Some(listener) = &self.listener {
            // Under the lock, so that the listener hears a rollout's events in their order. Nobody listening is no
            // reason to stop.
            let _ = listener.send(event.clone());
        }
        seen.events.push_back(event);
        if seen.events.len() > EVENTS_MAX {
            seen.events.pop_front();
            seen.dropped += 1;
        }
        let last = seen.dropped + seen.events.len() as u64;
        drop(seen);
        self.last.send_replace(last);
    }

    /// The kept events with a number above `seq`.
    pub fn after(&self, seq: u64) -> Vec<Told> {
        let seen = self.seen();
        let skipped = usize::try_from(seq.saturating_sub(seen.dropped)).unwrap_or(usize::MAX);
        let numbered = seen.events.iter().enumerate().skip(skipped);
        numbered
            .map(|(index, event)| Told {
                seq: seen.dropped + index as u64 + 1,
                event: event.clone(),
            })
            .collect()
    }

    /// Returns at once when there is an event above `seq`, else when one comes.
    pub async fn wait_after(&self, seq: u64) {
        // The sender lives as long as we do, so waiting cannot fail.
        let _ = self.last.subscribe().wait_for(|last| *last > seq).await;
    }

    pub fn is_finished(&self) -> bool {
        self.seen().standing.finished_at.is_some()
    }

    /// Returns once the rollout has told its end.
    pub async fn finished(&self) {
        let _ = self.last.subscribe().wait_for(|_| self.is_finished()).await;
    }

    pub fn standing(&self) -> Standing {
        self.seen().standing.clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.seen().events.len()
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Standing {
    fn note(&mut self, event: &Event) {
        match &event.what {
            What::Queued
            | What::CommandStarted { .. }
            | What::Command { .. }
            | What::AgentExited { .. }
            | What::Collected { .. } => {}
            What::Entered { phase } => {
                self.phase = Some(*phase);
                if *phase == Phase::Kept {
                    self.kept_at.get_or_insert(event.at);
                }
                self.started_at.get_or_insert(event.at);
            }
            What::Call {
                prompt_tokens,
                completion_tokens,
                ..
            } => {
                self.calls += 1;
                self.prompt_tokens += prompt_tokens.unwrap_or_default();
                self.completion_tokens += completion_tokens.unwrap_or_default();
            }
            What::Finished { .. } => self.finished_at = Some(event.at),
        }
    }
}

/// A rollout's milestones in the log. Prompts, answers and commands stay out of it.
fn log(rollout: RolloutId, what: &What) {
    match what {
        What::Queued => tracing::info!(%rollout, "queued"),
        What::Entered { phase } => tracing::info!(%rollout, phase = phase.as_str(), "entered"),
        What::CommandStarted { phase, number, .. } => {
            tracing::debug!(%rollout, phase = phase.as_str(), number, "command started");
        }
        What::AgentExited { exit_code } => tracing::info!(%rollout, exit_code, "agent exited"),
        What::Collected { files, files_extra } => {
            tracing::debug!(%rollout, files = files.len(), files_extra = files_extra.len(), "collected");
        }
        What::Command {
            phase,
            number,
            exit_code,
            ..
        } => tracing::debug!(%rollout, phase = phase.as_str(), number, exit_code, "command ended"),
        What::Call {
            exchange, status, ..
        } => tracing::debug!(%rollout, exchange, status, "model call answered"),
        What::Finished {
            ended,
            reward,
            wall_s,
            error,
        } => tracing::info!(%rollout, ended = ended.as_str(), reward, wall_s, error, "finished"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(exchange: u64) -> What {
        What::Call {
            exchange,
            status: Some(200),
            prompt_tokens: Some(10),
            completion_tokens: None,
        }
    }

    #[tokio::test]
    async fn a_reader_goes_on_from_the_number_it_knows() {
        let feed = Feed::new(RolloutId::generate(), Arc::default(), None);
        feed.tell(What::Queued);
        feed.tell(call(1));
        let numbers: Vec<_> = feed.after(1).iter().map(|told| told.seq).collect();
        assert_eq!(numbers, [2]);
        assert_eq!(feed.after(7), []);
        feed.wait_after(1).await;
        let more = async {
            feed.tell(call(2));
        };
        tokio::join!(feed.wait_after(2), more);
        let standing = feed.standing();
        assert_eq!((standing.calls, standing.prompt_tokens), (2, 20));
    }

    #[test]
    fn a_talkative_rollout_loses_its_oldest_events_and_no_number() {
        let feed = Feed::new(RolloutId::generate(), Arc::default(), None);
        for exchange in 1..=EVENTS_MAX as u64 + 10 {
            feed.tell(call(exchange));
        }
        let kept = feed.after(0);
        assert_eq!((kept.len(), kept[0].seq), (EVENTS_MAX, 11));
        let last = feed.after(EVENTS_MAX as u64 + 9);
        assert_eq!(last.len(), 1);
        assert_eq!(last[0].event.what, call(EVENTS_MAX as u64 + 10));
    }
}
