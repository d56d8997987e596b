//! `opencode run --format json`: one event for each finished part.

use serde_json::Value;

use super::{AgentEnd, AgentUsage, Speaker, Transcript, flat, number, text};

pub(super) fn read(events: impl Iterator<Item = Value>, transcript: &mut Transcript) {
    let mut usage = AgentUsage::default();
    let mut cost = 0.0;
    for event in events {
        match text(&event, "/type") {
            "text" => transcript.say(Speaker::Assistant, text(&event, "/part/text")),
            "user" => transcript.say(Speaker::User, text(&event, "/part/text")),
            "reasoning" => transcript.reason(text(&event, "/part/text")),
            "tool_use" => tool(&event, transcript),
            "step_finish" => {
                usage.input_tokens += number(&event, "/part/tokens/input");
                usage.output_tokens += number(&event, "/part/tokens/output")
                    + number(&event, "/part/tokens/reasoning");
                usage.cached_tokens += number(&event, "/part/tokens/cache/read");
                cost += event
                    .pointer("/part/cost")
                    .and_then(Value::as_f64)
                    .unwrap_or_default();
                transcript.usage = Some(usage);
                transcript.cost_usd = Some(cost);
                // Its exit code is 1 after any error, also one that it got over: the last word counts.
                transcript.end = match text(&event, "/part/reason") {
                    "stop" | "length" => AgentEnd::Done,
                    _ => AgentEnd::Unsaid,
                };
            }
            "error" => {
                let name = text(&event, "/error/name");
                let message = text(&event, "/error/data/message");
                let why = match (name, message) {
                    ("", "") => "error".to_owned(),
                    (name, "") => name.to_owned(),
                    ("", message) => message.to_owned(),
                    (name, message) => format!("{name}: {message}"),
                };
                transcript.err(&why);
                transcript.end = AgentEnd::Failed(why);
            }
            _ => {}
        }
    }
}

fn tool(event: &Value, transcript: &mut Transcript) {
    let id = text(event, "/part/callID");
    let input = event.pointer("/part/state/input").cloned();
    transcript.call(id, text(event, "/part/tool"), input.unwrap_or_default());
    let is_error = text(event, "/part/state/status") == "error";
    let output = if is_error {
        "/part/state/error"
    } else {
        "/part/state/output"
    };
    transcript.result(id, flat(event.pointer(output)), is_error);
}

/// The events that `opencode run --format json` would have printed for a session, from its messages
/// (`GET /session/ID/message`): one per line. Messages to the agent after the first one are told as events `user`, which
/// the command does not have.
pub fn events_of_messages(messages: &[Value]) -> String {
    let mut lines = String::new();
    let mut has_instruction = false;
    for message in messages {
        let info = message.get("info").unwrap_or(&Value::Null);
        let add = |name: &str, member: &str, content: &Value| {
            let event = serde_json::json!({
                "type": name,
                "timestamp": info.pointer("/time/created"),
                "sessionID": info.get("sessionID"),
                member: content,
            });
            format!("{event}\n")
        };
        let is_user = text(info, "/role") == "user";
        let parts = message.get("parts").and_then(Value::as_array);
        for part in parts.into_iter().flatten() {
            let is_over = matches!(text(part, "/state/status"), "completed" | "error");
            let name = match text(part, "/type") {
                "text" if is_user && has_instruction => "user",
                _ if is_user => continue,
                "text" => "text",
                "reasoning" => "reasoning",
                "tool" if is_over => "tool_use",
                "step-start" => "step_start",
                "step-finish" => "step_finish",
                _ => continue,
            };
            lines.push_str(&add(name, "part", part));
        }
        has_instruction |= is_user;
        if let Some(error) = info.get("error") {
            lines.push_str(&add("error", "error", error));
        }
    }
    lines
}
