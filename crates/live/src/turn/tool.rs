//! A tool call as a reply. Pure.

use rollcage_model::live::{ReplyKind, ToolStatus};
use serde_json::Value;

use super::held;

/// Longer outputs are cut in replies; the transcript has them whole.
const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// The same of inputs, which are files that are written.
const INPUT_BYTES_MAX: usize = 1 << 20;
const NAME_BYTES_MAX: usize = 200;

/// The reply for a tool part whose status is another than the last one.
pub(super) fn reply(part: &Value, last: Option<ToolStatus>) -> Option<(ToolStatus, ReplyKind)> {
    let state = &part["state"];
    let status = match state["status"].as_str()? {
        "pending" => ToolStatus::Pending,
        "running" => ToolStatus::Running,
        "completed" => ToolStatus::Completed,
        "error" => ToolStatus::Error,
        _ => return None,
    };
    // An older state comes late when the transcript was ahead of the stream.
    if last.is_some_and(|last| rank(status) <= rank(last)) {
        return None;
    }
    let output = match status {
        ToolStatus::Pending | ToolStatus::Running => None,
        ToolStatus::Completed => state["output"].as_str(),
        ToolStatus::Error => state["error"].as_str(),
    };
    let reply = ReplyKind::Tool {
        call_id: name_of(&part["callID"]),
        name: name_of(&part["tool"]),
        status,
        input: short_input(&state["input"]),
        output: output.map(shortened),
    };
    Some((status, reply))
}

/// About as many bytes as the reply takes.
pub(super) fn weight(reply: &ReplyKind) -> usize {
    match reply {
        ReplyKind::Tool { input, output, .. } => {
            held::weight(input) + output.as_ref().map_or(0, String::len)
        }
        _ => 0,
    }
}

fn name_of(value: &Value) -> String {
    let name = value.as_str().unwrap_or_default();
    name[..name.floor_char_boundary(NAME_BYTES_MAX)].to_owned()
}

/// An input that is too long as the beginning of its text.
fn short_input(input: &Value) -> Value {
    match held::weight(input) > INPUT_BYTES_MAX {
        true => Value::String(shortened(&input.to_string())),
        false => input.clone(),
    }
}

fn rank(status: ToolStatus) -> u8 {
    match status {
        ToolStatus::Pending => 0,
        ToolStatus::Running => 1,
        ToolStatus::Completed | ToolStatus::Error => 2,
    }
}

fn shortened(output: &str) -> String {
    if output.len() <= OUTPUT_BYTES_MAX {
        return output.to_owned();
    }
    let kept = &output[..output.floor_char_boundary(OUTPUT_BYTES_MAX)];
    let left_out = output.len() - kept.len();
    format!("{kept}\n[{left_out} more bytes are not shown here]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_long_output_is_cut_and_says_so() {
        let output = format!("x{}", "ä".repeat(OUTPUT_BYTES_MAX));
        let part = json!({"callID": "c", "tool": "bash", "state": {"status": "completed", "output": output}});
        let (_, reply) = reply(&part, None).unwrap();
        let ReplyKind::Tool { output, .. } = reply else {
            panic!("no tool");
        };
        let output = output.unwrap();
        assert!(output.ends_with("ä\n[65538 more bytes are not shown here]"));
        assert!(output.len() < OUTPUT_BYTES_MAX + 50);
    }

    #[test]
    fn a_very_long_input_is_a_cut_text() {
        let input = json!({"content": "x".repeat(INPUT_BYTES_MAX)});
        let name = "ä".repeat(NAME_BYTES_MAX);
        let part =
            json!({"callID": "c", "tool": name, "state": {"status": "running", "input": input}});
        let (_, reply) = reply(&part, None).unwrap();
        let ReplyKind::Tool { input, name, .. } = reply else {
            panic!("no tool");
        };
        let input = input.as_str().unwrap();
        assert!(input.starts_with("{\"content\":\"xx") && input.ends_with("not shown here]"));
        assert_eq!(name.len(), NAME_BYTES_MAX);
    }

    #[test]
    fn a_status_never_goes_back() {
        let part = |status: &str| json!({"state": {"status": status}});
        assert!(reply(&part("running"), Some(ToolStatus::Completed)).is_none());
        assert!(reply(&part("error"), Some(ToolStatus::Completed)).is_none());
        assert!(reply(&part("running"), Some(ToolStatus::Pending)).is_some());
        assert!(reply(&part("weird"), None).is_none());
    }
}
