//! The replies of a served agent as events of its rollout. Models stream token by token: pieces of text are joined, so
//! that there are at most about ten events per second.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use rollcage_model::event::{What, cut_reply};
use rollcage_model::live::{Reply, ReplyKind};

use crate::feed::Feed;

/// Between two events with text.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct ReplyFeed {
    feed: Arc<Feed>,
    state: Mutex<State>,
    /// Told when text begins to wait.
    waits: Notify,
}

#[derive(Default)]
struct State {
    /// Text that waits, with the number of its last piece.
    waiting: Option<Reply>,
    /// When the last text was published.
    published: Option<Instant>,
}

impl ReplyFeed {
    pub(super) fn new(feed: Arc<Feed>) -> Self {
        ReplyFeed {
            feed,
            state: Mutex::default(),
            waits: Notify::new(),
        }
    }

    pub(super) fn push(&self, mut reply: Reply) {
        let mut state = self.state();
        let is_text = text_of(&reply.kind).is_some();
        if let Some(mut waiting) = state.waiting.take() {
            if extend(&mut waiting, &reply) {
                reply = waiting;
            } else {
                self.publish(waiting);
            }
        }
        let is_early = state.published.is_some_and(|at| at.elapsed() < PAUSE);
        if is_text && is_early {
            state.waiting = Some(reply);
            self.waits.notify_one();
            return;
        }
        if is_text {
            state.published = Some(Instant::now());
        }
        self.publish(reply);
    }

    /// Publishes what waits.
    pub(super) fn flush(&self) {
        let mut state = self.state();
        if let Some(waiting) = state.waiting.take() {
            state.published = Some(Instant::now());
            self.publish(waiting);
        }
    }

    /// Returns when text has waited for long enough.
    pub(super) async fn due(&self) {
        loop {
            let due = {
                let state = self.state();
                let published = state.waiting.as_ref().and(state.published);
                published.map(|published| published + PAUSE)
            };
            match due {
                Some(due) => return tokio::time::sleep_until(due).await,
                None => self.waits.notified().await,
            }
        }
    }

    fn publish(&self, reply: Reply) {
        let reply = cut_reply(reply);
        self.feed.publish(What::Reply { reply });
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn text_of(kind: &ReplyKind) -> Option<&str> {
    match kind {
        ReplyKind::Delta { text } | ReplyKind::Reasoning { text } => Some(text),
        _ => None,
    }
}

/// Adds a piece of text to one of the same kind and turn; false if they do not belong together.
fn extend(waiting: &mut Reply, more: &Reply) -> bool {
    let is_same_turn = waiting.turn_id == more.turn_id;
    match (&mut waiting.kind, &more.kind) {
        (ReplyKind::Delta { text }, ReplyKind::Delta { text: more })
        | (ReplyKind::Reasoning { text }, ReplyKind::Reasoning { text: more })
            if is_same_turn =>
        {
            text.push_str(more);
        }
        _ => return false,
    }
    waiting.seq = more.seq;
    true
}

#[cfg(test)]
mod tests {
    use rollcage_model::id::RolloutId;

    use super::*;

    fn reply(seq: u64, kind: ReplyKind) -> Reply {
        Reply {
            trace_id: "t".to_owned(),
            seq,
            turn_id: "1".to_owned(),
            session_id: None,
            kind,
        }
    }

    fn delta(seq: u64) -> Reply {
        let text = "ab".to_owned();
        reply(seq, ReplyKind::Delta { text })
    }

    #[tokio::test(start_paused = true)]
    async fn text_is_told_ten_times_a_second_and_nothing_of_it_is_lost() {
        let feed = Arc::new(Feed::new(RolloutId::generate(), Arc::default(), None));
        let replies = ReplyFeed::new(Arc::clone(&feed));
        for seq in 1..=1000 {
            replies.push(delta(seq));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let text = "hm".to_owned();
        replies.push(reply(1001, ReplyKind::Reasoning { text }));
        replies.push(delta(1002));
        replies.due().await;
        replies.flush();
        let told: Vec<Reply> = feed.after(0).into_iter().map(reply_of).collect();
        assert!((10..=13).contains(&told.len()), "{}", told.len());
        let said: String = told
            .iter()
            .filter_map(|reply| text_of(&reply.kind))
            .collect();
        assert_eq!(said, format!("{}hmab", "ab".repeat(1000)));
        assert!(told.is_sorted_by_key(|reply| reply.seq));
    }

    fn reply_of(numbered: crate::feed::NumberedEvent) -> Reply {
        match numbered.event.what {
            What::Reply { reply } => reply,
            other => panic!("{other:?}"),
        }
    }
}
