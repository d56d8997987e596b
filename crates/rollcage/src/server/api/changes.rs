//! What the agent changed in the work directory, and what a rollout tried to reach.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use serde_json::{Value, json};

use rollcage_engine::store::{StartFiles, Store, StoreError};
use rollcage_engine::{EngineError, FILE_CHARS_MAX, FILES_MAX};
use rollcage_model::finding::Code;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::absolute;

use super::error::ApiError;
use super::types::{ChangesPage, FileChange, FileView, NetworkPage};
use super::{BackendState, OwnerName};
use crate::server::rollouts::view::id_of;

/// Files on a page.
pub(super) const CHANGES: usize = 32;
pub(super) const CHANGES_MAX: usize = 128;
/// Attempts on a page.
pub(super) const ATTEMPTS: usize = 200;
pub(super) const ATTEMPTS_MAX: usize = 1000;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PageQuery {
    start: usize,
    limit: Option<usize>,
}

impl PageQuery {
    fn limit(&self, default: usize, most: usize) -> Result<usize, ApiError> {
        let limit = self.limit.unwrap_or(default);
        match (1..=most).contains(&limit) {
            true => Ok(limit),
            false => Err(ApiError::bad(format!(
                "`limit` must be between 1 and {most}"
            ))),
        }
    }
}

pub(super) async fn changes(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
    wanted: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json<ChangesPage>, ApiError> {
    let Query(wanted) = wanted.map_err(|rejection| ApiError::bad(rejection.body_text()))?;
    let limit = wanted.limit(CHANGES, CHANGES_MAX)?;
    let found = backend.engine.find(&owner, &id).await?;
    let result = backend.result_of(&found).await?;
    let result = result.ok_or_else(|| ApiError::from(EngineError::Running(id_of(&found))))?;
    let store = backend.engine.store().clone();
    let read = tokio::task::spawn_blocking(move || {
        let start = store.start_files(result.rollout_id)?;
        Ok::<_, EngineError>(changes_of(&result, start.as_ref()))
    });
    let mut page = read.await.map_err(|error| ApiError::internal(&error))??;
    page.start = wanted.start;
    page.files = page
        .files
        .into_iter()
        .skip(wanted.start)
        .take(limit)
        .collect();
    Ok(Json(page))
}

pub(super) async fn network(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
    wanted: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json<NetworkPage>, ApiError> {
    let Query(wanted) = wanted.map_err(|rejection| ApiError::bad(rejection.body_text()))?;
    let limit = wanted.limit(ATTEMPTS, ATTEMPTS_MAX)?;
    let found = backend.engine.find(&owner, &id).await?;
    // The log is written when the sandbox is closed.
    if backend.result_of(&found).await?.is_none() {
        return Err(ApiError::from(EngineError::Running(id_of(&found))));
    }
    let (store, id) = (backend.engine.store().clone(), id_of(&found));
    let read = tokio::task::spawn_blocking(move || store.network(id).map_err(EngineError::from));
    let attempts = read.await.map_err(|error| ApiError::internal(&error))??;
    Ok(Json(NetworkPage {
        total: attempts.len(),
        start: wanted.start,
        attempts: attempts
            .into_iter()
            .skip(wanted.start)
            .take(limit)
            .collect(),
    }))
}

/// Both as one page each, by what follows the rollout's address.
pub(crate) fn whole_answers(
    store: &Store,
    result: &RolloutResult,
) -> Result<[(&'static str, Value); 2], StoreError> {
    let start = store.start_files(result.rollout_id)?;
    let attempts = store.network(result.rollout_id)?;
    let network = NetworkPage {
        total: attempts.len(),
        start: 0,
        attempts,
    };
    let changes = changes_of(result, start.as_ref());
    Ok([("changes", json!(changes)), ("network", json!(network))])
}

/// All files on one page. Whoever collected files stopped at a limit, so that a missing one may be unknown, and so is one
/// that is missing from a directory that was not looked at whole.
pub(crate) fn changes_of(result: &RolloutResult, start: Option<&StartFiles>) -> ChangesPage {
    // Older records have paths relative to the work directory.
    let texts = result.files.iter();
    let texts: BTreeMap<String, &str> = texts
        .map(|(path, text)| (absolute(path), text.as_str()))
        .collect();
    let extra: BTreeSet<String> = result
        .files_extra
        .iter()
        .map(|path| absolute(path))
        .collect();
    let is_collected = result.timings.collect_s > 0.0;
    // It says so, too, where there was more than was looked at.
    let is_broken = result
        .findings
        .iter()
        .any(|finding| finding.code == Code::FilesNotCollected);
    let end = is_collected.then_some(Side {
        texts,
        extra,
        is_whole: !is_broken,
    });
    let before = start.map(|start| Side {
        texts: start
            .files
            .iter()
            .map(|(path, text)| (path.clone(), text.as_str()))
            .collect(),
        extra: start.files_extra.iter().cloned().collect(),
        is_whole: !start.is_cut,
    });
    let paths: BTreeSet<&String> = [&before, &end]
        .into_iter()
        .flatten()
        .flat_map(|side| side.texts.keys().chain(&side.extra))
        .collect();
    let mut files: Vec<FileView> = paths
        .into_iter()
        .map(|path| view(path, before.as_ref(), end.as_ref()))
        .collect();
    files.sort_by_key(|file| match file.change {
        FileChange::Added | FileChange::Changed | FileChange::Removed => 0,
        FileChange::Unknown => 1,
        FileChange::Same => 2,
    });
    ChangesPage {
        total: files.len(),
        files,
        start: 0,
        has_start: start.is_some(),
    }
}

/// What was collected at one time.
struct Side<'a> {
    texts: BTreeMap<String, &'a str>,
    /// Files that are no text or too large.
    extra: BTreeSet<String>,
    is_whole: bool,
}

/// What is known of a path at one time.
enum Seen<'a> {
    Text(&'a str),
    /// It is there; what it holds is not known.
    There,
    Absent,
    Unknown,
}

impl<'a> Side<'a> {
    fn seen(&self, path: &str) -> Seen<'a> {
        if let Some(text) = self.texts.get(path) {
            return Seen::Text(text);
        }
        if self.extra.contains(path) {
            return Seen::There;
        }
        // Files are collected in the order of their paths, up to a limit.
        let is_before = |last: Option<&String>| last.is_some_and(|last| path < last.as_str());
        let texts = self.texts.len() < FILES_MAX || is_before(self.texts.keys().next_back());
        let extra = self.extra.len() < FILES_MAX || is_before(self.extra.last());
        match self.is_whole && texts && extra {
            true => Seen::Absent,
            false => Seen::Unknown,
        }
    }
}

fn view(path: &str, before: Option<&Side<'_>>, after: Option<&Side<'_>>) -> FileView {
    let before = before.map_or(Seen::Unknown, |side| side.seen(path));
    let after = after.map_or(Seen::Unknown, |side| side.seen(path));
    let change = match (&before, &after) {
        (Seen::Text(before), Seen::Text(after)) if before != after => FileChange::Changed,
        // What was cut off may differ.
        (Seen::Text(before), Seen::Text(_)) if is_cut(before) => FileChange::Unknown,
        (Seen::Text(_), Seen::Text(_)) => FileChange::Same,
        // A text that is none any more, or has become too large; or the other way round.
        (Seen::Text(_), Seen::There) | (Seen::There, Seen::Text(_)) => FileChange::Changed,
        (Seen::Absent, Seen::Text(_) | Seen::There) => FileChange::Added,
        (Seen::Text(_) | Seen::There, Seen::Absent) => FileChange::Removed,
        _ => FileChange::Unknown,
    };
    let text = |seen: &Seen<'_>| match seen {
        Seen::Text(text) => Some((*text).to_owned()),
        Seen::There | Seen::Absent | Seen::Unknown => None,
    };
    let (before, after) = (text(&before), text(&after));
    let is_cut = [&before, &after]
        .into_iter()
        .flatten()
        .any(|text| is_cut(text));
    FileView {
        path: path.to_owned(),
        change,
        is_cut,
        before,
        after,
    }
}

/// A text of exactly this length may have been cut.
fn is_cut(text: &str) -> bool {
    text.chars().count() >= FILE_CHARS_MAX
}

#[cfg(test)]
mod tests {
    use rollcage_engine::result::begin_abandoned;
    use rollcage_model::finding::Finding;
    use rollcage_model::id::RolloutId;
    use rollcage_model::task::Task;

    use super::*;

    fn texts(texts: &[(&str, &str)]) -> BTreeMap<String, String> {
        let texts = texts.iter();
        let texts = texts.map(|(path, text)| (absolute(path), (*text).to_owned()));
        texts.collect()
    }

    fn start(files: BTreeMap<String, String>, extra: &[&str]) -> StartFiles {
        StartFiles {
            files,
            files_extra: extra.iter().map(|path| absolute(path)).collect(),
            is_cut: false,
        }
    }

    fn ended(files: BTreeMap<String, String>, extra: &[&str]) -> RolloutResult {
        let mut result = begin_abandoned(RolloutId::generate(), Task::default());
        result.files = files;
        result.files_extra = extra.iter().map(|path| absolute(path)).collect();
        result.timings.collect_s = 0.001;
        result
    }

    #[track_caller]
    fn check(result: &RolloutResult, start: Option<&StartFiles>, expected: &[(&str, FileChange)]) {
        let page = changes_of(result, start);
        let found: Vec<_> = page
            .files
            .iter()
            .map(|file| (file.path.clone(), file.change))
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(path, change)| (absolute(path), *change))
            .collect();
        assert_eq!(found, expected);
        assert_eq!(page.total, expected.len());
    }

    #[test]
    fn files_are_compared_with_what_setup_left() {
        let before = start(
            texts(&[("a", "1"), ("b", "1"), ("c", "1"), ("was", "text")]),
            &["image"],
        );
        let after = ended(
            texts(&[("a", "1"), ("b", "2"), ("new", "")]),
            &["image", "was", "blob"],
        );
        let expected = [
            ("b", FileChange::Changed),
            ("blob", FileChange::Added),
            ("c", FileChange::Removed),
            ("new", FileChange::Added),
            ("was", FileChange::Changed),
            ("image", FileChange::Unknown),
            ("a", FileChange::Same),
        ];
        check(&after, Some(&before), &expected);
        let page = changes_of(&after, Some(&before));
        let texts = |at: usize| {
            (
                page.files[at].before.as_deref(),
                page.files[at].after.as_deref(),
            )
        };
        assert_eq!(texts(0), (Some("1"), Some("2")));
        assert_eq!(texts(2), (Some("1"), None));
        assert_eq!(texts(3), (None, Some("")));
        assert!(page.has_start);
    }

    #[test]
    fn without_a_start_nothing_is_said_of_changes() {
        let after = ended(texts(&[("a", "1")]), &[]);
        check(&after, None, &[("a", FileChange::Unknown)]);
        assert!(!changes_of(&after, None).has_start);
    }

    #[test]
    fn what_was_not_collected_is_not_called_removed() {
        let before = start(texts(&[("a", "1")]), &[]);
        let mut after = ended(BTreeMap::new(), &[]);
        check(&after, Some(&before), &[("a", FileChange::Removed)]);
        after.timings.collect_s = 0.0;
        check(&after, Some(&before), &[("a", FileChange::Unknown)]);
    }

    #[test]
    fn beyond_a_limit_a_missing_file_is_unknown() {
        let many: Vec<String> = (0..FILES_MAX)
            .map(|number| format!("m{number:02}"))
            .collect();
        let many: Vec<_> = many.iter().map(|path| (path.as_str(), "")).collect();
        let before = start(texts(&[("a", "1"), ("z", "1")]), &[]);
        let page = changes_of(&ended(texts(&many), &[]), Some(&before));
        let change = |path: &str| {
            let path = absolute(path);
            let mut files = page.files.iter();
            files.find(|file| file.path == path).map(|file| file.change)
        };
        assert_eq!(change("a"), Some(FileChange::Removed));
        assert_eq!(change("z"), Some(FileChange::Unknown));
        assert_eq!(change("m07"), Some(FileChange::Added));
    }

    #[test]
    fn where_not_all_was_looked_at_a_missing_file_is_unknown() {
        let (left, right) = (
            ("left", FileChange::Unknown),
            ("right", FileChange::Unknown),
        );
        let mut before = start(texts(&[("both", "1"), ("left", "1")]), &[]);
        let mut after = ended(texts(&[("both", "2"), ("right", "1")]), &[]);
        let both = ("both", FileChange::Changed);
        before.is_cut = true;
        let removed = ("left", FileChange::Removed);
        check(&after, Some(&before), &[both, removed, right]);
        let cut = Finding::info(Code::FilesNotCollected, String::new());
        after.findings.push(cut);
        check(&after, Some(&before), &[both, left, right]);
        before.is_cut = false;
        let added = ("right", FileChange::Added);
        check(&after, Some(&before), &[both, added, left]);
    }

    #[test]
    fn the_same_beginning_of_a_long_text_proves_nothing() {
        let long = "x".repeat(FILE_CHARS_MAX);
        let before = start(texts(&[("a", &long)]), &[]);
        let after = ended(texts(&[("a", &long)]), &[]);
        check(&after, Some(&before), &[("a", FileChange::Unknown)]);
        assert!(changes_of(&after, Some(&before)).files[0].is_cut);
    }
}
