//! Lists of rollouts, with filters and pages, and the list of tasks.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use serde_json::{Value, json};

use rollcage_engine::store::Summary;
use rollcage_engine::{EndedFilter, Filter};

use super::error::ApiError;
use super::{BackendState, OwnerName};
use crate::server::rollouts::catalogue::{self, TaskList};

const LIMIT: usize = 50;
pub(super) const LIMIT_MAX: usize = 500;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ListQuery {
    task: Option<String>,
    agent: Option<String>,
    model: Option<String>,
    ended: Option<String>,
    since: Option<String>,
    cursor: Option<String>,
    limit: Option<usize>,
}

pub(super) async fn list(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    wanted: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let Query(wanted) = wanted.map_err(|rejection| ApiError::bad(rejection.body_text()))?;
    let filter = wanted.filter()?;
    let page = backend.engine.list(&owner, filter).await?;
    let status = |summary: &Summary| match summary.ended {
        Some(_) => "ended",
        None if backend.engine.is_waiting(summary.rollout_id) => "queued",
        None => "running",
    };
    let rows: Vec<_> = page
        .rollouts
        .iter()
        .map(|summary| row(summary, status(summary)))
        .collect();
    Ok(Json(json!({"rollouts": rows, "next_cursor": page.next})))
}

impl ListQuery {
    fn filter(self) -> Result<Filter, ApiError> {
        let limit = self.limit.unwrap_or(LIMIT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(ApiError::bad(format!(
                "`limit` must be between 1 and {LIMIT_MAX}"
            )));
        }
        let before = self.cursor.map(|cursor| cursor.parse()).transpose();
        let before = before
            .map_err(|_| ApiError::bad("`cursor` must be the `next_cursor` of an earlier page"))?;
        Ok(Filter {
            task: self.task,
            agent: self.agent,
            model: self.model,
            ended: self.ended.as_deref().map(ended_of).transpose()?,
            since: self.since.as_deref().map(since_of).transpose()?,
            before,
            limit,
        })
    }
}

fn ended_of(text: &str) -> Result<EndedFilter, ApiError> {
    if text == "running" {
        return Ok(EndedFilter::Not);
    }
    let parsed = serde_json::from_value(Value::String(text.to_owned()));
    parsed.map(EndedFilter::As).map_err(|_| {
        ApiError::bad(
            "`ended` must be `running` or a way to end, such as `completed` or `timed_out`",
        )
    })
}

/// Unix seconds, or a time such as 2026-05-01T12:00:00Z.
fn since_of(text: &str) -> Result<f64, ApiError> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    let time = || {
        let time = text.parse::<jiff::Timestamp>().ok()?;
        Some(time.as_millisecond() as f64 / 1000.0)
    };
    number.or_else(time).ok_or_else(|| {
        ApiError::bad("`since` must be Unix seconds or a time such as 2026-05-01T12:00:00Z")
    })
}

fn row(summary: &Summary, status: &str) -> Value {
    json!({
        "rollout_id": summary.rollout_id,
        "status": status,
        "ended": summary.ended,
        "task_id": summary.task_id,
        "group": summary.group,
        "agent": summary.agent,
        "model": summary.model,
        "reward": summary.reward,
        "calls": summary.calls,
        "wall_s": summary.wall_s,
        "started_at": summary.started_at,
    })
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TasksQuery {
    split: Option<String>,
    start: Option<usize>,
    stop: Option<usize>,
}

pub(super) async fn tasks(
    State(backend): BackendState,
    wanted: Result<Query<TasksQuery>, QueryRejection>,
) -> Result<Json<TaskList>, ApiError> {
    let Query(wanted) = wanted.map_err(|rejection| ApiError::bad(rejection.body_text()))?;
    let tasks = &backend.context.tasks;
    let start = wanted.start.unwrap_or(0);
    Ok(Json(catalogue::tasks(
        tasks,
        wanted.split.as_deref(),
        start,
        wanted.stop,
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_numbers_or_written_out() {
        assert_eq!(since_of("1.5").unwrap(), 1.5);
        assert_eq!(since_of("1970-01-01T00:01:00Z").unwrap(), 60.0);
        assert!(since_of("yesterday").is_err() && since_of("nan").is_err());
    }

    #[test]
    fn ends_are_those_of_results() {
        assert_eq!(ended_of("running").unwrap(), EndedFilter::Not);
        let late = EndedFilter::As(rollcage_model::ending::Ended::TimedOut);
        assert_eq!(ended_of("timed_out").unwrap(), late);
        assert!(ended_of("good").is_err());
    }
}
