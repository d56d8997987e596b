//! Endpoints that speak OpenAI's chat completions.

use bytes::Bytes;

use super::{Mark, RequestError, Shown, StreamEvent, UpstreamRequest, View, without_data};
use crate::Dialect;
use crate::chat::{
    Added, ChatEvent, Delta, Rewrite, Stripped, Usage, ends_by, failed_finish_of_whole,
};
use crate::sse::SseEvent;

pub(super) const PATH: &str = "/chat/completions";

pub(super) fn prepare(
    body: &Bytes,
    agent: Dialect,
    rewrite: &Rewrite,
) -> Result<UpstreamRequest, RequestError> {
    Ok(UpstreamRequest {
        prepared: crate::chat::prepare(body, rewrite)?,
        translation: (agent != Dialect::Chat).then(|| body.clone()),
        dropped: Vec::new(),
    })
}

pub(super) fn is_cut(body: &[u8]) -> bool {
    ends_by(body, "finish_reason", "length")
}

pub(super) fn aborted(body: &str) -> Option<String> {
    failed_finish_of_whole(body)
}

/// Reads the events of one stream.
#[derive(Debug)]
pub(super) struct Events {
    view: View,
    added: Added,
    usage: Option<Usage>,
}

impl Events {
    pub(super) fn new(view: View, added: Added) -> Self {
        Events {
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
        let mark = read.mark();
        self.usage = read.usage().or(self.usage);
        let shown = match self.view {
            View::Own if matches!(mark, Mark::Error(_)) => Shown::Bytes(event.raw),
            View::Own => Shown::Bytes(match read.strip(&self.added) {
                Stripped::Unchanged => event.raw,
                Stripped::Dropped => Vec::new(),
                Stripped::Changed(data) => written(&event.name, &data),
            }),
            View::Pieces => {
                let mut pieces = read.deltas();
                let is_shown =
                    |piece: &Delta| !(self.added.reasoning && matches!(piece, Delta::Reasoning(_)));
                pieces.retain(is_shown);
                Shown::Pieces(pieces)
            }
        };
        StreamEvent { mark, shown }
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
