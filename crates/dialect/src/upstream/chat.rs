//! Endpoints that speak OpenAI's chat completions.

use bytes::Bytes;

use super::{
    EventKind, EventOutput, StreamEvent, StreamView, UpstreamRequest, UpstreamRequestError,
    without_data,
};
use crate::Dialect;
use crate::chat::{
    AddedFields, ChatEvent, Delta, Rewrite, StrippedEvent, Usage, aborted_finish_reason,
    has_finish_reason,
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

pub(super) fn abort_reason(body: &str) -> Option<String> {
    aborted_finish_reason(body)
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
        let kind = read.kind();
        self.usage = read.usage().or(self.usage);
        let output = match self.view {
            StreamView::Original if matches!(kind, EventKind::Error(_)) => {
                EventOutput::Bytes(event.raw)
            }
            StreamView::Original => EventOutput::Bytes(match read.strip(&self.added) {
                StrippedEvent::Unchanged => event.raw,
                StrippedEvent::Dropped => Vec::new(),
                StrippedEvent::Changed(data) => written(&event.name, &data),
            }),
            StreamView::Deltas => {
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
