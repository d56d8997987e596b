//! One turn of a live agent: its replies, in memory and on disk, and what its caller can do meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use rollcage_model::id::RolloutId;
use rollcage_model::live::{Answer, ErrorCode, Reply, ReplyKind};

use super::disk::LiveDirectory;
use super::{LiveError, TurnInput, TurnSummary};
use crate::store::StoreError;

/// Replies of one turn that stay in memory. Older ones are read from disk.
const REPLIES_MAX: usize = 4096;
/// The same, in bytes as they are on disk.
const REPLIES_BYTES_MAX: usize = 1 << 20;
/// Answers that wait for the agent: it asks one after the other.
const ANSWERS_MAX: usize = 16;

/// The longest text of a turn.
const TEXT_BYTES_MAX: usize = 4 << 20;
/// Of names that stand in every reply.
const NAME_BYTES_MAX: usize = 256;
/// Ten years are as good as no limit, and a clock can add them to the time of day.
const SECONDS_MAX: f64 = 10.0 * 365.0 * 86_400.0;

pub(super) fn is_time(seconds: f64) -> bool {
    seconds > 0.0 && seconds <= SECONDS_MAX
}

impl TurnInput {
    /// Refuses what no agent can do.
    pub(super) fn check(&self) -> Result<(), LiveError> {
        let wrong = |problem: String| Err(LiveError::Request(problem));
        if self.text.trim().is_empty() || self.text.len() > TEXT_BYTES_MAX {
            return wrong(format!(
                "a turn needs a text of 1 to {TEXT_BYTES_MAX} bytes"
            ));
        }
        let names = [self.trace_id.as_deref(), self.session_id.as_deref()];
        let is_long = |name: &str| name.len() > NAME_BYTES_MAX;
        if names.into_iter().flatten().any(is_long) {
            return wrong(format!(
                "`trace_id` and `session_id` have {NAME_BYTES_MAX} bytes at most"
            ));
        }
        if self.timeout_s.is_some_and(|limit| !is_time(limit)) {
            return wrong(format!(
                "`timeout_s` must be a number of seconds above 0, and {SECONDS_MAX} at most"
            ));
        }
        Ok(())
    }
}

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
    /// Each with its bytes.
    replies: VecDeque<(Reply, usize)>,
    bytes: usize,
    /// The number of replies that are on disk only.
    dropped: u64,
    /// `None` before the first reply and after the last.
    file: Option<File>,
    /// Permission requests and questions that nobody has answered yet, with their deadlines.
    asked: BTreeMap<String, f64>,
    was_aborted: bool,
    /// Its end comes from whoever drives it.
    is_driven: bool,
}

impl TurnState {
    /// Leaves the oldest replies to the disk; the last one stays.
    fn trim(&mut self) {
        while self.replies.len() > 1
            && (self.replies.len() > REPLIES_MAX || self.bytes > REPLIES_BYTES_MAX)
        {
            if let Some((reply, bytes)) = self.replies.pop_front() {
                self.bytes -= bytes;
                self.dropped = reply.seq;
            }
        }
    }
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
            let kept = state.replies.iter().map(|(reply, _)| reply);
            return kept.filter(|reply| reply.seq > seq).cloned().collect();
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

    /// Answers a permission request or a question; false if nobody asks by that id, or not any more.
    pub fn answer(&self, id: &str, answer: Answer) -> bool {
        let mut state = self.state();
        let deadline = state.asked.get(id).copied();
        let is_open = deadline.is_some_and(|deadline| rollcage_proxy::clock::now() < deadline);
        let is_asked = !self.is_ended() && is_open;
        let is_sent = is_asked && self.answers.try_send((id.to_owned(), answer)).is_ok();
        if is_sent {
            state.asked.remove(id);
        }
        is_sent
    }

    /// The terminal reply.
    pub(super) fn end(&self) -> Option<Reply> {
        let state = self.state();
        let (last, _) = state.replies.back()?;
        last.kind.is_terminal().then(|| last.clone())
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
        if before.is_some_and(|(before, _)| before.kind.is_terminal()) {
            return;
        }
        let bytes = self.write(&mut state, &reply).unwrap_or_else(|error| {
            tracing::warn!(%error, turn = self.id, "a reply of a live agent is not written");
            0
        });
        if let ReplyKind::Permission { id, deadline, .. }
        | ReplyKind::Question { id, deadline, .. } = &reply.kind
        {
            state.asked.insert(id.clone(), *deadline);
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
        state.replies.push_back((reply, bytes));
        state.bytes += bytes;
        state.trim();
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
            .and_then(|(last, _)| last.session_id.clone());
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

    /// Returns the number of bytes that were written.
    fn write(&self, state: &mut TurnState, reply: &Reply) -> std::io::Result<usize> {
        if state.file.is_none() {
            let opened = self.directory.replies_file(&self.id);
            state.file = Some(opened.map_err(std::io::Error::other)?);
        }
        let mut line = serde_json::to_vec(reply)?;
        line.push(b'\n');
        if let Some(file) = &mut state.file {
            file.write_all(&line)?;
        }
        Ok(line.len())
    }

    fn state(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_that_no_clock_or_disk_can_bear_are_refused() {
        let good = || TurnInput {
            text: "go".to_owned(),
            timeout_s: Some(1.0),
            trace_id: Some("t".to_owned()),
            ..TurnInput::default()
        };
        good().check().unwrap();
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        let wrong: [fn(&mut TurnInput, &str); 5] = [
            |input, long| input.trace_id = Some(long.to_owned()),
            |input, long| input.session_id = Some(long.to_owned()),
            |input, _| input.timeout_s = Some(1e300),
            |input, _| input.timeout_s = Some(f64::NAN),
            |input, _| input.timeout_s = Some(-1.0),
        ];
        for change in wrong {
            let mut input = good();
            change(&mut input, &long);
            assert!(input.check().is_err(), "{input:?}");
        }
        let blank = TurnInput {
            text: " \n".to_owned(),
            ..good()
        };
        assert!(blank.check().is_err());
    }

    #[test]
    fn what_is_asked_is_answered_once_and_in_time() {
        let home = tempfile::tempdir().unwrap();
        let directory = LiveDirectory::create(home.path(), "a").unwrap();
        let stop = CancellationToken::new();
        let input = TurnInput {
            text: "go".to_owned(),
            ..TurnInput::default()
        };
        let turn = LiveTurn::begin(input, &directory, &stop).unwrap();
        let now = rollcage_proxy::clock::now();
        for (seq, id, deadline) in [(1, "late", now - 1.0), (2, "open", now + 3600.0)] {
            turn.push(Reply {
                trace_id: turn.trace_id().to_owned(),
                seq,
                turn_id: turn.id().to_owned(),
                session_id: None,
                kind: ReplyKind::Permission {
                    id: id.to_owned(),
                    permission: "bash".to_owned(),
                    patterns: Vec::new(),
                    deadline,
                },
            });
        }
        assert!(!turn.answer("late", Answer::Once));
        assert!(turn.answer("open", Answer::Once));
        assert!(!turn.answer("open", Answer::Once));
    }

    #[tokio::test]
    async fn a_long_turn_is_read_from_disk_and_ends_once() {
        let home = tempfile::tempdir().unwrap();
        let directory = LiveDirectory::create(home.path(), "a").unwrap();
        let stop = CancellationToken::new();
        let input = TurnInput {
            text: "go".to_owned(),
            ..TurnInput::default()
        };
        let turn = LiveTurn::begin(input, &directory, &stop).unwrap();
        let count = 300;
        for seq in 1..=count {
            turn.push(Reply {
                trace_id: turn.trace_id().to_owned(),
                seq,
                turn_id: turn.id().to_owned(),
                session_id: None,
                kind: ReplyKind::Delta {
                    text: "x".repeat(10_000),
                },
            });
        }
        assert!(turn.state().replies.len() < 110, "bounded by bytes");
        let numbers: Vec<u64> = turn.after(0).iter().map(|reply| reply.seq).collect();
        assert_eq!(numbers, (1..=count).collect::<Vec<_>>());
        assert_eq!(turn.after(count - 1).len(), 1);
        assert!(!turn.answer("nobody", Answer::Once));
        turn.abort();
        turn.fail(ErrorCode::Crashed, "twice", true);
        turn.ended().await;
        assert_eq!(turn.after(count).len(), 1);
        assert!(!turn.claim());
        let ended = directory.turns().unwrap().remove(0);
        assert_eq!(ended.end, turn.end());
    }
}
