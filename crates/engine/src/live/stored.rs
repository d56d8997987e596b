//! The agents of a home, read without an engine.

use std::path::Path;

use super::LiveView;
use super::disk::LiveDirectory;

/// Every agent of a home, the newest first. Where no process holds one any more, its state is stopped, and its open turns
/// have ended as interrupted.
pub fn stored(home: &Path) -> Vec<LiveView> {
    let all = LiveDirectory::all(home).into_iter();
    all.filter_map(|(_, directory)| directory.settled())
        .collect()
}
