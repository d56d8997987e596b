//! `gemini --output-format stream-json`: messages word by word, tool calls, and a result with a status.

use serde_json::Value;

use super::{AgentEnd, AgentUsage, Speaker, Transcript, flat, number, text};

pub(super) fn read(events: impl Iterator<Item = Value>, transcript: &mut Transcript) {
    for event in events {
        match text(&event, "/type") {
            "message" => {
                let is_user = text(&event, "/role") == "user";
                let role = if is_user {
                    Speaker::User
                } else {
                    Speaker::Assistant
                };
                if event.get("delta") == Some(&Value::Bool(true)) {
                    transcript.say_on(role, text(&event, "/content"));
                } else {
                    transcript.say(role, text(&event, "/content"));
                }
            }
            "tool_use" => transcript.call(
                text(&event, "/tool_id"),
                text(&event, "/tool_name"),
                event.get("parameters").cloned().unwrap_or_default(),
            ),
            "tool_result" => {
                let is_error = text(&event, "/status") == "error";
                let output = if is_error {
                    event.pointer("/error/message")
                } else {
                    None
                };
                let output = flat(output.or_else(|| event.get("output")));
                transcript.result(text(&event, "/tool_id"), output, is_error);
            }
            "error" => transcript.err(text(&event, "/message")),
            "result" => {
                transcript.usage = Some(AgentUsage {
                    input_tokens: number(&event, "/stats/input_tokens"),
                    output_tokens: number(&event, "/stats/output_tokens"),
                    cached_tokens: number(&event, "/stats/cached"),
                });
                transcript.end = match text(&event, "/status") {
                    "success" => AgentEnd::Done,
                    status => {
                        let said = text(&event, "/error/message");
                        AgentEnd::Failed(if said.is_empty() { status } else { said }.to_owned())
                    }
                };
            }
            _ => {}
        }
    }
    // An error after which it stops is told as a warning of no consequence, and the result as a success.
}
