//! Limits how many of something each client may hold at once.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// The number of things that each client holds, and the limit.
pub(crate) struct ClientLimit<K> {
    counts: Arc<Mutex<HashMap<K, usize>>>,
    max: usize,
}

/// One held thing; released on drop.
pub(crate) struct ClientSlot<K: Eq + Hash> {
    counts: Arc<Mutex<HashMap<K, usize>>>,
    key: K,
}

impl<K: Eq + Hash + Clone> ClientLimit<K> {
    pub(crate) fn new(max: usize) -> Self {
        ClientLimit {
            counts: Arc::default(),
            max,
        }
    }

    /// One more for this client, or `None` at the limit.
    pub(crate) fn take(&self, key: &K) -> Option<ClientSlot<K>> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(key.clone()).or_insert(0);
        if *count >= self.max {
            return None;
        }
        *count += 1;
        Some(ClientSlot {
            counts: Arc::clone(&self.counts),
            key: key.clone(),
        })
    }
}

impl<K: Eq + Hash> Drop for ClientSlot<K> {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            // Clients that hold nothing are removed, so the map is only as large as the number of active clients.
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
        let limit = ClientLimit::new(2);
        let first = limit.take(&"a").unwrap();
        let _second = limit.take(&"a").unwrap();
        assert!(limit.take(&"a").is_none());
        assert!(limit.take(&"b").is_some());
        drop(first);
        assert!(limit.take(&"a").is_some());
    }

    #[test]
    fn a_client_that_holds_nothing_is_forgotten() {
        let limit = ClientLimit::new(1);
        drop(limit.take(&"a"));
        assert!(limit.counts.lock().unwrap().is_empty());
    }
}
