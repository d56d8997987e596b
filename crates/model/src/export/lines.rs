//! The formats of lines: rows for training, chats for fine-tuning, and every model call with all that is known of it.

use std::io::Write;

use serde::Serialize;

use super::conversation::{conversations, turn_of};
use super::{Arguments, ExportError, Head, Meta, Options, Stream, chat, write_line};
use crate::call::{Call, calls};
use crate::sequence::{self, Row};
use crate::trace::Interpretation;
use crate::turn::Shared;
use rollcage_dialect::chat::Message;

/// A line that says which rollout it is of.
#[derive(Serialize)]
struct Line<'a, T> {
    #[serde(flatten)]
    head: Head<'a>,
    #[serde(flatten)]
    own: T,
}

/// Rows refer to earlier rows of the same rollout, as they do in results.
pub(super) fn write_sequences(
    seen: &Interpretation,
    meta: &Meta,
    options: Options,
    out: &mut (dyn Write + Send),
) -> Result<(), ExportError> {
    let head = Head::new(meta, seen);
    for own in sequence::rows_of(seen, options.trained) {
        write_line(&Line::<Row> { head, own }, out)?;
    }
    Ok(())
}

/// Calls refer to earlier calls of the same rollout, as they do in results.
pub(super) fn write_turns(
    seen: &Interpretation,
    meta: &Meta,
    out: &mut (dyn Write + Send),
) -> Result<(), ExportError> {
    for own in calls(seen) {
        let model = own.model.clone();
        let head = Head {
            model: model.as_deref().unwrap_or(&meta.model),
            ..Head::new(meta, seen)
        };
        write_line(
            &Line::<Call> {
                head,
                own: Call { model: None, ..own },
            },
            out,
        )?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Chat<'a, M> {
    messages: M,
    tools: Option<&'a Shared>,
    metadata: ChatMeta<'a>,
}

#[derive(Serialize)]
struct ChatMeta<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    /// Counts the rollout's conversations from 0.
    conversation: usize,
    node_ids: Vec<&'a str>,
    finish_reason: Option<&'a str>,
}

/// The last request of a conversation holds all of it but the last reply.
pub(super) fn write_sft(
    seen: &Interpretation,
    meta: &Meta,
    arguments: Arguments,
    out: &mut (dyn Write + Send),
) -> Result<(), ExportError> {
    for (conversation, path) in conversations(&seen.graph).iter().enumerate() {
        let Some(&end) = path.nodes.last() else {
            continue;
        };
        let turn = turn_of(seen, end);
        let reply = turn.message.as_ref().map(Message::to_value);
        let messages = Stream(|| {
            let asked = turn.messages.iter().map(|message| &**message);
            let messages = asked.chain(reply.as_ref());
            messages.map(|message| chat::plain(message, arguments))
        });
        let nodes = path.nodes.iter();
        let chat = Chat {
            messages,
            tools: turn.tools.as_ref(),
            metadata: ChatMeta {
                head: Head {
                    model: turn.model.as_deref().unwrap_or(&meta.model),
                    ..Head::new(meta, seen)
                },
                conversation,
                node_ids: nodes.map(|at| seen.graph.nodes[*at].id.as_str()).collect(),
                finish_reason: turn.finish_reason.as_deref(),
            },
        };
        write_line(&chat, out)?;
    }
    Ok(())
}
