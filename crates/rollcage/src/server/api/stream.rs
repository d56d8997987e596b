//! One stream of server-sent events over all rollouts of a caller, since a browser has only six connections to a server.
//!
//! It tells each rollout as lists have it whenever it changes, and the numbered events of the few rollouts that are
//! watched. It is made as it is read: a slow reader gets the latest state of each rollout and the next few events, and
//! nothing is kept for it.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures::future::{pending, select_all};
use futures::stream;
use serde::Serialize;
use tokio::sync::broadcast;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;

use rollcage_engine::feed::NumberedEvent;
use rollcage_engine::{EngineError, IndexTail, Removal, RolloutEntry, RolloutLookup};
use rollcage_model::browse::rollout::RolloutRow;
use rollcage_model::event::What;
use rollcage_model::id::RolloutId;
use rollcage_model::text::chain;

use super::error::ApiError;
use super::parameters::{Parameters, RawQuery};
use super::types::{RemovedRollout, StreamBeat, StreamHello, StreamMessage, WatchedEvent};
use super::{BackendState, OwnerName};
use crate::server::listen::Shutdown;
use crate::server::rollouts::Backend;
use crate::server::rollouts::events::stored_events;

/// Watched rollouts of one stream.
pub(super) const WATCHED_MAX: usize = 8;
/// Between two looks at the rollouts; so often is a changed one told.
const ROW_INTERVAL: Duration = Duration::from_millis(250);
/// So many intervals lie between two looks at what other processes did.
const OTHERS_EVERY: u32 = 8;
/// A silent stream sends a beat so often. It is an event and no comment, as the streams of single rollouts have them: scripts
/// in a browser do not see comments, and could not tell a connection that is half open.
const BEAT: Duration = match cfg!(test) {
    true => Duration::from_millis(100),
    false => Duration::from_secs(15),
};
/// Events of a watched rollout that are taken out of its feed at once.
const EVENTS_AT_ONCE: usize = 64;

pub(super) async fn stream(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    shutdown: Option<Extension<Shutdown>>,
    headers: HeaderMap,
    query: RawQuery,
) -> Result<Response, ApiError> {
    let mut wanted = Parameters::read(query)?;
    let mut places = places_of(&wanted.take_all("watch").join(","))?;
    wanted.finish()?;
    if places.len() > WATCHED_MAX {
        let text = format!("a stream watches at most {WATCHED_MAX} rollouts");
        return Err(ApiError::bad(text));
    }
    // A browser connects again with the address that it had, and with how far it came.
    let resumed = headers.get("last-event-id");
    let resumed = resumed.and_then(|value| places_of(value.to_str().ok()?).ok());
    for (id, seq) in resumed.unwrap_or_default() {
        if let Some(place) = places.get_mut(&id) {
            *place = seq;
        }
    }
    let stopping = shutdown.map(|Extension(shutdown)| shutdown.stopping);
    let teller = Teller::new(backend, owner, stopping.unwrap_or_default(), places).await?;
    let told = stream::unfold(teller, async |mut teller| {
        let event = teller.next().await?;
        Some((Ok::<_, Infallible>(event), teller))
    });
    // Proxies such as nginx would hold back what is told.
    let unbuffered = [("x-accel-buffering", "no")];
    Ok((unbuffered, Sse::new(told)).into_response())
}

/// Rollouts and the last event that was seen of each: `ID:SEQ`, with commas between them.
fn places_of(text: &str) -> Result<HashMap<RolloutId, u64>, ApiError> {
    let places = text.split(',').filter(|place| !place.is_empty());
    places
        .map(|place| {
            let (id, seq) = place.split_once(':').unwrap_or((place, "0"));
            let place = id.parse().ok().zip(seq.parse().ok());
            place.ok_or_else(|| {
                ApiError::bad("`watch` must be ID:SEQ, with the number of the last event seen")
            })
        })
        .collect()
}

/// One reader of the stream.
struct Teller {
    backend: Arc<Backend>,
    owner: String,
    stopping: CancellationToken,
    /// What can be sent at once.
    ready: VecDeque<Event>,
    /// The last event of each rollout in memory when its row was told.
    told: HashMap<RolloutId, u64>,
    /// What the engine's `changes` was then.
    changes: Option<u64>,
    watched: Vec<Watched>,
    removals: broadcast::Receiver<Removal>,
    tick: Interval,
    ticks: u32,
    /// When the next beat is due, unless something is sent before.
    beat_at: Instant,
    /// What other processes do; taken while it is read on another thread.
    others: Option<IndexTail>,
}

struct Watched {
    id: RolloutId,
    seq: u64,
    /// `None` when no events will follow.
    entry: Option<Arc<RolloutEntry>>,
}

impl Teller {
    async fn new(
        backend: Arc<Backend>,
        owner: String,
        stopping: CancellationToken,
        places: HashMap<RolloutId, u64>,
    ) -> Result<Self, ApiError> {
        let mut tick = interval(ROW_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let known = backend.engine.known(&owner);
        let ended = known.iter().filter(|entry| entry.is_ended());
        let mut teller = Teller {
            told: ended
                .map(|entry| (entry.id, entry.feed.last_seq()))
                .collect(),
            changes: None,
            removals: backend.engine.removals(),
            others: Some(backend.engine.tail()),
            backend,
            owner,
            stopping,
            ready: VecDeque::new(),
            watched: Vec::new(),
            tick,
            ticks: 0,
            beat_at: Instant::now() + BEAT,
        };
        teller.hello();
        for (id, seq) in places {
            teller.watch(id, seq).await?;
        }
        Ok(teller)
    }

    /// `None` when the server shuts down.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.beat_at = Instant::now() + BEAT;
                return Some(event);
            }
            tokio::select! {
                () = self.stopping.cancelled() => return None,
                _ = self.tick.tick() => self.look().await,
                removal = self.removals.recv() => self.removed(removal),
                index = next_watched(&self.watched) => self.tell(index),
                () = sleep_until(self.beat_at) => {
                    self.send("beat", &StreamMessage::Beat(StreamBeat {}));
                }
            }
        }
    }

    fn send(&mut self, name: &str, message: &StreamMessage) {
        self.ready.push_back(rendered(name, message));
    }

    fn hello(&mut self) {
        let hello = StreamHello {
            server: self.backend.server_id.to_string(),
            now: rollcage_proxy::clock::now(),
        };
        self.send("hello", &StreamMessage::Hello(hello));
    }

    fn gone(&mut self, rollout_id: RolloutId) {
        let message = StreamMessage::Removed(RemovedRollout { rollout_id });
        self.send("removed", &message);
    }

    async fn watch(&mut self, id: RolloutId, seq: u64) -> Result<(), ApiError> {
        let found = self.backend.engine.find(&self.owner, &id.to_string()).await;
        let entry = match found {
            Ok(RolloutLookup::InMemory(entry)) => Some(entry),
            Ok(RolloutLookup::Stored(_)) => None,
            // It may have been deleted while the reader was away.
            Err(EngineError::Unknown(_)) => {
                self.gone(id);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let is_stored = entry.is_none();
        let index = self.watched.len();
        self.watched.push(Watched { id, seq, entry });
        if is_stored {
            let stored = stored_events(&self.backend.engine, id).await;
            let stored = stored.map_err(ApiError::bad)?.into_iter();
            for event in stored.filter(|event| event.seq > seq) {
                self.tell_one(index, event);
            }
        }
        Ok(())
    }

    /// The next events of a watched rollout.
    fn tell(&mut self, index: usize) {
        let Watched { seq, entry, .. } = &self.watched[index];
        let Some(entry) = entry else { return };
        for event in entry.feed.some_after(*seq, EVENTS_AT_ONCE) {
            self.tell_one(index, event);
        }
    }

    fn tell_one(&mut self, index: usize, NumberedEvent { seq, event }: NumberedEvent) {
        let watched = &mut self.watched[index];
        watched.seq = seq;
        if matches!(event.what, What::Finished { .. }) {
            watched.entry = None;
        }
        let places = self.watched.iter();
        let places: Vec<_> = places
            .map(|watched| format!("{}:{}", watched.id, watched.seq))
            .collect();
        let message = StreamMessage::Event(Box::new(WatchedEvent { seq, event }));
        let rendered = rendered("event", &message).id(places.join(","));
        self.ready.push_back(rendered);
    }

    async fn look(&mut self) {
        // Read before the rollouts are, so that what happens in between is seen the next time.
        let changes = Some(self.backend.engine.changes());
        if self.changes != changes {
            self.changes = changes;
            self.look_at_ours().await;
        }
        self.ticks = self.ticks.wrapping_add(1);
        if self.ticks.is_multiple_of(OTHERS_EVERY) {
            self.look_at_others().await;
        }
    }

    /// Tells the rollouts that changed since the last time.
    async fn look_at_ours(&mut self) {
        let known = self.backend.engine.known(&self.owner);
        let mut changed = Vec::new();
        let mut told = HashMap::with_capacity(known.len());
        for entry in known {
            let seq = entry.feed.last_seq();
            told.insert(entry.id, seq);
            if self.told.get(&entry.id) != Some(&seq) {
                changed.push(entry);
            }
        }
        self.told = told;
        if !changed.is_empty() {
            match self.backend.engine.rows(changed).await {
                Ok(rows) => self.rows(rows),
                Err(error) => self.failed(&error),
            }
        }
    }

    fn rows(&mut self, rows: impl IntoIterator<Item = RolloutRow>) {
        for row in rows {
            self.send("row", &StreamMessage::Row(Box::new(row)));
        }
    }

    /// Tells the rollouts that another process ended.
    async fn look_at_others(&mut self) {
        let Some(mut others) = self.others.take() else {
            return;
        };
        let owner = self.owner.clone();
        let read = tokio::task::spawn_blocking(move || (others.read(&owner), others)).await;
        let Ok((read, others)) = read else { return };
        self.others = Some(others);
        match read {
            Ok(Some(rows)) => {
                let rows: Vec<_> = rows
                    .into_iter()
                    .filter(|row| !self.told.contains_key(&row.rollout_id))
                    .collect();
                self.rows(rows);
            }
            // What is new in it cannot be told: whoever reads this stream reads its lists again.
            Ok(None) => self.hello(),
            Err(error) => self.failed(&error.into()),
        }
    }

    fn removed(&mut self, removal: Result<Removal, broadcast::error::RecvError>) {
        match removal {
            Ok(removal) if removal.owner.as_ref().is_none_or(|own| *own == self.owner) => {
                self.gone(removal.id);
            }
            Ok(_) => {}
            // Some were missed.
            Err(_) => self.hello(),
        }
    }

    fn failed(&self, error: &EngineError) {
        tracing::warn!(error = chain(error), "an event stream misses something");
    }
}

/// Returns when a watched rollout has another event; never when none will.
async fn next_watched(watched: &[Watched]) -> usize {
    let waits: Vec<_> = watched
        .iter()
        .enumerate()
        .filter_map(|(index, watched)| Some((index, watched.seq, watched.entry.as_ref()?)))
        .map(|(index, seq, entry)| {
            Box::pin(async move {
                entry.feed.wait_after(seq).await;
                index
            })
        })
        .collect();
    match waits.is_empty() {
        true => pending().await,
        false => select_all(waits).await.0,
    }
}

fn rendered(name: &str, message: &impl Serialize) -> Event {
    // Only maps with keys that are no texts cannot be written, and there are none.
    let data = serde_json::to_string(message).unwrap_or_default();
    Event::default().event(name).data(data)
}
