//! `goose run --output-format stream-json`: messages of typed contents, text word by word.

use serde_json::Value;

use super::{AgentEnd, AgentUsage, Speaker, Transcript, flat, items, number, text};

/// How goose begins the message that tells of a failed model call; its exit code is 0 then.
const FAILURES: [&str; 2] = ["Ran into this error:", "Request failed"];

pub(super) fn read(events: impl Iterator<Item = Value>, transcript: &mut Transcript) {
    for event in events {
        match text(&event, "/type") {
            "message" => message(&event, transcript),
            "error" => {
                let why = text(&event, "/error").to_owned();
                transcript.err(&why);
                transcript.end = AgentEnd::Failed(why);
            }
            "complete" => {
                let total = number(&event, "/total_tokens");
                if total > 0 {
                    transcript.usage = Some(AgentUsage {
                        input_tokens: number(&event, "/input_tokens"),
                        output_tokens: number(&event, "/output_tokens"),
                        cached_tokens: 0,
                    });
                }
                if transcript.end == AgentEnd::Unsaid {
                    transcript.end = ending(transcript);
                }
            }
            _ => {}
        }
    }
}

fn message(event: &Value, transcript: &mut Transcript) {
    let is_user = text(event, "/message/role") == "user";
    let role = if is_user {
        Speaker::User
    } else {
        Speaker::Assistant
    };
    for content in items(event, "/message/content") {
        let id = text(content, "/id");
        match text(content, "/type") {
            "text" => transcript.say_on(role, text(content, "/text")),
            "thinking" => transcript.reason(text(content, "/thinking")),
            "toolRequest" => {
                let input = content.pointer("/toolCall/value/arguments").cloned();
                let name = text(content, "/toolCall/value/name");
                transcript.call(id, name, input.unwrap_or_default());
            }
            "toolResponse" => {
                let result = content.pointer("/toolResult/value/content");
                let is_error = text(content, "/toolResult/status") == "error"
                    || content.pointer("/toolResult/value/isError") == Some(&Value::Bool(true));
                transcript.result(id, flat(result), is_error);
            }
            _ => {}
        }
    }
}

/// Judged by the last message: a failed call is told as one.
fn ending(transcript: &Transcript) -> AgentEnd {
    match transcript.report().last_message {
        Some(said) if FAILURES.iter().any(|failure| said.starts_with(failure)) => {
            AgentEnd::Failed(said)
        }
        _ => AgentEnd::Done,
    }
}
