//! One reader of a turn's replies: those that are there, then those that come, to the last.

use std::collections::VecDeque;
use std::sync::Arc;

use rollcage_engine::live::{LiveAgent, LiveError, LiveTurn};
use rollcage_model::live::Reply;

pub(crate) struct ReplyFollower {
    /// `None` when nothing will follow what waits.
    turn: Option<Arc<LiveTurn>>,
    seq: u64,
    waiting: VecDeque<Reply>,
}

impl ReplyFollower {
    pub(crate) fn of(turn: Arc<LiveTurn>, seq: u64) -> Self {
        ReplyFollower {
            turn: Some(turn),
            seq,
            waiting: VecDeque::new(),
        }
    }

    /// Of a turn in memory, or of one that is only on disk.
    pub(crate) async fn find(
        agent: &LiveAgent,
        turn_id: &str,
        seq: u64,
    ) -> Result<Self, LiveError> {
        if let Some(turn) = agent.find_turn(turn_id) {
            return Ok(ReplyFollower::of(turn, seq));
        }
        let stored = agent.stored_replies(turn_id).await?;
        Ok(ReplyFollower {
            turn: None,
            seq,
            waiting: stored.into_iter().filter(|it| it.seq > seq).collect(),
        })
    }

    /// The next reply; `None` after the terminal one.
    pub(crate) async fn next(&mut self) -> Option<Reply> {
        while self.waiting.is_empty() {
            let turn = self.turn.as_ref()?;
            // Asked first: what was said before the end is there once it has ended.
            let is_ended = turn.is_ended();
            self.waiting = turn.after(self.seq).into();
            if !self.waiting.is_empty() {
                break;
            }
            if is_ended {
                return None;
            }
            turn.wait_after(self.seq).await;
        }
        let reply = self.waiting.pop_front()?;
        self.seq = reply.seq;
        if reply.kind.is_terminal() {
            self.turn = None;
            self.waiting.clear();
        }
        Some(reply)
    }
}
