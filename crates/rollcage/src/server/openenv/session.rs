//! Sessions: each is one environment, attached to at most one socket, and counts towards the server's limit.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::server::tool::FinishedRollout;

/// The state of an environment, as OpenEnv defines it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct State {
    pub(crate) episode_id: String,
    pub(crate) step_count: u64,
    pub(crate) rollouts_completed: u64,
    pub(crate) last_reward: Option<f64>,
    pub(crate) last_task_id: Option<String>,
    pub(crate) last_sandbox_id: Option<String>,
}

impl State {
    fn new(episode_id: Option<String>) -> Self {
        State {
            episode_id: episode_id.unwrap_or_else(|| Uuid::now_v7().to_string()),
            step_count: 0,
            rollouts_completed: 0,
            last_reward: None,
            last_task_id: None,
            last_sandbox_id: None,
        }
    }
}

/// One environment.
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) owner: Arc<str>,
    /// Cancelled when the session is destroyed, which ends its calls.
    pub(crate) ended: CancellationToken,
    inner: Mutex<Inner>,
}

struct Inner {
    state: State,
    /// Counts resets, so that a call that outlived its episode does not change the state of the next one.
    episode: u64,
    active_at: Instant,
    /// The number of calls in progress.
    running: usize,
}

/// A call in progress; its session is not idle while this exists.
pub(crate) struct CallGuard<'a> {
    session: &'a Session,
    episode: u64,
}

impl Session {
    /// A session that is not registered, for calls without one.
    pub(crate) fn temporary(owner: Arc<str>) -> Self {
        Session {
            id: Uuid::now_v7().to_string(),
            owner,
            ended: CancellationToken::new(),
            inner: Mutex::new(Inner {
                state: State::new(None),
                episode: 0,
                active_at: Instant::now(),
                running: 0,
            }),
        }
    }

    pub(crate) fn state(&self) -> State {
        self.inner().state.clone()
    }

    /// Starts a new episode.
    pub(crate) fn reset(&self, episode_id: Option<String>) {
        let mut inner = self.inner();
        inner.episode += 1;
        inner.active_at = Instant::now();
        inner.state = State::new(episode_id);
    }

    /// Counts a step of the episode.
    pub(crate) fn count_step(&self) {
        self.inner().state.step_count += 1;
    }

    pub(crate) fn begin(&self) -> CallGuard<'_> {
        let mut inner = self.inner();
        inner.running += 1;
        inner.active_at = Instant::now();
        let episode = inner.episode;
        drop(inner);
        CallGuard {
            session: self,
            episode,
        }
    }

    fn is_idle(&self, now: Instant, limit: Duration) -> bool {
        let inner = self.inner();
        inner.running == 0 && now.saturating_duration_since(inner.active_at) > limit
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallGuard<'_> {
    /// Stores the rollout that this call finished in the session's state.
    pub(crate) fn finished(&self, rollout: FinishedRollout) {
        let mut inner = self.session.inner();
        if inner.episode != self.episode {
            return;
        }
        let state = &mut inner.state;
        state.rollouts_completed += u64::from(rollout.is_counted);
        state.last_reward = rollout.reward.filter(|reward| reward.is_finite());
        let named = |name: String| Some(name).filter(|name| !name.is_empty());
        state.last_task_id = named(rollout.task_id);
        state.last_sandbox_id = named(rollout.sandbox_id);
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let mut inner = self.session.inner();
        inner.running -= 1;
        inner.active_at = Instant::now();
    }
}

/// Every session of the server.
pub(crate) struct Sessions {
    max: usize,
    /// The number of sessions, for the metrics.
    count: Arc<AtomicUsize>,
    map: Mutex<HashMap<String, SessionEntry>>,
}

struct SessionEntry {
    session: Arc<Session>,
    holder: Holder,
    /// To be destroyed when its socket ends.
    is_closing: bool,
}

/// The socket that holds a session.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    Nobody,
    /// A socket that attached with the session's id; the session outlives it.
    Attached,
    /// The socket that the session was created for.
    Owner,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum SessionError {
    #[error("Server at capacity: {active}/{max} sessions active. Cannot accept new connections.")]
    Full { active: usize, max: usize },
    #[error("Unknown session_id: {0}")]
    Unknown(String),
    #[error("Session {0} already has an attached WebSocket")]
    Busy(String),
}

/// The outcome of closing a session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CloseOutcome {
    Now,
    /// When its socket ends.
    Later,
}

/// A socket's hold on its session, released on drop.
pub(crate) struct SessionHold {
    sessions: Arc<Sessions>,
    session: Arc<Session>,
}

impl SessionHold {
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for SessionHold {
    fn drop(&mut self) {
        let mut map = self.sessions.map();
        let Some(entry) = map.get_mut(&self.session.id) else {
            return;
        };
        if entry.holder == Holder::Owner || entry.is_closing {
            map.remove(&self.session.id);
            self.sessions.update_count(&map);
            self.session.ended.cancel();
        } else {
            entry.holder = Holder::Nobody;
            self.session.inner().active_at = Instant::now();
        }
    }
}

impl Sessions {
    pub(crate) fn new(max: usize, count: Arc<AtomicUsize>) -> Self {
        Sessions {
            max,
            count,
            map: Mutex::default(),
        }
    }

    /// Creates a session that is used by its id.
    pub(crate) fn create(&self, owner: Arc<str>) -> Result<Arc<Session>, SessionError> {
        self.insert(owner, Holder::Nobody)
    }

    /// Creates a session that lives as long as its socket.
    pub(crate) fn open(self: &Arc<Self>, owner: Arc<str>) -> Result<SessionHold, SessionError> {
        let session = self.insert(owner, Holder::Owner)?;
        Ok(SessionHold {
            sessions: Arc::clone(self),
            session,
        })
    }

    /// Attaches a socket to a session.
    pub(crate) fn attach(
        self: &Arc<Self>,
        id: &str,
        owner: &str,
    ) -> Result<SessionHold, SessionError> {
        let mut map = self.map();
        let entry = map
            .get_mut(id)
            .filter(|entry| *entry.session.owner == *owner)
            .ok_or_else(|| SessionError::Unknown(id.to_owned()))?;
        if entry.holder != Holder::Nobody {
            return Err(SessionError::Busy(id.to_owned()));
        }
        entry.holder = Holder::Attached;
        let session = Arc::clone(&entry.session);
        drop(map);
        session.inner().active_at = Instant::now();
        Ok(SessionHold {
            sessions: Arc::clone(self),
            session,
        })
    }

    /// A session by its id. Sessions of other owners are unknown.
    pub(crate) fn find(&self, id: &str, owner: &str) -> Result<Arc<Session>, SessionError> {
        let map = self.map();
        let entry = map
            .get(id)
            .filter(|entry| *entry.session.owner == *owner)
            .ok_or_else(|| SessionError::Unknown(id.to_owned()))?;
        Ok(Arc::clone(&entry.session))
    }

    pub(crate) fn close(&self, id: &str, owner: &str) -> Result<CloseOutcome, SessionError> {
        let mut map = self.map();
        let entry = map
            .get_mut(id)
            .filter(|entry| *entry.session.owner == *owner)
            .ok_or_else(|| SessionError::Unknown(id.to_owned()))?;
        if entry.holder != Holder::Nobody {
            entry.is_closing = true;
            return Ok(CloseOutcome::Later);
        }
        entry.session.ended.cancel();
        map.remove(id);
        self.update_count(&map);
        Ok(CloseOutcome::Now)
    }

    /// Destroys sessions without a socket that have not been used for longer than the limit.
    pub(crate) fn reap(&self, now: Instant, limit: Duration) -> usize {
        let mut map = self.map();
        let before = map.len();
        map.retain(|_, entry| {
            let is_kept = entry.holder != Holder::Nobody || !entry.session.is_idle(now, limit);
            if !is_kept {
                entry.session.ended.cancel();
            }
            is_kept
        });
        self.update_count(&map);
        before - map.len()
    }

    fn update_count(&self, map: &HashMap<String, SessionEntry>) {
        self.count.store(map.len(), Ordering::Relaxed);
    }

    fn insert(&self, owner: Arc<str>, holder: Holder) -> Result<Arc<Session>, SessionError> {
        let mut map = self.map();
        if map.len() >= self.max {
            return Err(SessionError::Full {
                active: map.len(),
                max: self.max,
            });
        }
        let session = Arc::new(Session::temporary(owner));
        let entry = SessionEntry {
            session: Arc::clone(&session),
            holder,
            is_closing: false,
        };
        map.insert(session.id.clone(), entry);
        self.update_count(&map);
        Ok(session)
    }

    fn map(&self) -> MutexGuard<'_, HashMap<String, SessionEntry>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
