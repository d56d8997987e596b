//! Requests that every endpoint would refuse.

use serde::Deserialize;
use serde_json::Value;

/// Longer than any conversation, and of the order of servers' own limits.
const BYTES_MAX: usize = 16 << 20;

/// The minimum that every request must satisfy, in all dialects of endpoints. Other members may be valid on some
/// endpoint.
#[derive(Deserialize)]
struct ValidRequest {
    messages: Vec<ValidMessage>,
    #[serde(default)]
    tools: Option<Vec<serde_json::Map<String, Value>>>,
    #[serde(default)]
    temperature: Option<f64>,
    #[serde(default)]
    top_p: Option<f64>,
    #[serde(default)]
    max_tokens: Option<u64>,
    #[serde(default)]
    max_completion_tokens: Option<u64>,
    /// Only its type is checked.
    #[serde(default, rename = "stream")]
    _stream: Option<bool>,
}

#[derive(Deserialize)]
struct ValidMessage {
    role: String,
    #[serde(default)]
    content: Value,
}

/// Whether no endpoint could have accepted a request that was refused, so that the agent is to blame and not the
/// endpoint. Conservative: a request that passes may still be invalid.
pub fn is_malformed(body: &[u8]) -> bool {
    const ROLES: [&str; 6] = [
        "system",
        "developer",
        "user",
        "assistant",
        "tool",
        "function",
    ];
    if body.len() > BYTES_MAX {
        return true;
    }
    let Ok(request) = serde_json::from_slice::<ValidRequest>(body) else {
        return true;
    };
    let is_valid_message = |message: &ValidMessage| {
        ROLES.contains(&message.role.as_str())
            && matches!(
                message.content,
                Value::Null | Value::String(_) | Value::Array(_)
            )
    };
    let limits = [request.max_tokens, request.max_completion_tokens];
    let is_valid = !request.messages.is_empty()
        && request.messages.iter().all(is_valid_message)
        && request
            .temperature
            .is_none_or(|it| (0.0..=2.0).contains(&it))
        && request.top_p.is_none_or(|it| (0.0..=1.0).contains(&it))
        && !limits.contains(&Some(0))
        && request.tools.is_none_or(|tools| {
            let mut tools = tools.iter();
            tools.all(|tool| tool.contains_key("type") || tool.contains_key("name"))
        });
    !is_valid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_universally_invalid_requests_are_malformed() {
        let fine = [
            r#"{"messages":[{"role":"user","content":"hi"}]}"#,
            r#"{"messages":[{"role":"assistant","content":null,"tool_calls":[]}],"tools":[{"type":"function"}],"new":1}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"temperature":0,"stream":true}"#,
        ];
        for body in fine {
            assert!(!is_malformed(body.as_bytes()), "{body}");
        }
        let deep = format!(
            r#"{{"messages":[{{"role":"user","content":{}}}]}}"#,
            "[".repeat(1000) + &"]".repeat(1000)
        );
        let wrong = [
            "",
            "[]",
            "{}",
            r#"{"messages":5}"#,
            r#"{"messages":[]}"#,
            r#"{"messages":["hi"]}"#,
            r#"{"messages":[{"role":"nobody","content":"hi"}]}"#,
            r#"{"messages":[{"role":"user","content":7}]}"#,
            r#"{"messages":[{"role":"user","content":"hi"}],"temperature":99}"#,
            r#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":-1}"#,
            r#"{"messages":[{"role":"user","content":"hi"}],"tools":"bash"}"#,
            r#"{"messages":[{"role":"user","content":"hi"}],"stream":"yes"}"#,
            &deep,
        ];
        for body in wrong {
            assert!(is_malformed(body.as_bytes()), "{body}");
        }
    }
}
