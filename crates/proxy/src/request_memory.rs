//! Limits the memory that agents' requests take in our process, of all sessions together. No sandbox's memory limit covers
//! it: a few agents could begin a thousand large requests at once and finish none.
//!
//! A request waits, unread, until there is room for what its body may become. Small requests and large ones have their own
//! room, so that ordinary calls do not stand behind large ones. Among those who wait, sessions without any request go first,
//! in the order in which they came, and nobody passes the first one of them: each session gets one request of any allowed
//! size in turn, whatever the others do. A session that has one already gets more only while nobody waits without one, and
//! no more than a part of all.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rollcage_sandbox::memory;
use tokio::sync::oneshot;

use crate::patience::Outages;

/// For an agent's request: a long conversation with images takes some ten megabytes.
pub(crate) const REQUEST_BYTES_MAX: usize = 64 << 20;
/// What a byte of a body becomes: itself, its parsed form, its translation, and what is sent. Measured by
/// `large_requests_of_many_sessions_stay_within_the_room`.
const FACTOR: usize = 5;
/// What stays of it while the answer streams: the body and its translation.
const FACTOR_WHILE_STREAMING: usize = 2;
/// Ordinary calls; larger ones are long conversations and those with images.
pub(crate) const SMALL_BYTES_MAX: usize = 512 << 10;
/// Of all room, for small requests alone.
const SMALL_PART: usize = 8;
/// Of each room, the most that one session may take with more than one request.
const SESSION_PART: usize = 4;
/// Of the machine's memory.
const MACHINE_PART: u64 = 4;
const BYTES_MIN: u64 = 512 << 20;
const BYTES_MAX: u64 = 4 << 30;
/// Agents repeat what is refused after that.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(60);

static OF_PROCESS: OnceLock<Arc<RequestMemory>> = OnceLock::new();

/// The room for the requests of all sessions.
#[derive(Debug)]
pub(crate) struct RequestMemory {
    small: Arc<Room>,
    large: Arc<Room>,
    sessions: AtomicU64,
}

/// There was no room in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    /// Other sessions' requests stood in the way, not its own.
    pub(crate) is_others_doing: bool,
}

impl RequestMemory {
    /// Of this process.
    pub(crate) fn of_process() -> Arc<Self> {
        let memory = OF_PROCESS.get_or_init(|| {
            let totals = [memory::of_machine(), memory::of_group()];
            let totals = totals
                .into_iter()
                .flatten()
                .map(|memory| memory.total_bytes);
            let part = totals.min().map_or(BYTES_MIN, |total| total / MACHINE_PART);
            let bytes = part.clamp(BYTES_MIN, BYTES_MAX);
            Self::of(usize::try_from(bytes).unwrap_or(usize::MAX))
        });
        Arc::clone(memory)
    }

    pub(crate) fn of(bytes: usize) -> Arc<Self> {
        let small = bytes / SMALL_PART;
        Arc::new(RequestMemory {
            small: Room::of(small),
            large: Room::of(bytes - small),
            sessions: AtomicU64::new(0),
        })
    }

    /// The share of a new session. Waiting for other sessions is no time of its agent, but an outage.
    pub(crate) fn share(self: Arc<Self>, outages: Arc<Outages>) -> RequestShare {
        RequestShare {
            session: self.sessions.fetch_add(1, Ordering::Relaxed),
            memory: self,
            outages,
        }
    }
}

/// One session's way to room for its requests.
#[derive(Debug)]
pub(crate) struct RequestShare {
    memory: Arc<RequestMemory>,
    session: u64,
    outages: Arc<Outages>,
}

impl RequestShare {
    /// Waits for the room of a body whose size is declared, or else of a small one.
    pub(crate) async fn reserve(&self, length: Option<usize>) -> Result<Reserved, NoRoom> {
        match length.unwrap_or(SMALL_BYTES_MAX) {
            small @ ..=SMALL_BYTES_MAX => self.wait(&self.memory.small, small).await,
            large => {
                self.wait(&self.memory.large, large.min(REQUEST_BYTES_MAX))
                    .await
            }
        }
    }

    /// Waits for the room of a body that turned out not to be small. It may have any allowed size.
    pub(crate) async fn reserve_more(&self) -> Result<Reserved, NoRoom> {
        self.wait(&self.memory.large, REQUEST_BYTES_MAX).await
    }

    async fn wait(&self, room: &Arc<Room>, body_bytes: usize) -> Result<Reserved, NoRoom> {
        let bytes = (body_bytes * FACTOR).clamp(1, room.bytes_max);
        let is_others_doing = || room.may_have(self.session, bytes);
        let _outage = is_others_doing().then(|| self.outages.begin());
        let waiting = room.enter(self.session, bytes);
        let reserved = tokio::time::timeout(WAIT_LIMIT, waiting.ready()).await;
        let mut reserved = reserved.ok().flatten().ok_or_else(|| NoRoom {
            is_others_doing: is_others_doing(),
        })?;
        reserved.body_bytes = body_bytes;
        Ok(reserved)
    }
}

/// Room that a request has until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    room: Arc<Room>,
    session: u64,
    bytes: usize,
    /// How much of a body may be read.
    pub(crate) body_bytes: usize,
}

impl Reserved {
    /// Gives up what a body of this size does not need.
    pub(crate) fn arrived(&mut self, body_bytes: usize) {
        self.shrink(body_bytes * FACTOR);
    }

    pub(crate) fn is_answered(&mut self, body_bytes: usize) {
        self.shrink(body_bytes * FACTOR_WHILE_STREAMING);
    }

    fn shrink(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes.max(1));
        self.bytes -= less;
        self.room.release(self.session, less);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.room.release(self.session, self.bytes);
    }
}

#[derive(Debug)]
struct Room {
    bytes_max: usize,
    state: Mutex<RoomState>,
}

#[derive(Debug, Default)]
struct RoomState {
    used: usize,
    /// By session.
    held: HashMap<u64, usize>,
    /// In the order in which they came; those of a session whose turn has ended are the last again.
    waiting: Vec<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    session: u64,
    bytes: usize,
    ready: oneshot::Sender<Reserved>,
}

/// A request's place among those who wait; it gives it up when it is dropped.
struct Waiting {
    room: Arc<Room>,
    ready: Option<oneshot::Receiver<Reserved>>,
}

impl Waiting {
    async fn ready(mut self) -> Option<Reserved> {
        self.ready.as_mut()?.await.ok()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.ready = None;
        self.room.grant();
    }
}

impl Room {
    fn of(bytes_max: usize) -> Arc<Self> {
        Arc::new(Room {
            bytes_max,
            state: Mutex::default(),
        })
    }

    fn enter(self: &Arc<Self>, session: u64, bytes: usize) -> Waiting {
        let (ready, receiver) = oneshot::channel();
        let waiter = Waiter {
            session,
            bytes,
            ready,
        };
        self.state().waiting.push(waiter);
        self.grant();
        Waiting {
            room: Arc::clone(self),
            ready: Some(receiver),
        }
    }

    fn release(self: &Arc<Self>, session: u64, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let mut state = self.state();
        state.used -= bytes;
        if let Some(held) = state.held.get_mut(&session) {
            *held -= bytes;
            if *held == 0 {
                state.held.remove(&session);
                // Its turn is over.
                let waiting = std::mem::take(&mut state.waiting);
                let (own, others): (Vec<_>, Vec<_>) =
                    waiting.into_iter().partition(|it| it.session == session);
                state.waiting = others;
                state.waiting.extend(own);
            }
        }
        drop(state);
        self.grant();
    }

    /// Lets in who is next, as long as there is room.
    fn grant(self: &Arc<Self>) {
        loop {
            let Some((ready, reserved)) = self.next() else {
                return;
            };
            // Dropping what nobody waits for any more releases it, which needs the lock.
            drop(ready.send(reserved));
        }
    }

    fn next(self: &Arc<Self>) -> Option<(oneshot::Sender<Reserved>, Reserved)> {
        let mut state = self.state();
        state.waiting.retain(|waiter| !waiter.ready.is_closed());
        let waits_without = |waiter: &Waiter| !state.held.contains_key(&waiter.session);
        let waits_within = |waiter: &Waiter| self.is_within(&state, waiter.session, waiter.bytes);
        let mut waiting = state.waiting.iter();
        let without = waiting.position(waits_without);
        let at = without.or_else(|| state.waiting.iter().position(waits_within))?;
        let bytes = state.waiting[at].bytes;
        if state.used + bytes > self.bytes_max {
            return None;
        }
        let waiter = state.waiting.remove(at);
        state.used += bytes;
        *state.held.entry(waiter.session).or_default() += bytes;
        let reserved = Reserved {
            room: Arc::clone(self),
            session: waiter.session,
            bytes,
            body_bytes: 0,
        };
        Some((waiter.ready, reserved))
    }

    /// Whether a session may have a request of this size in its turn, whatever else there is room for.
    fn may_have(&self, session: u64, bytes: usize) -> bool {
        self.is_within(&self.state(), session, bytes)
    }

    fn is_within(&self, state: &RoomState, session: u64, bytes: usize) -> bool {
        match state.held.get(&session) {
            None => true,
            Some(held) => held + bytes <= self.bytes_max / SESSION_PART,
        }
    }

    fn state(&self) -> MutexGuard<'_, RoomState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::time::Instant;

    use super::*;

    const MIB: usize = 1 << 20;
    /// Room for two large requests of 8 MiB, less a little.
    const TWO: usize = 8 * MIB * FACTOR * 2 * SMALL_PART / (SMALL_PART - 1) + SMALL_PART;

    #[tokio::test(start_paused = true)]
    async fn sessions_take_turns_however_many_requests_one_has() {
        let memory = RequestMemory::of(TWO);
        let [greedy, first, second] = [(); 3].map(|()| Arc::clone(&memory).share(Arc::default()));
        let one = greedy.reserve(Some(8 * MIB)).await.unwrap();
        // A second of its own would be more than a session's part.
        let mut more: Vec<_> = (0..50)
            .map(|_| Box::pin(greedy.reserve(Some(8 * MIB))))
            .collect();
        for waiting in &mut more {
            assert!(waiting.now_or_never().is_none());
        }
        let other = first.reserve(Some(8 * MIB)).now_or_never().unwrap();
        let mut last = Box::pin(second.reserve(Some(8 * MIB)));
        assert!(futures::poll!(&mut last).is_pending());
        // Nobody's small requests wait for large ones.
        for share in [&greedy, &first, &second] {
            let small = share.reserve(Some(1000)).now_or_never();
            assert!(small.unwrap().is_ok());
        }
        drop(one);
        // Whoever had none goes before whoever waited longer but has had one.
        assert!(futures::poll!(&mut last).is_ready());
        drop(other);
        let _turn = more[0].as_mut().now_or_never().unwrap().unwrap();
        assert!(futures::poll!(&mut more[1]).is_pending());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_passes_a_large_request_that_waits_and_nobody_waits_for_ever() {
        let memory = RequestMemory::of(TWO);
        let [first, large, late] = [(); 3].map(|()| Arc::clone(&memory).share(Arc::default()));
        let one = first.reserve(Some(8 * MIB)).await.unwrap();
        let since = Instant::now();
        let mut all = Box::pin(large.reserve(Some(REQUEST_BYTES_MAX)));
        assert!(futures::poll!(&mut all).is_pending());
        let mut behind = Box::pin(late.reserve(Some(MIB)));
        assert!(futures::poll!(&mut behind).is_pending());
        let no_room = NoRoom {
            is_others_doing: true,
        };
        assert_eq!(all.await.unwrap_err(), no_room);
        assert_eq!(since.elapsed(), WAIT_LIMIT);
        // Once it has gone, those behind it are let in.
        assert!(behind.await.is_ok());
        // The same for one that hangs up.
        let mut all = Box::pin(large.reserve(Some(REQUEST_BYTES_MAX)));
        let mut behind = Box::pin(late.reserve(Some(MIB)));
        assert!(futures::poll!(&mut all).is_pending());
        assert!(futures::poll!(&mut behind).is_pending());
        drop(all);
        assert!(behind.now_or_never().is_some());
        drop(one);
        let whole = large.reserve(Some(usize::MAX)).await.unwrap();
        assert_eq!(whole.body_bytes, REQUEST_BYTES_MAX);
        // Who has it is told that it stands in its own way.
        let own = large.reserve(Some(8 * MIB)).await.unwrap_err();
        assert!(!own.is_others_doing);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_body_does_not_need_is_given_up_when_it_has_arrived() {
        let memory = RequestMemory::of(TWO);
        let [first, second] = [(); 2].map(|()| Arc::clone(&memory).share(Arc::default()));
        let mut unsaid = first.reserve_more().await.unwrap();
        assert!(second.reserve(Some(8 * MIB)).now_or_never().is_none());
        unsaid.arrived(MIB);
        let other = second.reserve(Some(8 * MIB)).now_or_never().unwrap();
        drop((unsaid, other));
        assert_eq!(memory.large.state().used + memory.small.state().used, 0);
    }
}
