//! What lists show of a rollout. `summary.json` of an ended rollout holds it, so that no list reads whole results.

use std::fs;
use std::io;

use serde::{Deserialize, Serialize};

use rollcage_model::browse::rollout::{RolloutRow, Status, Verdict};
use rollcage_model::id::RolloutId;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::Task;

use super::{OWNER, StartInfo, Store, StoreError};

/// Longer errors are cut: lists hold many, and the result has the whole text.
const ERROR_CHARS_MAX: usize = 500;
/// The error of a rollout that was committed with a result that means nothing to this program.
const UNREADABLE: &str =
    "its result cannot be read: the file is damaged, or of another version of rollcage";

/// One rollout in a list, and whose it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    #[serde(flatten)]
    pub row: RolloutRow,
    /// The client of a server that requested it; `None` for a rollout run on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl Summary {
    /// Of a rollout that has ended.
    pub(crate) fn of(result: &RolloutResult, owner: Option<String>) -> Self {
        let row = RolloutRow {
            rollout_id: result.rollout_id,
            status: Status::Ended,
            phase: None,
            ended: Some(result.ended),
            verdict: Verdict::of(result.reward, result.reward_valid),
            reward: result.reward,
            reward_valid: result.reward_valid,
            task_id: result.task_id.clone(),
            group: result.group.clone(),
            labels: result.labels.clone(),
            agent: result.agent.name.clone(),
            driver: result.driver,
            model: result.endpoint.model.clone(),
            endpoint: result.endpoint.kind.clone(),
            calls: result.usage.calls,
            prompt_tokens: result.usage.prompt_tokens,
            completion_tokens: result.usage.completion_tokens,
            trainable_tokens: result.usage.trainable_tokens,
            cost_usd: result.budget.spent.usd,
            wall_s: result.wall_s,
            started_at: result.started_at,
            error: result.error.as_deref().map(cut),
            rollout_type: Some(result.rollout_type),
            capture_level: Some(result.capture_level),
            idle: false,
        };
        Summary { row, owner }
    }

    /// Whether it has a result, readable or not.
    pub fn is_ended(&self) -> bool {
        self.row.status == Status::Ended
    }

    /// Whether it has ended in a way that is not known, since its result cannot be read.
    pub(super) fn is_unreadable(&self) -> bool {
        self.is_ended() && self.row.ended.is_none()
    }
}

fn cut(error: &str) -> String {
    match error.char_indices().nth(ERROR_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &error[..end]),
        None => error.to_owned(),
    }
}

impl Store {
    /// What a list shows of a rollout, read from its directory. `None` when there is no such record, and when it cannot be
    /// told whose it is.
    pub fn summary(&self, id: RolloutId) -> Option<Summary> {
        let path = self.directory(id);
        let stored = fs::read(path.join("summary.json")).ok();
        // Older versions wrote fewer members. Instead of guessing the others, the result is read.
        let stored = stored.and_then(|text| serde_json::from_slice(&text).ok());
        if stored.is_some() {
            return stored;
        }
        let owner = match self.owner(id) {
            Ok(owner) => owner,
            Err(StoreError::Unknown(_)) => return None,
            Err(error) => {
                warn_hidden(&error);
                return None;
            }
        };
        Some(match self.result(id) {
            Ok(result) => Summary::of(&result, owner),
            Err(StoreError::Format { .. }) => Summary {
                row: RolloutRow {
                    status: Status::Ended,
                    verdict: Verdict::Invalid,
                    error: Some(UNREADABLE.to_owned()),
                    ..self.unfinished(id)
                },
                owner,
            },
            Err(_) => Summary {
                row: self.unfinished(id),
                owner,
            },
        })
    }

    /// Whether the rollout's result was written.
    pub(crate) fn is_committed(&self, id: RolloutId) -> bool {
        self.directory(id).join("result.json").exists()
    }

    /// A rollout without a result: another process runs it, or was killed. How far it got is not known here.
    fn unfinished(&self, id: RolloutId) -> RolloutRow {
        let path = self.directory(id);
        let task: Option<Task> = fs::read(path.join("task.json"))
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok());
        let task = task.unwrap_or_default();
        let start = StartInfo::read(&path).unwrap_or_default();
        let started_at = id.unix_seconds();
        let now = rollcage_proxy::clock::now();
        RolloutRow {
            rollout_id: id,
            status: Status::Running,
            phase: None,
            ended: None,
            verdict: Verdict::Open,
            reward: None,
            reward_valid: false,
            task_id: task.id,
            group: start.group,
            labels: start.labels,
            agent: start.agent.name,
            driver: task.driver.unwrap_or_default(),
            model: start.endpoint.model,
            endpoint: start.endpoint.kind,
            calls: 0,
            prompt_tokens: 0,
            completion_tokens: 0,
            trainable_tokens: 0,
            cost_usd: 0.0,
            wall_s: (now - started_at).max(0.0),
            started_at,
            error: None,
            rollout_type: None,
            capture_level: None,
            idle: false,
        }
    }

    /// Whose a rollout is. Only a record without the file is nobody's in particular: one whose file cannot be read is
    /// somebody's.
    pub(super) fn owner(&self, id: RolloutId) -> Result<Option<String>, StoreError> {
        let path = self.directory(id).join(OWNER);
        match fs::read_to_string(&path) {
            Ok(owner) => Ok(Some(owner)),
            // The file is there before the directory has its name, and gone with it: if the directory is still there, it
            // never had one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match self.directory(id).try_exists() {
                    Ok(true) => Ok(None),
                    Ok(false) => Err(StoreError::Unknown(id.to_string())),
                    Err(source) => Err(StoreError::Read { path, source }),
                }
            }
            Err(source) => Err(StoreError::Read { path, source }),
        }
    }
}

pub(super) fn warn_hidden(error: &StoreError) {
    let error = rollcage_model::text::chain(error);
    tracing::warn!(
        error,
        "a rollout is shown to nobody: it cannot be told whose it is"
    );
}
