//! The sessions of a listener, found by the agent's key.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::session::Session;

/// The sessions of one listener, by key.
#[derive(Default)]
pub struct Sessions {
    by_key: RwLock<HashMap<String, Arc<Session>>>,
}

impl Sessions {
    pub fn of(session: Arc<Session>) -> Arc<Self> {
        let sessions = Sessions::default();
        sessions.add(session);
        Arc::new(sessions)
    }

    /// False if there is already a session with that key.
    pub fn add(&self, session: Arc<Session>) -> bool {
        let mut by_key = self.by_key.write().unwrap_or_else(PoisonError::into_inner);
        match by_key.entry(session.key().to_owned()) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(session);
                true
            }
        }
    }

    pub fn remove(&self, key: &str) -> Option<Arc<Session>> {
        self.by_key
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key)
    }

    /// The lookup is not constant-time, but the map's hash is keyed and session keys are long and random, so its timing
    /// reveals nothing about other keys.
    pub fn find(&self, key: &str) -> Option<Arc<Session>> {
        self.by_key
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)
            .cloned()
    }

    pub fn all(&self) -> Vec<Arc<Session>> {
        self.by_key
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }
}

/// 256 bits from the kernel.
pub fn random_key(prefix: &str) -> std::io::Result<String> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes)?;
    let digits = base16ct::lower::encode_string(&bytes);
    Ok(format!("{prefix}{digits}"))
}
