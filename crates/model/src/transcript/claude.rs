//! Claude Code's `stream-json`, which Qwen Code has too: whole messages in Anthropic's shapes, then a result.

use serde_json::Value;

use super::{AgentEnd, AgentUsage, Speaker, Transcript, flat, items, number, text};

pub(super) fn read(events: impl Iterator<Item = Value>, transcript: &mut Transcript) {
    for event in events {
        match (text(&event, "/type"), text(&event, "/subtype")) {
            ("assistant", _) => message(&event, Speaker::Assistant, transcript),
            ("user", _) => message(&event, Speaker::User, transcript),
            ("system", "api_retry") => {
                let status = number(&event, "/error_status");
                let error = text(&event, "/error");
                transcript.err(&format!("tried again after {error} ({status})"));
            }
            ("result", subtype) => result(&event, subtype, transcript),
            _ => {}
        }
    }
}

fn message(event: &Value, role: Speaker, transcript: &mut Transcript) {
    if let Some(said) = event.pointer("/message/content").and_then(Value::as_str) {
        transcript.say(role, said);
    }
    for block in items(event, "/message/content") {
        match text(block, "/type") {
            "text" => transcript.say(role, text(block, "/text")),
            "thinking" => transcript.reason(text(block, "/thinking")),
            "tool_use" => transcript.call(
                text(block, "/id"),
                text(block, "/name"),
                block.get("input").cloned().unwrap_or_default(),
            ),
            "tool_result" => transcript.result(
                text(block, "/tool_use_id"),
                flat(block.get("content")),
                block.get("is_error") == Some(&Value::Bool(true)),
            ),
            _ => {}
        }
    }
}

/// `is_error` and `terminal_reason` tell the truth; the subtype and the exit code do not always.
fn result(event: &Value, subtype: &str, transcript: &mut Transcript) {
    transcript.usage = Some(AgentUsage {
        input_tokens: number(event, "/usage/input_tokens"),
        output_tokens: number(event, "/usage/output_tokens"),
        cached_tokens: number(event, "/usage/cache_read_input_tokens"),
    });
    transcript.cost_usd = event.get("total_cost_usd").and_then(Value::as_f64);
    let reason = text(event, "/terminal_reason");
    let is_error = event.get("is_error") == Some(&Value::Bool(true));
    let is_done =
        !is_error && matches!(subtype, "success" | "") && matches!(reason, "" | "completed");
    if is_done {
        transcript.end = AgentEnd::Done;
        return;
    }
    let listed = flat(event.pointer("/errors/0"));
    let said = [
        text(event, "/error/message"),
        &listed,
        text(event, "/result"),
    ]
    .into_iter()
    .find(|said| !said.is_empty())
    .unwrap_or_default()
    .to_owned();
    let kind = if reason.is_empty() { subtype } else { reason };
    let why = if said.is_empty() {
        kind.to_owned()
    } else {
        format!("{kind}: {said}")
    };
    transcript.err(&why);
    transcript.end = AgentEnd::Failed(why);
}
