//! mini-swe-agent's trajectory file: one JSON object with all messages and an exit status.

use serde_json::Value;

use super::{AgentEnd, AgentUsage, Speaker, Transcript, flat, items, number, text};

pub(super) fn read(file: &str, transcript: &mut Transcript) {
    let Ok(trajectory) = serde_json::from_str::<Value>(file) else {
        return;
    };
    let mut usage = AgentUsage::default();
    for message in items(&trajectory, "/messages") {
        entry(message, transcript);
        usage.input_tokens += number(message, "/extra/response/usage/prompt_tokens");
        usage.output_tokens += number(message, "/extra/response/usage/completion_tokens");
    }
    transcript.usage = (usage != AgentUsage::default()).then_some(usage);
    transcript.cost_usd = trajectory
        .pointer("/info/model_stats/instance_cost")
        .and_then(Value::as_f64);
    transcript.end = match text(&trajectory, "/info/exit_status") {
        "" => AgentEnd::Unsaid,
        "Submitted" => AgentEnd::Done,
        status => {
            let last = items(&trajectory, "/messages").last();
            let said = last
                .map(|message| flat(message.get("content")))
                .unwrap_or_default();
            let why = if said.is_empty() {
                status.to_owned()
            } else {
                format!("{status}: {said}")
            };
            transcript.err(&why);
            AgentEnd::Failed(why)
        }
    };
}

fn entry(message: &Value, transcript: &mut Transcript) {
    let content = flat(message.get("content"));
    match text(message, "/role") {
        "system" => transcript.say(Speaker::System, &content),
        "user" => transcript.say(Speaker::User, &content),
        "assistant" => {
            transcript.reason(text(message, "/reasoning_content"));
            transcript.say(Speaker::Assistant, &content);
            for call in items(message, "/tool_calls") {
                let arguments = text(call, "/function/arguments");
                let input = serde_json::from_str(arguments).unwrap_or_else(|_| arguments.into());
                transcript.call(text(call, "/id"), text(call, "/function/name"), input);
            }
        }
        "tool" => {
            let code = message.pointer("/extra/returncode").and_then(Value::as_i64);
            transcript.result(
                text(message, "/tool_call_id"),
                content,
                code.is_some_and(|code| code != 0),
            );
        }
        _ => {}
    }
}
