//! Counts what each client holds at once, and says no above a limit.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// How many of something each client holds.
pub(crate) struct Tally<K> {
    counts: Arc<Mutex<HashMap<K, usize>>>,
    max: usize,
}

/// One of them; given back when dropped.
pub(crate) struct Slot<K: Eq + Hash> {
    counts: Arc<Mutex<HashMap<K, usize>>>,
    key: K,
}

impl<K: Eq + Hash + Clone> Tally<K> {
    pub(crate) fn new(max: usize) -> Self {
        Tally {
            counts: Arc::default(),
            max,
        }
    }

    /// One more for this client, unless it holds all it may.
    pub(crate) fn take(&self, key: &K) -> Option<Slot<K>> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(key.clone()).or_insert(0);
        if *count >= self.max {
            return None;
        }
        *count += 1;
        Some(Slot {
            counts: Arc::clone(&self.counts),
            key: key.clone(),
        })
    }
}

impl<K: Eq + Hash> Drop for Slot<K> {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            // A client that left is forgotten, so the map is as large as the crowd of the moment.
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_cannot_use_up_what_others_need() {
        let tally = Tally::new(2);
        let first = tally.take(&"a").unwrap();
        let _second = tally.take(&"a").unwrap();
        assert!(tally.take(&"a").is_none());
        assert!(tally.take(&"b").is_some());
        drop(first);
        assert!(tally.take(&"a").is_some());
    }

    #[test]
    fn who_left_is_forgotten() {
        let tally = Tally::new(1);
        drop(tally.take(&"a"));
        assert!(tally.counts.lock().unwrap().is_empty());
    }
}
