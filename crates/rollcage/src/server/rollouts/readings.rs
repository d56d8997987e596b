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

use tokio::sync::{OwnedMutexGuard, Semaphore};

use rollcage_engine::RolloutLookup;
use rollcage_engine::store::{Store, StoreError};
use rollcage_model::browse::Reading;
use rollcage_model::id::RolloutId;
use rollcage_model::record::RolloutResult;
use rollcage_model::trace::Facts;

use super::backend::Backend;
use super::error::ViewError;
use super::view::{EXCHANGES_BYTES_MAX, id_of};

/// How many records are kept, and how long they may be together. The last one that was asked for is kept in any case.
const KEPT_MAX: usize = 32;
const KEPT_BYTES_MAX: usize = 256 << 20;
/// Records that are read at the same time.
const READERS: usize = 2;
/// A record that runs is not read again before this many times as long as it took have passed.
const REST: u32 = 2;

pub(super) struct Readings {
    kept: Mutex<Kept>,
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
            kept: Mutex::default(),
            readers: Arc::new(Semaphore::new(READERS)),
        }
    }
}

/// A record to be read.
struct Wanted {
    store: Store,
    id: RolloutId,
    /// Once it has ended.
    result: Option<Arc<RolloutResult>>,
}

impl Backend {
    /// The record of a rollout as it is now, and the result of one that has ended.
    pub(crate) async fn reading(
        &self,
        found: &RolloutLookup,
    ) -> Result<(Arc<Reading>, Option<Arc<RolloutResult>>), ViewError> {
        let result = self.result_of(found).await?;
        let wanted = Wanted {
            store: self.engine.store().clone(),
            id: id_of(found),
            result: result.clone(),
        };
        Ok((self.readings.get(wanted).await?, result))
    }
}

impl Readings {
    async fn get(&self, wanted: Wanted) -> Result<Arc<Reading>, ViewError> {
        let id = wanted.id;
        let mut latest = self.place(id).lock_owned().await;
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
        let permit = Arc::clone(&self.readers).acquire_owned().await;
        // The lock goes along: a client that hangs up does not let a second reader in.
        let reading = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            read(&wanted, latest)
        });
        let reading = reading.await??;
        self.trim(id, reading.record_bytes());
        Ok(reading)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, id: RolloutId) -> Arc<tokio::sync::Mutex<Option<Latest>>> {
        let mut kept = self.kept();
        kept.clock += 1;
        let clock = kept.clock;
        let place = kept.places.entry(id).or_insert_with(|| Place {
            last_use: clock,
            bytes: 0,
            latest: Arc::default(),
        });
        place.last_use = clock;
        Arc::clone(&place.latest)
    }

    /// Forgets what was not asked for the longest.
    fn trim(&self, id: RolloutId, bytes: usize) {
        let mut kept = self.kept();
        if let Some(place) = kept.places.get_mut(&id) {
            place.bytes = bytes;
        }
        loop {
            let sum: usize = kept.places.values().map(|place| place.bytes).sum();
            if kept.places.len() <= KEPT_MAX && sum <= KEPT_BYTES_MAX {
                break;
            }
            let others = kept.places.iter().filter(|(other, _)| **other != id);
            let oldest = others.min_by_key(|(_, place)| place.last_use);
            let Some(oldest) = oldest.map(|(id, _)| *id) else {
                break;
            };
            kept.places.remove(&oldest);
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
