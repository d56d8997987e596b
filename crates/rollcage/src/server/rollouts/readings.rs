//! Records that somebody looks at, kept as they were read.
//!
//! To read a record of 2,000 calls takes seconds, and a page asks for it many times. One that has ended is read once. One
//! that runs is read again when its file grew, by one task at a time and for a third of the time at most, so that a page
//! that keeps asking cannot pile up work.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use rollcage_engine::store::{Store, StoreError};
use rollcage_model::browse::Reading;
use rollcage_model::id::RolloutId;
use rollcage_model::record::RolloutResult;
use rollcage_model::trace::Facts;

use super::error::ViewError;

/// Longer records are not read for somebody to look at.
pub(super) const EXCHANGES_BYTES_MAX: u64 = 512 << 20;
/// How many records are kept, and how much memory they may take together. The last one that was asked for is kept in any
/// case.
const KEPT_MAX: usize = 32;
const KEPT_BYTES_MAX: usize = 512 << 20;
/// One that takes more is not shown: an agent that sends ever new long messages fills more memory than its record is long.
const READING_BYTES_MAX: usize = 2 << 30;
/// How long a request waits for its turn to read.
const WAIT: Duration = Duration::from_secs(60);
/// Records that are read at the same time.
const READERS: usize = 2;
/// A record that runs is not read again before this many times as long as it took have passed.
const REST: u32 = 2;

pub(super) struct Readings {
    kept: Arc<Mutex<Kept>>,
    readers: Arc<Semaphore>,
}

#[derive(Default)]
struct Kept {
    places: HashMap<RolloutId, Place>,
    /// Counts requests.
    clock: u64,
}

struct Place {
    last_use: u64,
    bytes: usize,
    /// Held while the record is read.
    latest: Arc<tokio::sync::Mutex<Option<Latest>>>,
}

struct Latest {
    reading: Arc<Reading>,
    is_ended: bool,
    read_at: Instant,
    took: Duration,
}

impl Latest {
    fn is_current(&self, bytes: u64, is_ended: bool) -> bool {
        let is_whole = u64::try_from(self.reading.record_bytes()) == Ok(bytes);
        is_whole && self.is_ended == is_ended
    }
}

impl Default for Readings {
    fn default() -> Self {
        Readings {
            kept: Arc::default(),
            readers: Arc::new(Semaphore::new(READERS)),
        }
    }
}

/// A record to be read.
pub(super) struct Wanted {
    pub(super) store: Store,
    pub(super) id: RolloutId,
    /// Once it has ended.
    pub(super) result: Option<Arc<RolloutResult>>,
}

impl Readings {
    /// The record as it is now.
    pub(super) async fn get(&self, wanted: Wanted) -> Result<Arc<Reading>, ViewError> {
        let id = wanted.id;
        let place = lock(&self.kept).place(id);
        let latest = tokio::time::timeout(WAIT, place.lock_owned()).await;
        let mut latest = latest.map_err(|_| ViewError::Busy)?;
        let is_ended = wanted.result.is_some();
        let bytes = length(&wanted.store.exchanges(id)).await?;
        if bytes > EXCHANGES_BYTES_MAX {
            return Err(ViewError::TooLarge);
        }
        if let Some(latest) = &*latest {
            if latest.is_current(bytes, is_ended) {
                return Ok(Arc::clone(&latest.reading));
            }
            if !is_ended {
                tokio::time::sleep_until((latest.read_at + latest.took * REST).into()).await;
            }
        }
        // What is out of date is not kept beside what is read.
        *latest = None;
        let permit = self.permit().await?;
        let kept = Arc::clone(&self.kept);
        // The lock goes along: a client that hangs up does not let a second reader in. What it asked for is counted all
        // the same.
        let reading = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let reading = read(&wanted, latest)?;
            let bytes = reading.held_bytes();
            if bytes > READING_BYTES_MAX {
                lock(&kept).places.remove(&id);
                return Err(ViewError::TooLarge);
            }
            lock(&kept).count(id, bytes);
            Ok(reading)
        });
        reading.await?
    }

    /// Lets so many work through whole records at the same time.
    pub(super) async fn permit(&self) -> Result<OwnedSemaphorePermit, ViewError> {
        let permit = Arc::clone(&self.readers).acquire_owned();
        let permit = tokio::time::timeout(WAIT, permit).await;
        permit.ok().and_then(Result::ok).ok_or(ViewError::Busy)
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    fn place(&mut self, id: RolloutId) -> Arc<tokio::sync::Mutex<Option<Latest>>> {
        self.clock += 1;
        let clock = self.clock;
        let place = self.places.entry(id).or_insert_with(|| Place {
            last_use: clock,
            bytes: 0,
            latest: Arc::default(),
        });
        place.last_use = clock;
        let latest = Arc::clone(&place.latest);
        self.trim(id);
        latest
    }

    fn count(&mut self, id: RolloutId, bytes: usize) {
        if let Some(place) = self.places.get_mut(&id) {
            place.bytes = bytes;
        }
        self.trim(id);
    }

    /// Forgets what was not asked for the longest, but for this one.
    fn trim(&mut self, id: RolloutId) {
        loop {
            let sum: usize = self.places.values().map(|place| place.bytes).sum();
            if self.places.len() <= KEPT_MAX && sum <= KEPT_BYTES_MAX {
                break;
            }
            let others = self.places.iter().filter(|(other, _)| **other != id);
            let oldest = others.min_by_key(|(_, place)| place.last_use);
            let Some(oldest) = oldest.map(|(id, _)| *id) else {
                break;
            };
            self.places.remove(&oldest);
        }
    }
}

/// A rollout whose proxy has not opened has no file.
async fn length(path: &Path) -> Result<u64, ViewError> {
    match tokio::fs::metadata(path).await {
        Ok(metadata) => Ok(metadata.len()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        Err(source) => Err(unreadable(path, source)),
    }
}

fn unreadable(path: &Path, source: io::Error) -> ViewError {
    let path = path.to_owned();
    ViewError::Store(StoreError::Read { path, source })
}

fn read(
    wanted: &Wanted,
    mut latest: OwnedMutexGuard<Option<Latest>>,
) -> Result<Arc<Reading>, ViewError> {
    let started = Instant::now();
    let facts = match &wanted.result {
        Some(result) => Facts::from(&**result),
        None => wanted.store.facts(wanted.id)?,
    };
    let path = wanted.store.exchanges(wanted.id);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        Err(source) => return Err(unreadable(&path, source)),
    };
    let is_ended = wanted.result.is_some();
    let reading = Arc::new(Reading::new(bytes.into(), &facts, !is_ended));
    *latest = Some(Latest {
        reading: Arc::clone(&reading),
        is_ended,
        read_at: Instant::now(),
        took: started.elapsed(),
    });
    Ok(reading)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rollcage_model::exchange::{Encoder, Line, Request, Response};

    use super::*;

    fn frames(encoder: &mut Encoder, exchange: u64, is_answered: bool) -> Vec<u8> {
        let request = Line::Request(Request {
            exchange,
            body: r#"{"messages":[{"role":"user","content":"hi"}]}"#.into(),
            ..Request::default()
        });
        let response = Line::Response(Response {
            exchange,
            status: Some(200),
            body: r#"{"choices":[{"finish_reason":"stop","message":{"content":"ho"}}]}"#.into(),
            ..Response::default()
        });
        let mut bytes = Vec::new();
        let lines = [Some(request), is_answered.then_some(response)];
        for line in lines.into_iter().flatten() {
            let frame = encoder.earlier(&line).frame(line).unwrap();
            bytes.extend(encoder.encode(frame).unwrap().0);
        }
        bytes
    }

    fn wanted(store: &Store, id: RolloutId) -> Wanted {
        Wanted {
            store: store.clone(),
            id,
            result: None,
        }
    }

    fn place(store: &Store, id: RolloutId, bytes: &[u8]) {
        fs::create_dir_all(store.directory(id)).unwrap();
        fs::write(store.exchanges(id), bytes).unwrap();
    }

    #[tokio::test]
    async fn a_record_is_read_again_once_it_grew() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        let id = RolloutId::generate();
        let readings = Readings::default();
        let before = readings.get(wanted(&store, id)).await.unwrap();
        assert_eq!(before.n_turns(), 0);
        let mut encoder = Encoder::default();
        let mut bytes = frames(&mut encoder, 1, true);
        place(&store, id, &bytes);
        let first = readings.get(wanted(&store, id)).await.unwrap();
        let again = readings.get(wanted(&store, id)).await.unwrap();
        assert!(first.n_turns() == 1 && Arc::ptr_eq(&first, &again));
        bytes.extend(frames(&mut encoder, 2, false));
        place(&store, id, &bytes);
        let grown = readings.get(wanted(&store, id)).await.unwrap();
        assert_eq!(grown.turns(1, 1).turns[0].role, "pending");
    }

    #[tokio::test]
    async fn readers_of_one_record_share_what_the_first_one_read() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        let id = RolloutId::generate();
        place(&store, id, &frames(&mut Encoder::default(), 1, true));
        let readings = Readings::default();
        let asked = (0..20).map(|_| readings.get(wanted(&store, id)));
        let read = futures::future::join_all(asked).await;
        let read: Vec<_> = read.into_iter().map(Result::unwrap).collect();
        assert!(read.iter().all(|one| Arc::ptr_eq(one, &read[0])));
    }

    #[tokio::test]
    async fn what_was_not_asked_for_the_longest_is_forgotten() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        let readings = Readings::default();
        let bytes = frames(&mut Encoder::default(), 1, true);
        let ids: Vec<_> = (0..=KEPT_MAX).map(|_| RolloutId::generate()).collect();
        for id in &ids {
            place(&store, *id, &bytes);
            readings.get(wanted(&store, *id)).await.unwrap();
        }
        let kept = lock(&readings.kept);
        assert_eq!(kept.places.len(), KEPT_MAX);
        assert!(!kept.places.contains_key(&ids[0]) && kept.places.contains_key(&ids[KEPT_MAX]));
    }

    #[tokio::test]
    async fn what_a_client_asked_for_that_hung_up_is_counted() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        let id = RolloutId::generate();
        place(&store, id, &frames(&mut Encoder::default(), 1, true));
        let readings = Readings::default();
        // The thread is started and nobody waits for it.
        let mut asked = Box::pin(readings.get(wanted(&store, id)));
        while futures::poll!(&mut asked).is_pending()
            && readings.readers.available_permits() == READERS
        {
            tokio::task::yield_now().await;
        }
        drop(asked);
        let _ended = readings.readers.acquire_many(READERS as u32).await.unwrap();
        let kept = lock(&readings.kept);
        assert!(kept.places[&id].bytes > 0);
    }

    #[test]
    fn long_records_leave_room_for_one() {
        let readings = Readings::default();
        let ids = [RolloutId::generate(), RolloutId::generate()];
        for id in ids {
            let mut kept = lock(&readings.kept);
            kept.place(id);
            kept.count(id, KEPT_BYTES_MAX);
        }
        let kept = lock(&readings.kept);
        assert_eq!(kept.places.keys().collect::<Vec<_>>(), [&ids[1]]);
    }
}
