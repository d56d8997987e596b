//! Endpoints that speak OpenAI's chat completions.

use bytes::Bytes;

use super::{
    EventKind, EventOutput, StreamEvent, StreamView, UpstreamRequest, UpstreamRequestError,
    without_data,
};
use crate::Dialect;
use crate::chat::{
    AddedFields, ChatEvent, Delta, NO_JSON, Rewrite, StrippedEvent, Usage, has_finish_reason,
    is_json,
};
use crate::sse::SseEvent;

pub(super) const PATH: &str = "/chat/completions";

pub(super) fn prepare(
    body: &Bytes,
    agent: Dialect,
    rewrite: &Rewrite,
) -> Result<UpstreamRequest, UpstreamRequestError> {
    Ok(UpstreamRequest {
        prepared: crate::chat::prepare(body, rewrite)?,
        translation: (agent != Dialect::Chat).then(|| body.clone()),
        dropped: Vec::new(),
    })
}

pub(super) fn is_truncated(body: &[u8]) -> bool {
    has_finish_reason(body, "finish_reason", "length")
}

/// Reads the events of one stream.
#[derive(Debug)]
pub(super) struct EventReader {
    view: StreamView,
    added: AddedFields,
    usage: Option<Usage>,
}

impl EventReader {
    pub(super) fn new(view: StreamView, added: AddedFields) -> Self {
        EventReader {
            view,
            added,
            usage: None,
        }
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        self.usage
    }

    pub(super) fn read(&mut self, event: SseEvent) -> StreamEvent {
        let Some(data) = &event.data else {
            return without_data(event, self.view);
        };
        let read = ChatEvent::read(data);
        let mut kind = read.kind();
        self.usage = read.usage().or(self.usage);
        let is_chunk = !matches!(kind, EventKind::Error(_) | EventKind::Done);
        // What the agent sees must be readable; what is stripped is nobody's but ours.
        let mut require = |is_readable: bool| {
            if is_chunk && !is_readable {
                kind = EventKind::Unreadable(NO_JSON);
            }
        };
        let output = match self.view {
            StreamView::Original if !is_chunk => EventOutput::Bytes(event.raw),
            StreamView::Original => EventOutput::Bytes(match read.strip(&self.added) {
                StrippedEvent::Unchanged => {
                    require(data.trim().is_empty() || is_json(data));
                    event.raw
                }
                StrippedEvent::Dropped => Vec::new(),
                StrippedEvent::Changed(data) => {
                    require(is_json(&data));
                    written(&event.name, &data)
                }
            }),
            StreamView::Deltas => {
                require(read.has_readable_delta());
                let mut deltas = read.deltas();
                let is_requested =
                    |delta: &Delta| !(self.added.reasoning && matches!(delta, Delta::Reasoning(_)));
                deltas.retain(is_requested);
                EventOutput::Deltas(deltas)
            }
        };
        StreamEvent { kind, output }
    }
}

fn written(name: &str, data: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len() + data.len() + 16);
    if !name.is_empty() {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(data.as_bytes());
    out.extend_from_slice(b"\n\n");
    out
}
