//! Commands to a running rollout. Cancelling ends it in any phase. Aborting ends its agent and keeps the sandbox for a
//! while: whoever finalizes the rollout in that time gets the result with the grade of what the agent left. A message
//! goes to the agent, if its driver accepts messages.
//!
//! A kept sandbox holds no slot: nothing runs in it, and the queue should not wait for a client that may never come
//! back. There are at most as many kept sandboxes as slots, since each holds memory. Grading one does not wait for a
//! slot, because a client waits for the result; its length is bounded by the time limit of the verify commands.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use rollcage_model::ending::Cause;
use rollcage_model::event::{Phase, What};

use crate::feed::Feed;
use crate::judge::Ending;

/// How long and how many sandboxes of aborted rollouts are kept; shared by all rollouts of a process.
#[derive(Clone, Debug)]
pub(crate) struct SandboxRetention {
    limit: Duration,
    room: Arc<Semaphore>,
    /// Cancelled at shutdown: nothing is kept any longer.
    closing: CancellationToken,
}

impl SandboxRetention {
    pub(crate) fn new(limit: Duration, count_max: usize) -> Self {
        SandboxRetention {
            limit,
            room: Arc::new(Semaphore::new(count_max)),
            closing: CancellationToken::new(),
        }
    }

    /// Ends the retention of all kept sandboxes.
    pub(crate) fn close(&self) {
        self.closing.cancel();
    }
}

/// Undelivered messages per agent; more are refused.
const MESSAGES_MAX: usize = 16;

/// A command to a running rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolloutCommand {
    /// A message to its agent.
    Message(String),
    /// Stop the agent, and keep its sandbox for a while.
    Abort,
    /// Grade as soon as the agent has ended, even if by an abort.
    Finalize,
}

/// Why a command was refused.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum CommandError {
    #[error("the rollout has ended, or was aborted before")]
    Over,
    #[error("the agent of this rollout takes no messages while it runs")]
    NoMessages,
    #[error("{MESSAGES_MAX} messages wait for the agent already")]
    Full,
}

/// The control signals of one rollout.
#[derive(Debug)]
pub(crate) struct Controls {
    /// Ends the rollout in any phase.
    pub(crate) cancel: CancellationToken,
    /// Ends the agent. A child of `cancel`.
    pub(crate) abort: CancellationToken,
    /// Set when somebody waits for the result of an aborted rollout.
    grade_requested: CancellationToken,
    kept: CancellationToken,
    retention: SandboxRetention,
    /// Open while an agent that accepts messages runs.
    mailbox: Mutex<Option<mpsc::Sender<String>>>,
}

impl Controls {
    pub(crate) fn new(cancel: CancellationToken, retention: SandboxRetention) -> Self {
        Controls {
            abort: cancel.child_token(),
            cancel,
            grade_requested: CancellationToken::new(),
            kept: CancellationToken::new(),
            retention,
            mailbox: Mutex::default(),
        }
    }

    /// Opens the mailbox for a driver that accepts messages. Messages are accepted for as long as the receiver lives.
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

    /// Requests the grade of an aborted rollout.
    pub(crate) fn request_grade(&self) {
        self.grade_requested.cancel();
    }

    /// Whether its sandbox is or was kept after an abort.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.is_cancelled()
    }

    /// Returns when the sandbox is kept after an abort, so that the dispatcher can free its slot.
    pub(crate) async fn kept(&self) {
        self.kept.cancelled().await;
    }

    /// Keeps the sandbox after the agent was stopped. Returns `None` as soon as the grade is requested, otherwise the
    /// ending of an ungraded rollout.
    pub(crate) async fn keep(&self, feed: &Feed) -> Option<Ending> {
        let ungraded = |why: String| {
            let text = format!("cancelled while the agent ran{why}");
            Some(Ending::new(Cause::Cancelled, text))
        };
        if self.cancel.is_cancelled() {
            return ungraded(String::new());
        }
        if self.grade_requested.is_cancelled() {
            return None;
        }
        let SandboxRetention {
            limit,
            room,
            closing,
        } = &self.retention;
        if limit.is_zero() {
            return ungraded("; not graded: sandboxes of aborted rollouts are not kept".to_owned());
        }
        let Ok(_room) = room.try_acquire() else {
            let why = "; not graded: the sandboxes of too many aborted rollouts are kept already";
            return ungraded(why.to_owned());
        };
        feed.publish(What::Entered { phase: Phase::Kept });
        self.kept.cancel();
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => ungraded(String::new()),
            () = self.grade_requested.cancelled() => None,
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

    fn controls(retention: &SandboxRetention) -> Controls {
        Controls::new(CancellationToken::new(), retention.clone())
    }

    fn why(ending: Option<Ending>) -> String {
        ending.and_then(|ending| ending.error).unwrap()
    }

    #[tokio::test]
    async fn a_sandbox_is_kept_until_somebody_wants_the_grade_or_the_time_is_up() {
        let retention = SandboxRetention::new(Duration::from_millis(50), 2);
        let (grade_requested, late, feed) = (controls(&retention), controls(&retention), feed());
        let ask = async {
            grade_requested.kept().await;
            grade_requested.request_grade();
        };
        let (first, second, ()) = tokio::join!(grade_requested.keep(&feed), late.keep(&feed), ask);
        assert!(first.is_none());
        assert!(why(second).ends_with("while its sandbox was kept (0.05 s)"));
    }

    #[tokio::test]
    async fn nothing_is_kept_for_somebody_who_waits_or_for_nobody() {
        let retention = SandboxRetention::new(Duration::from_secs(60), 1);
        let waited_for = controls(&retention);
        waited_for.request_grade();
        assert!(waited_for.keep(&feed()).await.is_none());
        assert!(!waited_for.is_kept());

        let cancelled = controls(&retention);
        cancelled.cancel.cancel();
        assert_eq!(
            why(cancelled.keep(&feed()).await),
            "cancelled while the agent ran"
        );
        let never = controls(&SandboxRetention::new(Duration::ZERO, 1));
        assert!(why(never.keep(&feed()).await).ends_with("are not kept"));
    }

    #[tokio::test]
    async fn what_is_kept_has_a_limit_and_ends_with_the_server() {
        let retention = SandboxRetention::new(Duration::from_secs(60), 1);
        let (first, second, feed) = (controls(&retention), controls(&retention), feed());
        let close = async {
            first.kept().await;
            let refused = why(second.keep(&feed).await);
            assert!(refused.ends_with("are kept already"), "{refused}");
            retention.close();
        };
        let (ending, ()) = tokio::join!(first.keep(&feed), close);
        assert!(why(ending).ends_with("the server was ended"));
    }
}
