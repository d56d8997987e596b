//! A rollout's events as server-sent events. A client that lost its connection resumes with `Last-Event-ID`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, Stream};
use serde::Deserialize;

use rollcage_engine::feed::NumberedEvent;
use rollcage_engine::{RolloutEntry, RolloutLookup};
use rollcage_model::event::What;

use super::error::ApiError;
use super::{BackendState, OwnerName};
use crate::server::rollouts::events::{event_value, stored_events};

/// Between keep-alive comments; proxies close idle connections after about a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct EventsQuery {
    /// For clients that cannot set a header.
    after: Option<u64>,
}

/// The number of the last event that a client has seen.
pub(super) fn seen(
    headers: &HeaderMap,
    wanted: Result<Query<EventsQuery>, QueryRejection>,
) -> Result<u64, ApiError> {
    let Query(wanted) = wanted.map_err(|rejection| ApiError::bad(rejection.body_text()))?;
    let resumed = headers.get("last-event-id");
    let resumed = resumed.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    Ok(resumed.or(wanted.after).unwrap_or(0))
}

pub(super) async fn stream(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    Path(id): Path<String>,
    headers: HeaderMap,
    wanted: Result<Query<EventsQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let seq = seen(&headers, wanted)?;
    let follower = match backend.engine.find(&owner, &id).await? {
        RolloutLookup::InMemory(entry) => Follower {
            entry: Some(entry),
            seq,
            waiting: VecDeque::new(),
        },
        RolloutLookup::Stored(summary) if !summary.is_ended() => {
            let text = "another process runs this rollout, so its events are not known here";
            return Err(ApiError::conflict("not_here", text));
        }
        RolloutLookup::Stored(summary) => {
            let told = stored_events(&backend.engine, summary.row.rollout_id).await;
            let told = told.map_err(ApiError::bad)?;
            let waiting = told.into_iter().filter(|told| told.seq > seq).collect();
            Follower {
                entry: None,
                seq,
                waiting,
            }
        }
    };
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive");
    Ok(Sse::new(follower.events())
        .keep_alive(keep_alive)
        .into_response())
}

/// One reader of a rollout's events.
struct Follower {
    /// `None` when no events will follow those in `waiting`.
    entry: Option<Arc<RolloutEntry>>,
    seq: u64,
    waiting: VecDeque<NumberedEvent>,
}

impl Follower {
    /// Ends after `finished`.
    fn events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(self, async |mut follower| {
            let told = follower.next().await?;
            Some((Ok(render(&told)), follower))
        })
    }

    async fn next(&mut self) -> Option<NumberedEvent> {
        while self.waiting.is_empty() {
            let entry = self.entry.as_ref()?;
            let is_ended = entry.is_ended();
            self.waiting = entry.feed.after(self.seq).into();
            if !self.waiting.is_empty() {
                break;
            }
            if is_ended {
                return None;
            }
            entry.feed.wait_after(self.seq).await;
        }
        let told = self.waiting.pop_front()?;
        self.seq = told.seq;
        if matches!(told.event.what, What::Finished { .. }) {
            self.entry = None;
        }
        Some(told)
    }
}

fn render(told: &NumberedEvent) -> Event {
    Event::default()
        .id(told.seq.to_string())
        .event(told.event.what.name())
        .data(event_value(told).to_string())
}
