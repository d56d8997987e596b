//! What may be said to a rollout that runs. Cancelling ends it wherever it is. Aborting ends its agent and keeps the sandbox
//! for a while: who wants the result meanwhile (finalizes it) gets it with the grade of what the agent left. A message goes
//! to the agent, where its driver takes messages.
//!
//! A kept sandbox holds no slot: nothing runs in it, and those that wait should not wait for somebody who may never come.
//! There are no more of them than slots, since each holds memory. Its grade is made beside the slots, because whoever asked
//! for it is waiting; it takes no longer than the verify commands may.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use rollcage_model::ending::Cause;
use rollcage_model::event::{Phase, What};

use crate::feed::Feed;
use crate::judge::Ending;

/// How sandboxes of aborted rollouts are kept; shared by all rollouts of a process.
#[derive(Clone, Debug)]
pub(crate) struct Keeping {
    limit: Duration,
    room: Arc<Semaphore>,
    /// Nothing is kept any longer.
    closing: CancellationToken,
}

impl Keeping {
    pub(crate) fn new(limit: Duration, count_max: usize) -> Self {
        Keeping {
            limit,
            room: Arc::new(Semaphore::new(count_max)),
            closing: CancellationToken::new(),
        }
    }

    /// Gives up what is kept.
    pub(crate) fn close(&self) {
        self.closing.cancel();
    }
}

/// Messages that wait for an agent; more are refused.
const MESSAGES_MAX: usize = 16;

/// Something for a rollout that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// For its agent.
    Message(String),
    /// End the agent, and keep what it left for a while.
    Abort,
    /// The result is wanted: once the agent is over, also by an abort, it is graded at once.
    Finalize,
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum CommandError {
    #[error("the rollout has ended, or was aborted before")]
    Over,
    #[error("the agent of this rollout takes no messages while it runs")]
    NoMessages,
    #[error("{MESSAGES_MAX} messages wait for the agent already")]
    Full,
}

/// What one rollout is told while it runs.
#[derive(Debug)]
pub(crate) struct Controls {
    /// Ends the rollout, wherever it is.
    pub(crate) cancel: CancellationToken,
    /// Ends the agent. Cancelled with `cancel`.
    pub(crate) abort: CancellationToken,
    /// Somebody waits for the result.
    wanted: CancellationToken,
    kept: CancellationToken,
    keeping: Keeping,
    /// Open while an agent runs that takes messages.
    mailbox: Mutex<Option<mpsc::Sender<String>>>,
}

impl Controls {
    pub(crate) fn new(cancel: CancellationToken, keeping: Keeping) -> Self {
        Controls {
            abort: cancel.child_token(),
            cancel,
            wanted: CancellationToken::new(),
            kept: CancellationToken::new(),
            keeping,
            mailbox: Mutex::default(),
        }
    }

    /// For a driver that takes messages. They are taken for as long as the answer lives.
    pub(crate) fn open_mailbox(&self) -> mpsc::Receiver<String> {
        let (sender, receiver) = mpsc::channel(MESSAGES_MAX);
        *self.mailbox() = Some(sender);
        receiver
    }

    pub(crate) fn message(&self, text: String) -> Result<(), CommandError> {
        let mailbox = self.mailbox();
        let mailbox = mailbox.as_ref().ok_or(CommandError::NoMessages)?;
        mailbox.try_send(text).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => CommandError::Full,
            mpsc::error::TrySendError::Closed(_) => CommandError::Over,
        })
    }

    fn mailbox(&self) -> std::sync::MutexGuard<'_, Option<mpsc::Sender<String>>> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that somebody waits for the result, so that an aborted rollout is graded at once.
    pub(crate) fn want(&self) {
        self.wanted.cancel();
    }

    /// Whether its sandbox is kept, or was.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.is_cancelled()
    }

    /// Returns when the sandbox is kept, so that its slot is free for others.
    pub(crate) async fn kept(&self) {
        self.kept.cancelled().await;
    }

    /// Called when the agent was ended and is dead. Returns when somebody wants the grade, or with how the rollout ends
    /// without one.
    pub(crate) async fn keep(&self, feed: &Feed) -> Option<Ending> {
        let ungraded = |why: String| {
            let text = format!("cancelled while the agent ran{why}");
            Some(Ending::new(Cause::Cancelled, text))
        };
        if self.cancel.is_cancelled() {
            return ungraded(String::new());
        }
        if self.wanted.is_cancelled() {
            return None;
        }
        let Keeping {
            limit,
            room,
            closing,
        } = &self.keeping;
        if limit.is_zero() {
            return ungraded("; not graded: sandboxes of aborted rollouts are not kept".to_owned());
        }
        let Ok(_room) = room.try_acquire() else {
            let why = "; not graded: the sandboxes of too many aborted rollouts are kept already";
            return ungraded(why.to_owned());
        };
        feed.tell(What::Entered { phase: Phase::Kept });
        self.kept.cancel();
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => ungraded(String::new()),
            () = self.wanted.cancelled() => None,
            () = closing.cancelled() => ungraded("; not graded: the server was ended".to_owned()),
            () = tokio::time::sleep(*limit) => ungraded(format!(
                "; not graded: nobody finalized it while its sandbox was kept ({} s)",
                limit.as_secs_f64()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use rollcage_model::id::RolloutId;

    use super::*;

    fn feed() -> Feed {
        Feed::new(RolloutId::generate(), Arc::default(), None)
    }

    fn controls(keeping: &Keeping) -> Controls {
        Controls::new(CancellationToken::new(), keeping.clone())
    }

    fn why(ending: Option<Ending>) -> String {
        ending.and_then(|ending| ending.error).unwrap()
    }

    #[tokio::test]
    async fn a_sandbox_is_kept_until_somebody_wants_the_grade_or_the_time_is_up() {
        let keeping = Keeping::new(Duration::from_millis(50), 2);
        let (wanted, late, feed) = (controls(&keeping), controls(&keeping), feed());
        let ask = async {
            wanted.kept().await;
            wanted.want();
        };
        let (first, second, ()) = tokio::join!(wanted.keep(&feed), late.keep(&feed), ask);
        assert!(first.is_none());
        assert!(why(second).ends_with("while its sandbox was kept (0.05 s)"));
    }

    #[tokio::test]
    async fn nothing_is_kept_for_somebody_who_waits_or_for_nobody() {
        let keeping = Keeping::new(Duration::from_secs(60), 1);
        let waited_for = controls(&keeping);
        waited_for.want();
        assert!(waited_for.keep(&feed()).await.is_none());
        assert!(!waited_for.is_kept());

        let cancelled = controls(&keeping);
        cancelled.cancel.cancel();
        assert_eq!(
            why(cancelled.keep(&feed()).await),
            "cancelled while the agent ran"
        );
        let never = controls(&Keeping::new(Duration::ZERO, 1));
        assert!(why(never.keep(&feed()).await).ends_with("are not kept"));
    }

    #[tokio::test]
    async fn what_is_kept_has_a_limit_and_ends_with_the_server() {
        let keeping = Keeping::new(Duration::from_secs(60), 1);
        let (first, second, feed) = (controls(&keeping), controls(&keeping), feed());
        let close = async {
            first.kept().await;
            let refused = why(second.keep(&feed).await);
            assert!(refused.ends_with("are kept already"), "{refused}");
            keeping.close();
        };
        let (ending, ()) = tokio::join!(first.keep(&feed), close);
        assert!(why(ending).ends_with("the server was ended"));
    }
}
