//! The event feed of one rollout: its latest events, numbered, and the status derived from them. Each reader asks for
//! the events after the last number it has seen, and waits for more.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, watch};

use rollcage_model::event::{Event, Phase, What};
use rollcage_model::id::RolloutId;

use crate::metrics::Metrics;

/// Events kept per rollout: each model call makes a few, and agents make hundreds of calls. The oldest are dropped
/// first, which readers see as a gap in the numbers.
const EVENTS_MAX: usize = 4096;
/// The same in bytes: events hold what was said.
const EVENTS_BYTES_MAX: usize = 8 << 20;

/// The most of a command that a status shows.
const COMMAND_CHARS_MAX: usize = 200;

/// An event with its sequence number, which starts at 1.
#[derive(Clone, Debug, PartialEq)]
pub struct NumberedEvent {
    pub seq: u64,
    pub event: Event,
}

/// The status of a rollout, derived from its events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RolloutStatus {
    /// `None` while it waits for a slot.
    pub phase: Option<Phase>,
    /// The setup or verify command that runs, such as `setup [1/3]: make`.
    pub command: Option<String>,
    pub calls: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// US dollars; 0 where the price is not known.
    pub spent_usd: f64,
    /// Unix seconds.
    pub started_at: Option<f64>,
    /// When the sandbox of the aborted rollout was first kept for grading.
    pub kept_at: Option<f64>,
    /// A served agent's own name for its conversation.
    pub serve_session_id: Option<String>,
    /// Since when a served agent has nothing to do; `None` while it works.
    pub idle_at: Option<f64>,
    /// Why the last turn of a served agent failed.
    pub turn_error: Option<String>,
    pub finished_at: Option<f64>,
}

/// The events of one rollout.
#[derive(Debug)]
pub struct Feed {
    rollout: RolloutId,
    state: Mutex<FeedState>,
    /// The number of the last event.
    last: watch::Sender<u64>,
    metrics: Arc<Metrics>,
    /// Receives the events of all rollouts in one order. Unbounded because a rollout emits only a few events per model
    /// call, and the listener only prints them.
    listener: Option<mpsc::UnboundedSender<Event>>,
}

#[derive(Debug, Default)]
struct FeedState {
    events: VecDeque<Event>,
    /// The number of events dropped from the front.
    dropped: u64,
    bytes: usize,
    status: RolloutStatus,
}

impl Feed {
    pub(crate) fn new(
        rollout: RolloutId,
        metrics: Arc<Metrics>,
        listener: Option<mpsc::UnboundedSender<Event>>,
    ) -> Self {
        Feed {
            rollout,
            state: Mutex::default(),
            last: watch::Sender::new(0),
            metrics,
            listener,
        }
    }

    pub(crate) fn rollout(&self) -> RolloutId {
        self.rollout
    }

    pub(crate) fn publish(&self, what: What) {
        log(self.rollout, &what);
        self.metrics.count(&what);
        let event = Event {
            rollout: self.rollout,
            at: rollcage_proxy::clock::now(),
            what,
        };
        let mut state = self.state();
        state.status.update(&event);
        if let Some(listener) = &self.listener {
            // Sent under the lock, so that a rollout's events arrive in order. A listener that is gone is no error.
            let _ = listener.send(event.clone());
        }
        state.bytes += event.what.bytes();
        state.events.push_back(event);
        while state.events.len() > EVENTS_MAX || state.bytes > EVENTS_BYTES_MAX {
            let Some(oldest) = state.events.pop_front() else {
                break;
            };
            state.bytes -= oldest.what.bytes();
            state.dropped += 1;
        }
        let last = state.dropped + state.events.len() as u64;
        drop(state);
        self.last.send_replace(last);
        self.metrics.published();
    }

    /// The events still kept with a number above `seq`.
    pub fn after(&self, seq: u64) -> Vec<NumberedEvent> {
        self.some_after(seq, usize::MAX)
    }

    /// As [`Feed::after`], only the first ones, for a reader that must not hold many.
    pub fn some_after(&self, seq: u64, count_max: usize) -> Vec<NumberedEvent> {
        let state = self.state();
        let skipped = usize::try_from(seq.saturating_sub(state.dropped)).unwrap_or(usize::MAX);
        let numbered = state.events.iter().enumerate().skip(skipped);
        numbered
            .take(count_max)
            .map(|(index, event)| NumberedEvent {
                seq: state.dropped + index as u64 + 1,
                event: event.clone(),
            })
            .collect()
    }

    /// Returns as soon as there is an event above `seq`.
    pub async fn wait_after(&self, seq: u64) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.last.subscribe().wait_for(|last| *last > seq).await;
    }

    /// The number of the last event.
    pub fn last_seq(&self) -> u64 {
        *self.last.borrow()
    }

    pub fn is_finished(&self) -> bool {
        self.state().status.finished_at.is_some()
    }

    /// Returns once the `Finished` event was published.
    pub async fn finished(&self) {
        let _ = self.last.subscribe().wait_for(|_| self.is_finished()).await;
    }

    pub fn status(&self) -> RolloutStatus {
        self.state().status.clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.state().events.len()
    }

    /// About how much memory its events take.
    pub(crate) fn bytes(&self) -> usize {
        self.state().bytes
    }

    fn state(&self) -> std::sync::MutexGuard<'_, FeedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RolloutStatus {
    fn update(&mut self, event: &Event) {
        match &event.what {
            What::Queued | What::Reply { .. } | What::Collected { .. } => {}
            What::CommandStarted {
                phase,
                number,
                of,
                cmd,
            } => {
                let phase = phase.as_str();
                self.command = Some(format!("{phase} [{number}/{of}]: {}", first_line(cmd)));
            }
            What::Command { .. } => self.command = None,
            What::Session { serve_session_id } => {
                self.serve_session_id = Some(serve_session_id.clone());
            }
            What::TurnStarted { .. } => {
                self.idle_at = None;
                self.turn_error = None;
            }
            What::Idle { error } => {
                self.idle_at = Some(event.at);
                self.turn_error.clone_from(error);
            }
            What::AgentExited { .. } => self.idle_at = None,
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
                spent_usd,
                ..
            } => {
                self.calls += 1;
                self.prompt_tokens += prompt_tokens.unwrap_or_default();
                self.completion_tokens += completion_tokens.unwrap_or_default();
                // Calls that are made at the same time may be told in another order.
                self.spent_usd = self.spent_usd.max(spent_usd.unwrap_or_default());
            }
            What::Finished { .. } => self.finished_at = Some(event.at),
        }
    }
}

/// The start of a command, for people.
fn first_line(cmd: &str) -> String {
    let line = cmd.trim().lines().next().unwrap_or_default();
    let end = line.char_indices().nth(COMMAND_CHARS_MAX);
    match end {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// Logs a rollout's milestones. Prompts, answers and commands are not logged.
fn log(rollout: RolloutId, what: &What) {
    match what {
        What::Queued => tracing::info!(%rollout, "queued"),
        What::Entered { phase } => tracing::info!(%rollout, phase = phase.as_str(), "entered"),
        What::CommandStarted { phase, number, .. } => {
            tracing::debug!(%rollout, phase = phase.as_str(), number, "command started");
        }
        What::Session { .. } => tracing::debug!(%rollout, "the served agent has a session"),
        What::TurnStarted { number } => tracing::debug!(%rollout, number, "turn started"),
        What::Reply { .. } => tracing::trace!(%rollout, "reply"),
        What::Idle { .. } => tracing::info!(%rollout, "the served agent is idle"),
        What::AgentExited { exit_code } => tracing::info!(%rollout, exit_code, "agent exited"),
        What::Collected { files, files_extra } => {
            tracing::debug!(%rollout, files = files.len(), files_extra = files_extra.len(), "collected");
        }
        What::Command {
            phase,
            number,
            outcome,
            ..
        } => {
            let exit_code = outcome.exit_code;
            tracing::debug!(%rollout, phase = phase.as_str(), number, exit_code, "command ended");
        }
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
    use rollcage_model::event::Said;
    use rollcage_model::record::CommandResult;

    use super::*;

    fn call(exchange: u64) -> What {
        What::Call {
            exchange,
            status: Some(200),
            prompt_tokens: Some(10),
            completion_tokens: None,
            spent_usd: Some(0.25 * exchange as f64),
            said: Said::default(),
        }
    }

    #[tokio::test]
    async fn a_reader_goes_on_from_the_number_it_knows() {
        let feed = Feed::new(RolloutId::generate(), Arc::default(), None);
        feed.publish(What::Queued);
        feed.publish(call(1));
        let numbers: Vec<_> = feed.after(1).iter().map(|numbered| numbered.seq).collect();
        assert_eq!(numbers, [2]);
        assert_eq!(feed.after(7), []);
        feed.wait_after(1).await;
        let more = async {
            feed.publish(call(2));
        };
        tokio::join!(feed.wait_after(2), more);
        let status = feed.status();
        assert_eq!((status.calls, status.prompt_tokens), (2, 20));
        assert_eq!(status.spent_usd, 0.5);
    }

    #[test]
    fn a_command_is_shown_while_it_runs() {
        let feed = Feed::new(RolloutId::generate(), Arc::default(), None);
        let (phase, number, of) = (Phase::Setup, 2, 3);
        let cmd = format!("echo {}\necho b", "x".repeat(300));
        feed.publish(What::Entered { phase });
        feed.publish(What::CommandStarted {
            phase,
            number,
            of,
            cmd: cmd.clone(),
        });
        let shown = format!("setup [2/3]: echo {}…", "x".repeat(195));
        assert_eq!(feed.status().command, Some(shown));
        feed.publish(What::Command {
            phase,
            number,
            of,
            outcome: CommandResult {
                cmd,
                ..CommandResult::default()
            },
        });
        assert_eq!(feed.status().command, None);
    }

    #[test]
    fn a_talkative_rollout_loses_its_oldest_events_and_no_number() {
        let feed = Feed::new(RolloutId::generate(), Arc::default(), None);
        for exchange in 1..=EVENTS_MAX as u64 + 10 {
            feed.publish(call(exchange));
        }
        let kept = feed.after(0);
        assert_eq!((kept.len(), kept[0].seq), (EVENTS_MAX, 11));
        let last = feed.after(EVENTS_MAX as u64 + 9);
        assert_eq!(last.len(), 1);
        assert_eq!(last[0].event.what, call(EVENTS_MAX as u64 + 10));
    }
    #[test]
    fn what_is_said_is_bounded_in_bytes_too() {
        let feed = Feed::new(RolloutId::generate(), Arc::default(), None);
        for _ in 0..1000 {
            feed.publish(What::Idle {
                error: Some("x".repeat(16 << 10)),
            });
        }
        assert!(feed.bytes() <= EVENTS_BYTES_MAX, "{}", feed.bytes());
        let kept = feed.after(0);
        assert!(kept.len() > 400 && kept.last().unwrap().seq == 1000);
    }
}
