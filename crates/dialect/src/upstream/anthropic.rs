//! Endpoints that speak Anthropic's Messages.
//!
//! Requests of agents that speak the same dialect are forwarded; others are translated by way of chat. The dialect has
//! no token ids, so nothing is requested in addition that would have to be stripped.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use serde_json::Value;

use super::{
    EventKind, EventOutput, ForwardedHead, StreamEvent, StreamView, UpstreamRequest,
    UpstreamRequestError, without_data,
};
use crate::Dialect;
use crate::anthropic::{CallThoughts, DeltaReader, Thoughts, UsageCounts, from_chat_request};
use crate::chat::{
    AnswerFault, NO_JSON, Rewrite, StreamError, Usage, has_finish_reason, is_done, is_json,
};
use crate::sse::SseEvent;

pub(super) const PATH: &str = "/messages";
pub(super) const COUNT_PATH: &str = "/count_tokens";

/// The API version that is sent if the agent's request has none.
const VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");

pub(super) fn headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("anthropic-version", VERSION);
    headers
}

pub(super) fn forwarded_head(headers: &HeaderMap, query: Option<&str>) -> ForwardedHead {
    let mut head = ForwardedHead::default();
    for name in ["anthropic-version", "anthropic-beta"] {
        if let Some(value) = headers.get(name) {
            head.headers.insert(name, value.clone());
        }
    }
    // The only query that clients use. Any other is dropped: a key in it is our session's, not the endpoint's.
    let query = query.filter(|query| *query == "beta=true");
    head.query = query.map(str::to_owned);
    head
}

pub(super) fn prepare(
    body: &Bytes,
    agent: Dialect,
    rewrite: &Rewrite,
    thoughts: &Thoughts,
) -> Result<UpstreamRequest, UpstreamRequestError> {
    if agent == Dialect::Anthropic {
        return Ok(UpstreamRequest {
            prepared: crate::anthropic::prepare(body, rewrite)?,
            translation: None,
            dropped: Vec::new(),
        });
    }
    let translated = from_chat_request(body, thoughts)?;
    let body = Bytes::from(translated.body);
    Ok(UpstreamRequest {
        prepared: crate::anthropic::prepare(&body, rewrite)?,
        translation: Some(body),
        dropped: translated.dropped,
    })
}

pub(super) fn is_truncated(body: &[u8]) -> bool {
    has_finish_reason(body, "stop_reason", "max_tokens")
}

/// What is wrong with a whole answer that has a good status.
pub(super) fn fault(body: &[u8]) -> Option<AnswerFault> {
    let Ok(answer) = serde_json::from_slice::<Value>(body) else {
        return Some(AnswerFault::Unreadable(NO_JSON));
    };
    if let Some(error) = StreamError::of(&answer) {
        return Some(AnswerFault::Error(error));
    }
    (!answer["content"].is_array()).then_some(AnswerFault::Unreadable("it has no content"))
}

/// Reads the events of one stream.
#[derive(Debug)]
pub(super) enum EventReader {
    /// Forwarded unchanged.
    Forwarded(UsageCounts),
    Translated(Box<DeltaReader>),
}

impl EventReader {
    pub(super) fn new(view: StreamView) -> Self {
        match view {
            StreamView::Original => EventReader::Forwarded(UsageCounts::default()),
            StreamView::Deltas => EventReader::Translated(Box::default()),
        }
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        match self {
            EventReader::Forwarded(counts) => counts.total(),
            EventReader::Translated(reader) => reader.usage(),
        }
    }

    pub(super) fn take_thoughts(&mut self) -> Vec<CallThoughts> {
        match self {
            EventReader::Forwarded(_) => Vec::new(),
            EventReader::Translated(reader) => reader.take_thoughts(),
        }
    }

    pub(super) fn read(&mut self, event: SseEvent) -> StreamEvent {
        let view = match self {
            EventReader::Forwarded(_) => StreamView::Original,
            EventReader::Translated(_) => StreamView::Deltas,
        };
        let Some(data) = &event.data else {
            return without_data(event, view);
        };
        // Most events are text deltas, recognisable by their first bytes.
        if view == StreamView::Original && data.starts_with(r#"{"type":"content_block"#) {
            return StreamEvent {
                kind: match is_json(data) {
                    true => EventKind::Content,
                    false => EventKind::Unreadable(NO_JSON),
                },
                output: EventOutput::Bytes(event.raw),
            };
        }
        let value: Value = serde_json::from_str(data).unwrap_or_default();
        let kind = match value.is_object() {
            true => kind_of(&value),
            // Servers of both dialects end their streams alike.
            false if data.trim().is_empty() || is_done(data) => EventKind::Nothing,
            false => EventKind::Unreadable(NO_JSON),
        };
        let output = match self {
            EventReader::Forwarded(counts) => {
                counts.update_from(&value);
                EventOutput::Bytes(event.raw)
            }
            EventReader::Translated(reader) => {
                EventOutput::Deltas(reader.read(&event.name, &value))
            }
        };
        StreamEvent { kind, output }
    }
}

fn kind_of(event: &Value) -> EventKind {
    if let Some(error) = StreamError::of(event) {
        return EventKind::Error(error);
    }
    match event["type"].as_str() {
        Some("ping") => EventKind::Nothing,
        Some("message_delta") if event["delta"]["stop_reason"].is_string() => EventKind::Final,
        Some("message_stop") => EventKind::Done,
        _ => EventKind::Content,
    }
}
