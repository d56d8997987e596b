//! Endpoints that speak Anthropic's Messages.
//!
//! Requests of agents that speak the same dialect are forwarded; others are translated by way of chat. The dialect has
//! no token ids, so nothing is requested in addition that would have to be stripped.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use serde_json::Value;

use super::{
    Mark, PassedHead, RequestError, Shown, StreamEvent, UpstreamRequest, View, without_data,
};
use crate::Dialect;
use crate::anthropic::{Counts, Kept, PieceReader, Thoughts, from_chat_request};
use crate::chat::{Rewrite, StreamError, Usage, ends_by};
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

pub(super) fn passed(headers: &HeaderMap, query: Option<&str>) -> PassedHead {
    let mut passed = PassedHead::default();
    for name in ["anthropic-version", "anthropic-beta"] {
        if let Some(value) = headers.get(name) {
            passed.headers.insert(name, value.clone());
        }
    }
    // The only query that clients use. Any other is dropped: a key in it is our session's, not the endpoint's.
    let query = query.filter(|query| *query == "beta=true");
    passed.query = query.map(str::to_owned);
    passed
}

pub(super) fn prepare(
    body: &Bytes,
    agent: Dialect,
    rewrite: &Rewrite,
    thoughts: &Thoughts,
) -> Result<UpstreamRequest, RequestError> {
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

pub(super) fn is_cut(body: &[u8]) -> bool {
    ends_by(body, "stop_reason", "max_tokens")
}

/// Reads the events of one stream.
#[derive(Debug)]
pub(super) enum Events {
    /// Forwarded unchanged.
    Own(Counts),
    Pieces(Box<PieceReader>),
}

impl Events {
    pub(super) fn new(view: View) -> Self {
        match view {
            View::Own => Events::Own(Counts::default()),
            View::Pieces => Events::Pieces(Box::default()),
        }
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        match self {
            Events::Own(counts) => counts.total(),
            Events::Pieces(reader) => reader.usage(),
        }
    }

    pub(super) fn take_thoughts(&mut self) -> Vec<Kept> {
        match self {
            Events::Own(_) => Vec::new(),
            Events::Pieces(reader) => reader.take_thoughts(),
        }
    }

    pub(super) fn read(&mut self, event: SseEvent) -> StreamEvent {
        let view = match self {
            Events::Own(_) => View::Own,
            Events::Pieces(_) => View::Pieces,
        };
        let Some(data) = &event.data else {
            return without_data(event, view);
        };
        // Most events are text deltas, recognisable by their first bytes.
        if view == View::Own && data.starts_with(r#"{"type":"content_block"#) {
            return StreamEvent {
                mark: Mark::Content,
                shown: Shown::Bytes(event.raw),
            };
        }
        let value: Value = serde_json::from_str(data).unwrap_or_default();
        let mark = mark_of(&value);
        let shown = match self {
            Events::Own(counts) => {
                counts.update_from(&value);
                Shown::Bytes(event.raw)
            }
            Events::Pieces(reader) => Shown::Pieces(reader.read(&event.name, &value)),
        };
        StreamEvent { mark, shown }
    }
}

fn mark_of(event: &Value) -> Mark {
    if let Some(error) = StreamError::of(event) {
        return Mark::Error(error);
    }
    match event["type"].as_str() {
        Some("ping") => Mark::Nothing,
        Some("message_delta") if event["delta"]["stop_reason"].is_string() => Mark::Final,
        Some("message_stop") => Mark::Done,
        _ => Mark::Content,
    }
}
