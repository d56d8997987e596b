//! One turn of a live agent: its replies, in memory and on disk, and what its caller can do meanwhile.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use rollcage_model::id::RolloutId;
use rollcage_model::live::{Answer, ErrorCode, Reply, ReplyKind};

use super::disk::LiveDirectory;
use super::{TurnInput, TurnSummary};
use crate::store::StoreError;

/// Replies of one turn that stay in memory. Older ones are read from disk.
const REPLIES_MAX: usize = 4096;
/// Answers that wait for the agent: it asks one after the other.
const ANSWERS_MAX: usize = 16;

/// A turn that waits, runs, or has just ended.
pub struct LiveTurn {
    id: String,
    trace_id: String,
    pub(super) input: TurnInput,
    started_at: f64,
    directory: LiveDirectory,
    pub(super) stop: CancellationToken,
    answers: mpsc::Sender<(String, Answer)>,
    /// For whoever drives the turn.
    answers_to: Mutex<Option<mpsc::Receiver<(String, Answer)>>>,
    state: Mutex<TurnState>,
    /// The number of the last reply, and whether it is terminal.
    last: watch::Sender<(u64, bool)>,
}

#[derive(Default)]
struct TurnState {
    replies: VecDeque<Reply>,
    /// The number of replies that are on disk only.
    dropped: u64,
    /// `None` before the first reply and after the last.
    file: Option<File>,
    /// Permission requests and questions that nobody has answered yet.
    asked: BTreeSet<String>,
    was_aborted: bool,
    /// Its end comes from whoever drives it.
    is_driven: bool,
}

impl LiveTurn {
    /// A new turn, which is on disk when this returns. `stop` ends it with its agent.
    pub(super) fn begin(
        input: TurnInput,
        directory: &LiveDirectory,
        stop: &CancellationToken,
    ) -> Result<LiveTurn, StoreError> {
        let id = RolloutId::generate().to_string();
        let (answers, answers_to) = mpsc::channel(ANSWERS_MAX);
        let turn = LiveTurn {
            trace_id: input.trace_id.clone().unwrap_or_else(|| id.clone()),
            id,
            input,
            started_at: rollcage_proxy::clock::now(),
            directory: directory.clone(),
            stop: stop.child_token(),
            answers,
            answers_to: Mutex::new(Some(answers_to)),
            state: Mutex::default(),
            last: watch::Sender::new((0, false)),
        };
        directory.begin_turn(&turn.summary())?;
        Ok(turn)
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn trace_id(&self) -> &str {
        &self.trace_id
    }

    /// The replies above this number.
    pub fn after(&self, seq: u64) -> Vec<Reply> {
        let state = self.state();
        if seq >= state.dropped {
            let kept = state.replies.iter().filter(|reply| reply.seq > seq);
            return kept.cloned().collect();
        }
        drop(state);
        let written = self.directory.replies(&self.id).unwrap_or_default();
        written
            .into_iter()
            .filter(|reply| reply.seq > seq)
            .collect()
    }

    /// Returns as soon as there is a reply above this number, or the turn has ended.
    pub async fn wait_after(&self, seq: u64) {
        let is_news = |(last, is_ended): &(u64, bool)| *last > seq || *is_ended;
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.last.subscribe().wait_for(is_news).await;
    }

    pub fn is_ended(&self) -> bool {
        self.last.borrow().1
    }

    /// Returns once the turn has ended.
    pub async fn ended(&self) {
        let _ = self
            .last
            .subscribe()
            .wait_for(|(_, is_ended)| *is_ended)
            .await;
    }

    /// A turn that waits ends at once, one that runs a moment later.
    pub fn abort(&self) {
        let is_driven = {
            let mut state = self.state();
            state.was_aborted = true;
            state.is_driven
        };
        self.stop.cancel();
        if !is_driven {
            self.fail(ErrorCode::Aborted, "the turn was aborted", false);
        }
    }

    /// Whether it is still to be driven; from now on it is.
    pub(super) fn claim(&self) -> bool {
        let mut state = self.state();
        state.is_driven = !state.was_aborted;
        state.is_driven
    }

    /// Answers a permission request or a question; false if nobody asks by that id.
    pub fn answer(&self, id: &str, answer: Answer) -> bool {
        let mut state = self.state();
        let is_asked = !self.is_ended() && state.asked.contains(id);
        let is_sent = is_asked && self.answers.try_send((id.to_owned(), answer)).is_ok();
        if is_sent {
            state.asked.remove(id);
        }
        is_sent
    }

    /// The terminal reply.
    pub(super) fn end(&self) -> Option<Reply> {
        let state = self.state();
        let last = state.replies.back();
        last.filter(|last| last.kind.is_terminal()).cloned()
    }

    /// Whether its caller ended it, and not its agent's end.
    pub(super) fn was_aborted(&self) -> bool {
        self.state().was_aborted
    }

    pub(super) fn take_answers(&self) -> mpsc::Receiver<(String, Answer)> {
        let mut answers = self
            .answers_to
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (_, nothing) = mpsc::channel(1);
        answers.take().unwrap_or(nothing)
    }

    pub(super) fn summary(&self) -> TurnSummary {
        TurnSummary {
            turn_id: self.id.clone(),
            trace_id: self.trace_id.clone(),
            session_id: self.input.session_id.clone(),
            text: self.input.text.clone(),
            started_at: self.started_at,
            finished_at: None,
            end: None,
        }
    }

    /// Keeps a reply. What comes after the terminal one is not kept.
    pub(super) fn push(&self, reply: Reply) {
        let mut state = self.state();
        let before = state.replies.back();
        if before.is_some_and(|before| before.kind.is_terminal()) {
            return;
        }
        if let Err(error) = self.write(&mut state, &reply) {
            tracing::warn!(%error, turn = self.id, "a reply of a live agent is not written");
        }
        if let ReplyKind::Permission { id, .. } | ReplyKind::Question { id, .. } = &reply.kind {
            state.asked.insert(id.clone());
        }
        let last = (reply.seq, reply.kind.is_terminal());
        if last.1 {
            state.file = None;
            let ended = self
                .directory
                .end_turn(rollcage_proxy::clock::now(), &reply);
            if let Err(error) = ended {
                let error = rollcage_model::text::chain(&error);
                tracing::warn!(error, turn = self.id, "the end of a turn is not written");
            }
        }
        state.replies.push_back(reply);
        if state.replies.len() > REPLIES_MAX {
            state.dropped = state.replies.pop_front().map_or(0, |reply| reply.seq);
        }
        drop(state);
        self.last.send_replace(last);
    }

    /// Ends a turn that nobody drives.
    pub(super) fn fail(&self, code: ErrorCode, message: impl Into<String>, retryable: bool) {
        let seq = self.last.borrow().0 + 1;
        let session_id = self
            .state()
            .replies
            .back()
            .and_then(|last| last.session_id.clone());
        self.push(Reply {
            trace_id: self.trace_id.clone(),
            seq,
            turn_id: self.id.clone(),
            session_id: session_id.or_else(|| self.input.session_id.clone()),
            kind: ReplyKind::Error {
                code,
                message: message.into(),
                retryable,
            },
        });
    }

    fn write(&self, state: &mut TurnState, reply: &Reply) -> std::io::Result<()> {
        if state.file.is_none() {
            let opened = self.directory.replies_file(&self.id);
            state.file = Some(opened.map_err(std::io::Error::other)?);
        }
        let mut line = serde_json::to_vec(reply)?;
        line.push(b'\n');
        match &mut state.file {
            Some(file) => file.write_all(&line),
            None => Ok(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
