//! How answers end: by the model, by a limit, or not at all.

use memchr::memmem;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::members::Members;
use super::skim::elements;

const FAILED: [&str; 2] = ["abort", "error"];

/// Whether a finish reason says that the engine gave up on the completion (vLLM's weight sync aborts what is under way):
/// such a completion is no answer. A refusal or a filtered text is one.
pub fn is_no_answer(finish_reason: &str) -> bool {
    FAILED.contains(&finish_reason)
}

/// What an event of a stream says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// A role, usage, ids of the prompt: nothing that an agent could act on.
    Nothing,
    Something,
    /// The answer's end, and its reason.
    Finish(String),
}

/// Reads what an event says. What is no chunk of a completion says something.
pub fn said_by(data: &str) -> Said {
    #[derive(Deserialize)]
    struct Chunk {
        choices: Option<Vec<Choice>>,
    }
    #[derive(Deserialize)]
    struct Choice {
        #[serde(default)]
        delta: Option<Map<String, Value>>,
        finish_reason: Option<String>,
    }
    if let Some(reason) = finish_of(data) {
        return Said::Finish(reason);
    }
    let Ok(chunk) = serde_json::from_str::<Chunk>(data) else {
        return Said::Something;
    };
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    let has_content = |choice: &Choice| {
        let delta = choice.delta.iter().flatten();
        let mut content = delta.filter(|(name, _)| name.as_str() != "role");
        content.any(|(_, value)| !is_empty(value)) || choice.finish_reason.is_some()
    };
    match chunk.choices.unwrap_or_default().iter().any(has_content) {
        true => Said::Something,
        false => Said::Nothing,
    }
}

/// The finish reason in an event of a stream. After it an agent may act on the answer.
pub fn finish_of(data: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Chunk {
        choices: Option<Vec<Choice>>,
    }
    #[derive(Deserialize)]
    struct Choice {
        finish_reason: Option<String>,
    }
    let chunk: Option<Chunk> = serde_json::from_str(data).ok();
    let choices = chunk.and_then(|chunk| chunk.choices).unwrap_or_default();
    // Some upstreams write an empty reason where others write null.
    let mut reasons = choices.into_iter().filter_map(|it| it.finish_reason);
    reasons.find(|reason| !reason.is_empty())
}

/// The finish reason of a whole answer that the engine gave up on.
pub fn failed_finish_of_whole(body: &[u8]) -> Option<String> {
    // Most answers have none of these words, and need not be read for it.
    let mut words = FAILED.iter().map(|word| format!("\"{word}\""));
    if !words.any(|word| memmem::find(body, word.as_bytes()).is_some()) {
        return None;
    }
    let members = Members::read(std::str::from_utf8(body).ok()?)?;
    let choices = members.get("choices").and_then(elements)?;
    let reason: Option<String> = Members::read(choices.first()?)?.value("finish_reason");
    reason.filter(|reason| is_no_answer(reason))
}

/// Whether a stored answer, JSON or stream, in chat or in Anthropic's words, was cut by the limit on its length.
pub fn is_cut(body: &[u8]) -> bool {
    let ends = |reason: &[u8], name: &[u8]| {
        let mut places = memmem::find_iter(body, reason);
        // The name stands before it; in a text of the model's both would be escaped.
        places.any(|at| {
            let before = body[..at].trim_ascii_end();
            let before = before.strip_suffix(b":").unwrap_or_default();
            before.trim_ascii_end().ends_with(name)
        })
    };
    ends(b"\"length\"", b"\"finish_reason\"") || ends(b"\"max_tokens\"", b"\"stop_reason\"")
}

/// Whether a request offers tools: titles and summaries do not, an agent's own work does.
pub fn offers_tools(body: &[u8]) -> bool {
    const NAME: &[u8] = b"\"tools\"";
    let mut places = memmem::find_iter(body, NAME);
    places.any(|at| {
        let rest = body[at + NAME.len()..].trim_ascii_start();
        let list = rest.strip_prefix(b":").map(<[u8]>::trim_ascii_start);
        let items = list.and_then(|list| list.strip_prefix(b"["));
        items.is_some_and(|items| !items.trim_ascii_start().starts_with(b"]"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_with_a_finish_reason_is_the_end() {
        let stop = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
        assert_eq!(finish_of(stop).as_deref(), Some("stop"));
        for data in [
            r#"{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":""}]}"#,
            r#"{"choices":[],"usage":{}}"#,
            "[DONE]",
            "no json",
        ] {
            assert_eq!(finish_of(data), None, "{data}");
        }
    }

    #[test]
    fn what_an_agent_could_act_on_is_told_from_what_it_could_not() {
        for (data, said) in [
            (
                r#"{"choices":[{"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1]}"#,
                Said::Nothing,
            ),
            (
                r#"{"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":[]}}]}"#,
                Said::Nothing,
            ),
            (
                r#"{"choices":[],"usage":{"prompt_tokens":1}}"#,
                Said::Nothing,
            ),
            (
                r#"{"choices":[{"delta":{"content":"a"}}]}"#,
                Said::Something,
            ),
            (
                r#"{"choices":[{"delta":{"reasoning_content":"a"}}]}"#,
                Said::Something,
            ),
            (
                r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
                Said::Something,
            ),
            ("[DONE]", Said::Something),
            (
                r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"abort"}]}"#,
                Said::Finish("abort".to_owned()),
            ),
        ] {
            assert_eq!(said_by(data), said, "{data}");
        }
    }

    #[test]
    fn only_what_the_engine_gave_up_is_no_answer() {
        for reason in ["abort", "error"] {
            assert!(is_no_answer(reason));
        }
        for reason in ["stop", "length", "tool_calls", "content_filter", "refusal"] {
            assert!(!is_no_answer(reason), "{reason}");
        }
        let whole = r#"{"choices":[{"message":{"content":"\"finish_reason\":\"stop\""},"finish_reason":"abort"}]}"#;
        let failed = |body: &str| failed_finish_of_whole(body.as_bytes());
        assert_eq!(failed(whole).as_deref(), Some("abort"));
        let said =
            r#"{"choices":[{"message":{"content":"x","error":"abort"},"finish_reason":"stop"}]}"#;
        assert_eq!(failed(said), None);
        assert_eq!(failed("<html>"), None);
    }

    #[test]
    fn a_cut_answer_is_found_in_any_form() {
        for cut in [
            r#"{"choices":[{"finish_reason":"length"}]}"#,
            "data: {\"choices\": [{\"finish_reason\": \"length\"}]}\n\ndata: [DONE]\n\n",
            r#"{"type":"message_delta","delta":{"stop_reason":"max_tokens"}}"#,
        ] {
            assert!(is_cut(cut.as_bytes()), "{cut}");
        }
        for whole in [
            r#"{"choices":[{"finish_reason":"stop"}],"x":"length"}"#,
            r#"{"choices":[{"message":{"content":"\"finish_reason\":\"length\""}}]}"#,
            "",
        ] {
            assert!(!is_cut(whole.as_bytes()), "{whole}");
        }
    }

    #[test]
    fn offered_tools_are_seen() {
        assert!(offers_tools(br#"{"tools": [{"type":"function"}]}"#));
        for none in [
            &br#"{"tools":[]}"#[..],
            br#"{"tools":null}"#,
            br#"{"messages":[{"content":"\"tools\":[1]"}]}"#,
            b"",
        ] {
            assert!(!offers_tools(none), "{}", String::from_utf8_lossy(none));
        }
    }
}
