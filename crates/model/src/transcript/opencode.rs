//! `opencode run --format json`: one event for each finished part.

use serde_json::Value;

use super::{AgentEnd, AgentUsage, Speaker, Transcript, flat, number, text};

pub(super) fn read(events: impl Iterator<Item = Value>, transcript: &mut Transcript) {
    let mut usage = AgentUsage::default();
    let mut cost = 0.0;
    for event in events {
        match text(&event, "/type") {
            "text" => transcript.say(Speaker::Assistant, text(&event, "/part/text")),
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
