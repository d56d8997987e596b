//! Turns of a live agent: say something, follow the replies, abort, answer what the agent asks.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::Deserialize;
use serde_json::Value;

use rollcage_engine::live::{LiveTurn, TurnInput};
use rollcage_model::live::{Reply, ReplyKind};

use super::{find, json_body};
use crate::server::api::error::ApiError;
use crate::server::api::events::{EventsQuery, seen};
use crate::server::api::types::live::{
    LiveTurnPage, TurnAborted, TurnAnswer, TurnQueued, TurnReplies,
};
use crate::server::api::{BackendState, OwnerName};
use crate::server::live::ReplyFollower;
use crate::server::rollouts::Backend;

/// Between keep-alive comments; proxies close idle connections after about a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// On a page.
pub(in crate::server::api) const TURNS: usize = 50;
pub(in crate::server::api) const TURNS_MAX: usize = 500;

/// Queues a turn. It goes on when its client goes away.
pub(super) async fn create(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let is_stream = wants_events(request.headers());
    let agent = find(&backend, &owner, &id)?;
    let body = json_body(&backend, request).await?;
    let input: TurnInput = serde_json::from_value(Value::Object(body))
        .map_err(|error| ApiError::bad(format!("the body is no turn: {error}")))?;
    if input.text.trim().is_empty() {
        return Err(ApiError::bad("`text` is empty: say something to the agent"));
    }
    let turn = agent.turn(input)?;
    let location = [(
        header::LOCATION,
        format!("/v1/live/{}/turns/{}", agent.id(), turn.id()),
    )];
    if is_stream {
        return Ok((location, replies(ReplyFollower::of(turn, 0))).into_response());
    }
    let answer = TurnQueued {
        turn_id: turn.id().to_owned(),
    };
    Ok((StatusCode::ACCEPTED, location, Json(answer)).into_response())
}

fn wants_events(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT);
    let accept = accept.and_then(|value| value.to_str().ok());
    accept.is_some_and(|value| value.contains("text/event-stream"))
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PageQuery {
    offset: Option<usize>,
    limit: Option<usize>,
}

/// The newest first.
pub(super) async fn list(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
    wanted: Result<Query<PageQuery>, QueryRejection>,
) -> Result<Json<LiveTurnPage>, ApiError> {
    let Query(wanted) = wanted.map_err(|rejection| ApiError::bad(rejection.body_text()))?;
    let offset = wanted.offset.unwrap_or(0);
    let limit = wanted.limit.unwrap_or(TURNS).clamp(1, TURNS_MAX);
    let agent = find(&backend, &owner, &id)?;
    // One more than wanted says whether there is another page.
    let mut turns = agent.turns(offset, limit + 1).await?;
    let next = (turns.len() > limit).then(|| offset + limit);
    turns.truncate(limit);
    Ok(Json(LiveTurnPage {
        turns,
        next_offset: next,
    }))
}

/// All replies so far.
pub(super) async fn show(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path((id, turn)): Path<(String, String)>,
) -> Result<Json<TurnReplies>, ApiError> {
    let agent = find(&backend, &owner, &id)?;
    let replies: Vec<Reply> = match agent.find_turn(&turn) {
        Some(turn) => turn.after(0),
        None => agent.stored_replies(&turn).await?,
    };
    let is_ended = replies.last().is_some_and(|it| it.kind.is_terminal());
    Ok(Json(TurnReplies {
        turn_id: turn,
        ended: is_ended,
        replies,
    }))
}

pub(super) async fn events(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path((id, turn)): Path<(String, String)>,
    headers: HeaderMap,
    wanted: Result<Query<EventsQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let seq = seen(&headers, wanted)?;
    let agent = find(&backend, &owner, &id)?;
    Ok(replies(ReplyFollower::find(&agent, &turn, seq).await?))
}

/// Ends after the terminal reply.
fn replies(follower: ReplyFollower) -> Response {
    let events = stream::unfold(follower, async |mut follower| {
        let reply = follower.next().await?;
        Some((Ok::<_, Infallible>(render(&reply)), follower))
    });
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive");
    Sse::new(events).keep_alive(keep_alive).into_response()
}

fn render(reply: &Reply) -> Event {
    let data = serde_json::to_string(reply).unwrap_or_default();
    Event::default()
        .id(reply.seq.to_string())
        .event(kind_name(&reply.kind))
        .data(data)
}

fn kind_name(kind: &ReplyKind) -> &'static str {
    match kind {
        ReplyKind::Delta { .. } => "delta",
        ReplyKind::Reasoning { .. } => "reasoning",
        ReplyKind::Tool { .. } => "tool",
        ReplyKind::Permission { .. } => "permission",
        ReplyKind::Question { .. } => "question",
        ReplyKind::Final { .. } => "final",
        ReplyKind::Error { .. } => "error",
    }
}

pub(super) async fn abort(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path((id, turn)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let aborted = match open_turn(&backend, &owner, (&id, &turn)).await? {
        Some(turn) if !turn.is_ended() => {
            turn.abort();
            true
        }
        _ => false,
    };
    let answer = TurnAborted {
        turn_id: turn,
        aborted,
    };
    Ok((StatusCode::ACCEPTED, Json(answer)).into_response())
}

/// The answer to a permission request or a question: a [`TurnAnswer`].
pub(super) async fn answer(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path((id, turn)): Path<(String, String)>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let found = open_turn(&backend, &owner, (&id, &turn)).await?;
    let body = json_body(&backend, request).await?;
    let TurnAnswer { id, answer } = serde_json::from_value(Value::Object(body)).map_err(|_| {
        ApiError::bad(
            "`id` must be that of the reply that asks, and `answer` once, always, reject (with `message`) or choose (with `answers`)",
        )
    })?;
    if found.is_some_and(|turn| turn.answer(&id, answer)) {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(ApiError::conflict(
        "not_asked",
        "nothing with this id waits for an answer: it was answered, or its deadline has passed",
    ))
}

/// A turn that may still be open; `None` for one that has ended long ago.
async fn open_turn(
    backend: &Backend,
    owner: &str,
    (id, turn): (&str, &str),
) -> Result<Option<Arc<LiveTurn>>, ApiError> {
    let agent = find(backend, owner, id)?;
    if let Some(turn) = agent.find_turn(turn) {
        return Ok(Some(turn));
    }
    agent.stored_replies(turn).await?;
    Ok(None)
}
