//! `codex exec --json`: items that begin and end, and turns that complete or fail.

use serde_json::Value;

use super::{
    AgentEnd, AgentUsage, McpTool, Speaker, Transcript, TranscriptEntry, flat, items, number, text,
};

pub(super) fn read(events: impl Iterator<Item = Value>, transcript: &mut Transcript) {
    for event in events {
        match text(&event, "/type") {
            "item.completed" => item(&event, transcript),
            "turn.completed" => {
                transcript.usage = Some(AgentUsage {
                    input_tokens: number(&event, "/usage/input_tokens"),
                    output_tokens: number(&event, "/usage/output_tokens"),
                    cached_tokens: number(&event, "/usage/cached_input_tokens"),
                });
                transcript.end = AgentEnd::Done;
            }
            "turn.failed" => {
                let why = text(&event, "/error/message").to_owned();
                transcript.err(&why);
                transcript.end = AgentEnd::Failed(why);
            }
            // Also told when it only tries again.
            "error" => transcript.err(text(&event, "/message")),
            _ => {}
        }
    }
}

fn item(event: &Value, transcript: &mut Transcript) {
    let Some(item) = event.get("item") else {
        return;
    };
    let id = text(item, "/id");
    let is_failed = text(item, "/status") == "failed";
    match text(item, "/type") {
        "agent_message" => transcript.say(Speaker::Assistant, text(item, "/text")),
        "reasoning" => transcript.reason(text(item, "/text")),
        "command_execution" => {
            let command = item.get("command").cloned().unwrap_or_default();
            transcript.call(id, "exec_command", serde_json::json!({"command": command}));
            let is_error = item.get("exit_code").and_then(Value::as_i64) != Some(0);
            transcript.result(id, flat(item.get("aggregated_output")), is_error);
        }
        "mcp_tool_call" => {
            let (server, tool) = (text(item, "/server"), text(item, "/tool"));
            transcript.entries.push(TranscriptEntry::ToolCall {
                id: id.to_owned(),
                name: format!("{server}/{tool}"),
                input: item.get("arguments").cloned().unwrap_or_default(),
                mcp: Some(McpTool {
                    server: server.to_owned(),
                    tool: tool.to_owned(),
                }),
            });
            let contents: Vec<_> = items(item, "/result/content").cloned().collect();
            transcript.result(id, flat(Some(&Value::Array(contents))), is_failed);
        }
        "file_change" => {
            transcript.call(
                id,
                "apply_patch",
                item.get("changes").cloned().unwrap_or_default(),
            );
            transcript.result(id, String::new(), is_failed);
        }
        // A model it does not know is only a warning.
        "error" => transcript.err(text(item, "/message")),
        _ => {}
    }
}
