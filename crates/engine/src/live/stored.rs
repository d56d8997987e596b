//! The agents of a home, read without an engine.

use std::path::Path;

use super::disk::LiveDirectory;
use super::{LiveState, LiveView};

/// Every agent of a home, the newest first. Where no process holds one any more, its state is stopped, and its open turns
/// have ended as interrupted.
pub fn stored(home: &Path) -> Vec<LiveView> {
    let mut views = Vec::new();
    for (_, directory) in LiveDirectory::all(home) {
        let Some(mut stored) = directory.read() else {
            continue;
        };
        let is_over = matches!(stored.view.state, LiveState::Stopped | LiveState::Failed);
        // Only then, since whoever starts it takes the lock as well.
        if !is_over && let Ok(Some(_lock)) = directory.lock() {
            stored.view.state = LiveState::Stopped;
            stored.view.open_turns = 0;
            let closed = directory.interrupt_turns();
            if let Err(error) = closed.and_then(|()| directory.write(&stored)) {
                let error = rollcage_model::text::chain(&error);
                tracing::warn!(error, "a live agent of a killed process is not closed");
            }
        }
        views.push(stored.view);
    }
    views
}
