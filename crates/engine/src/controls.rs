//! Commands to a running rollout. Cancelling ends it in any phase. Aborting ends its agent and keeps the sandbox for a
//! while: whoever finalizes the rollout in that time gets the result with the grade of what the agent left. A message
//! goes to the agent, if its driver accepts messages.
//!
//! A kept sandbox holds no slot: nothing runs in it, and the queue should not wait for a client that may never come
//! back. The same holds for a served agent that has nothing to do. There are at most as many sandboxes without a slot
//! as slots, since each holds memory. Grading one, or a later message to one, does not wait for a slot, because a client
//! waits for it; its length is bounded by the time limits of the agent and the verify commands.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use rollcage_model::ending::Cause;
use rollcage_model::event::{Phase, What};

use crate::feed::Feed;
use crate::judge::Ending;

/// A served agent's conversation while its server lives.
#[derive(Clone)]
pub(crate) struct LiveConversation {
    pub(crate) client: rollcage_live::Client,
    pub(crate) session: String,
}

impl std::fmt::Debug for LiveConversation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("LiveConversation").finish()
    }
}

/// Whether an agent works. One that is a command always does; a served one waits for messages between its turns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Activity {
    Busy { since: Instant },
    Idle,
}

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
    #[error(
        "the task of this rollout may reach hosts that the server's operator listed for it, so its agent takes no messages: \
         `rollcage serve --clients-drive-tasks` allows them"
    )]
    OperatorsNetwork,
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
    /// Set when the rollout holds no slot any longer.
    released: CancellationToken,
    retention: SandboxRetention,
    /// Its place among the sandboxes without a slot.
    room: Mutex<Option<OwnedSemaphorePermit>>,
    /// Of an agent that accepts messages.
    mailbox: Result<mpsc::Sender<String>, CommandError>,
    /// The other end, until its driver takes it.
    messages: Mutex<Option<mpsc::Receiver<String>>>,
    activity: watch::Sender<Activity>,
    conversation: Mutex<Option<LiveConversation>>,
}

impl Controls {
    pub(crate) fn new(cancel: CancellationToken, retention: SandboxRetention) -> Self {
        Controls {
            abort: cancel.child_token(),
            cancel,
            grade_requested: CancellationToken::new(),
            kept: CancellationToken::new(),
            released: CancellationToken::new(),
            retention,
            room: Mutex::default(),
            mailbox: Err(CommandError::NoMessages),
            messages: Mutex::default(),
            activity: watch::Sender::new(Activity::Busy {
                since: Instant::now(),
            }),
            conversation: Mutex::default(),
        }
    }

    /// The same for an agent that accepts messages: from now on, until its driver drops what it takes.
    pub(crate) fn with_mailbox(self) -> Self {
        let (sender, receiver) = mpsc::channel(MESSAGES_MAX);
        Controls {
            mailbox: Ok(sender),
            messages: Mutex::new(Some(receiver)),
            ..self
        }
    }

    /// The same for an agent that would accept messages, but whose network is not that of whoever could send some.
    pub(crate) fn without_mailbox(self) -> Self {
        Controls {
            mailbox: Err(CommandError::OperatorsNetwork),
            ..self
        }
    }

    /// The messages to the agent; `None` if it accepts none, or they were taken before.
    pub(crate) fn take_messages(&self) -> Option<mpsc::Receiver<String>> {
        lock(&self.messages).take()
    }

    pub(crate) fn message(&self, text: String) -> Result<(), CommandError> {
        let mailbox = self.mailbox.as_ref().map_err(|refused| *refused)?;
        mailbox.try_send(text).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => CommandError::Full,
            mpsc::error::TrySendError::Closed(_) => CommandError::Over,
        })
    }

    pub(crate) fn activity(&self) -> Activity {
        *self.activity.borrow()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.activity() == Activity::Idle
    }

    pub(crate) fn set_busy(&self) {
        let since = Instant::now();
        self.activity.send_replace(Activity::Busy { since });
    }

    /// Notes that the agent waits for messages, and frees its slot if there is room for one more sandbox without.
    pub(crate) fn set_idle(&self) {
        self.activity.send_replace(Activity::Idle);
        if self.take_room() {
            self.released.cancel();
        }
    }

    /// Returns while the agent works.
    pub(crate) async fn busy(&self) {
        let mut activity = self.activity.subscribe();
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = activity.wait_for(|now| *now != Activity::Idle).await;
    }

    /// The served agent's conversation, while it can be asked for.
    pub(crate) fn conversation(&self) -> Option<LiveConversation> {
        lock(&self.conversation).clone()
    }

    pub(crate) fn set_conversation(&self, conversation: Option<LiveConversation>) {
        *lock(&self.conversation) = conversation;
    }

    fn take_room(&self) -> bool {
        let mut room = lock(&self.room);
        if room.is_none() {
            *room = Arc::clone(&self.retention.room).try_acquire_owned().ok();
        }
        room.is_some()
    }

    pub(crate) fn is_grade_requested(&self) -> bool {
        self.grade_requested.is_cancelled()
    }

    /// Returns when somebody wants the grade.
    pub(crate) async fn grade_requested(&self) {
        self.grade_requested.cancelled().await;
    }

    /// Returns when the process ends, and nothing is kept waiting any longer.
    pub(crate) async fn closing(&self) {
        self.retention.closing.cancelled().await;
    }

    /// Requests the grade of an aborted rollout.
    pub(crate) fn request_grade(&self) {
        self.grade_requested.cancel();
    }

    /// Whether its sandbox is or was kept after an abort.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.is_cancelled()
    }

    /// Returns when the rollout needs no slot any longer, so that the dispatcher can free it.
    pub(crate) async fn released(&self) {
        self.released.cancelled().await;
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
        let SandboxRetention { limit, closing, .. } = &self.retention;
        if limit.is_zero() {
            return ungraded("; not graded: sandboxes of aborted rollouts are not kept".to_owned());
        }
        if !self.take_room() {
            let why = "; not graded: the sandboxes of too many aborted rollouts are kept already";
            return ungraded(why.to_owned());
        }
        feed.publish(What::Entered { phase: Phase::Kept });
        self.kept.cancel();
        self.released.cancel();
        let ending = tokio::select! {
            biased;
            () = self.cancel.cancelled() => ungraded(String::new()),
            () = self.grade_requested.cancelled() => None,
            () = closing.cancelled() => ungraded("; not graded: the server was ended".to_owned()),
            () = tokio::time::sleep(*limit) => ungraded(format!(
                "; not graded: nobody finalized it while its sandbox was kept ({} s)",
                limit.as_secs_f64()
            )),
        };
        lock(&self.room).take();
        ending
    }
}

fn lock<T>(value: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
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
            grade_requested.released().await;
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
            first.released().await;
            let refused = why(second.keep(&feed).await);
            assert!(refused.ends_with("are kept already"), "{refused}");
            retention.close();
        };
        let (ending, ()) = tokio::join!(first.keep(&feed), close);
        assert!(why(ending).ends_with("the server was ended"));
    }
}
