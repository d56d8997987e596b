//! The tools' answers, in the original's format.

use serde_json::{Value, json};

use rollcage_engine::{Engine, RolloutEntry, RolloutLookup};
use rollcage_model::id::RolloutId;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::Task;
use rollcage_model::text::chain;

use crate::server::rollouts::events::{event_value, phase, stored_events};
use crate::server::rollouts::messages::{id_and_status, status};
use crate::server::rollouts::tokens;
use crate::server::tool::{ToolError, ToolOutput};

/// A result of a rollout that did nothing.
pub(crate) fn empty_result(id: RolloutId, task_id: &str, error: String) -> RolloutResult {
    let task = Task {
        id: task_id.to_owned(),
        ..Task::default()
    };
    RolloutResult {
        error: Some(error),
        ..rollcage_engine::result::begin_abandoned(id, task)
    }
}

/// The original's answer if there is nothing to finalize: a result with an error, whose `ended` is null and whose
/// `status` gives the rollout's state.
pub(crate) fn not_finalized(
    id: &str,
    task_id: &str,
    (status, error): (&str, &str),
    exit_code: i32,
) -> Result<ToolOutput, ToolError> {
    let result = empty_result(RolloutId::generate(), task_id, error.to_owned());
    let text =
        tokens::openenv_without_calls(&result).map_err(|error| ToolError::Failed(chain(&error)))?;
    let mut value: Value = serde_json::from_str(&text)
        .map_err(|error| ToolError::Failed(format!("write the answer: {error}")))?;
    value["rollout_id"] = json!(id);
    value["exit_code"] = json!(exit_code);
    value["status"] = json!(status);
    value["ended"] = Value::Null;
    Ok(ToolOutput {
        value: Value::String(value.to_string()),
        finished: None,
    })
}

pub(crate) fn handle(entry: &RolloutEntry) -> Value {
    json!({
        "rollout_id": entry.id,
        "task_id": entry.task_id,
        "group": entry.group,
        "status": "starting",
        "started_at": entry.queued_at,
    })
}

/// The state of a rollout: the original's members first, then ours.
pub(crate) async fn state(engine: &Engine, found: &RolloutLookup) -> Value {
    let entry = match found {
        RolloutLookup::InMemory(entry) => entry,
        RolloutLookup::Stored(summary) => {
            let result = engine.stored(summary.row.rollout_id).await.ok();
            let status = if summary.is_ended() {
                "done"
            } else {
                "running"
            };
            return json!({
                "rollout_id": summary.row.rollout_id, "task_id": summary.row.task_id, "status": status,
                "serve_session_id": result.as_ref().and_then(|result| result.serve_session_id.clone()),
                "proxy_turns_so_far": summary.row.calls,
                "error": result.map_or_else(|| summary.row.error.clone(), |result| result.error.clone()),
                "started_at": summary.row.started_at,
                "finished_at": summary.is_ended().then_some(summary.row.started_at + summary.row.wall_s),
                "ended": summary.row.ended, "reward": summary.row.reward,
            });
        }
    };
    let standing = entry.feed.status();
    let result = match entry.is_ended() {
        true => engine.wait(entry).await.ok(),
        false => None,
    };
    json!({
        "rollout_id": entry.id,
        "task_id": entry.task_id,
        "status": status(entry),
        "serve_session_id": standing.serve_session_id,
        "proxy_turns_so_far": standing.calls,
        "error": result.as_ref().and_then(|result| result.error.clone()).or(standing.turn_error),
        "started_at": entry.queued_at,
        "finished_at": standing.finished_at.or(standing.kept_at).or(standing.idle_at),
        "phase": phase(entry),
        "driver": entry.driver,
        "prompt_tokens": standing.prompt_tokens,
        "completion_tokens": standing.completion_tokens,
        "ended": result.as_ref().map(|result| result.ended),
        "reward": result.as_ref().and_then(|result| result.reward),
    })
}

pub(crate) async fn events(
    engine: &Engine,
    found: &RolloutLookup,
    after: u64,
) -> Result<Value, String> {
    let (id, status) = id_and_status(found);
    let told = match found {
        RolloutLookup::InMemory(entry) => entry.feed.after(after),
        RolloutLookup::Stored(_) => stored_events(engine, id).await?,
    };
    let events: Vec<Value> = told
        .iter()
        .filter(|told| told.seq > after)
        .map(event_value)
        .collect();
    let last = told.last().map_or(after, |told| told.seq);
    Ok(json!({
        "rollout_id": id, "status": status, "events_url": format!("/v1/rollouts/{id}/events"),
        "last_event_id": last, "events": events,
    }))
}
