//! The scripts of an endpoint by key, and the progress of each drill.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::Script;
use super::drill::{self, Conversation, Drill, PlayedPart};
use super::log::Log;
use super::player::{PlayError, Reply};
use super::request::ChatRequest;

#[derive(Debug)]
pub(super) struct Scripts {
    scripts: RwLock<HashMap<String, Arc<Script>>>,
    default_script: Option<Arc<Script>>,
    /// The position in each conversation of a drill.
    places: Mutex<HashMap<(String, Conversation), usize>>,
    /// Receives a copy of every answer.
    pub(super) log: Option<Arc<Log>>,
}

impl Scripts {
    pub(super) fn new(default_script: Option<Script>, log: Option<Arc<Log>>) -> Self {
        Scripts {
            scripts: RwLock::default(),
            default_script: default_script.map(Arc::new),
            places: Mutex::default(),
            log,
        }
    }

    pub(super) fn add(&self, key: String, script: Script) {
        let mut scripts = self.scripts.write().unwrap_or_else(PoisonError::into_inner);
        scripts.insert(key, Arc::new(script));
    }

    pub(super) fn forget(&self, key: &str) {
        let mut scripts = self.scripts.write().unwrap_or_else(PoisonError::into_inner);
        scripts.remove(key);
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.retain(|(owner, _), _| owner != key);
    }

    /// The next reply of a key's drill.
    pub(super) fn next_of_drill(
        &self,
        key: &str,
        request: &ChatRequest,
        drill: (&Drill, &str),
    ) -> Result<(Reply, PlayedPart), PlayError> {
        let conversation = drill::conversation(request);
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.entry((key.to_owned(), conversation)).or_default();
        let (reply, played, next) = drill::next(request, drill, conversation, *place)?;
        if conversation != Conversation::Aside {
            *place = next;
        }
        Ok((reply, played))
    }

    /// The script for a key.
    pub(super) fn script(&self, key: &str) -> Option<Arc<Script>> {
        let scripts = self.scripts.read().unwrap_or_else(PoisonError::into_inner);
        let script = scripts.get(key).or(self.default_script.as_ref())?;
        Some(Arc::clone(script))
    }
}
