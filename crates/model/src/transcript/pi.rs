//! `pi --mode json`: turns and messages that begin and end; what comes word by word is passed over.

use serde_json::Value;

use super::{AgentEnd, AgentUsage, Speaker, Transcript, flat, items, number, text};

pub(super) fn read(events: impl Iterator<Item = Value>, transcript: &mut Transcript) {
    let mut usage = AgentUsage::default();
    for event in events {
        match text(&event, "/type") {
            "message_end" => {
                let Some(message) = event.get("message") else {
                    continue;
                };
                usage.input_tokens += number(message, "/usage/input");
                usage.output_tokens += number(message, "/usage/output");
                usage.cached_tokens += number(message, "/usage/cacheRead");
                transcript.usage = Some(usage);
                said(message, transcript);
            }
            "tool_execution_start" => transcript.call(
                text(&event, "/toolCallId"),
                text(&event, "/toolName"),
                event.get("args").cloned().unwrap_or_default(),
            ),
            "tool_execution_end" => {
                let is_error = event.get("isError") == Some(&Value::Bool(true));
                let output = flat(event.pointer("/result/content"));
                transcript.result(text(&event, "/toolCallId"), output, is_error);
            }
            _ => {}
        }
    }
}

fn said(message: &Value, transcript: &mut Transcript) {
    let role = match text(message, "/role") {
        "user" => Speaker::User,
        "assistant" => Speaker::Assistant,
        _ => return,
    };
    for content in items(message, "/content") {
        match text(content, "/type") {
            "text" => transcript.say(role, text(content, "/text")),
            "thinking" => transcript.reason(text(content, "/thinking")),
            _ => {}
        }
    }
    if role == Speaker::User {
        return;
    }
    // The exit code is 0 after an error; the last message's reason tells.
    transcript.end = match text(message, "/stopReason") {
        "error" | "aborted" => {
            let why = text(message, "/errorMessage");
            let why = if why.is_empty() { "error" } else { why };
            transcript.err(why);
            AgentEnd::Failed(why.to_owned())
        }
        "stop" | "length" => AgentEnd::Done,
        _ => AgentEnd::Unsaid,
    };
}
