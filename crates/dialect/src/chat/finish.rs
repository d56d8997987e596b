//! How answers end: by the model, by a limit, or not at all.

use memchr::memmem;

use super::members::Members;
use super::skim::elements;

/// Whether a finish reason says that the engine gave up on the completion (vLLM's weight sync aborts what is under way):
/// such a completion is no answer. A refusal or a filtered text is one.
pub fn is_no_answer(finish_reason: &str) -> bool {
    matches!(finish_reason, "abort" | "error")
}

/// The finish reason of a whole answer.
pub(crate) fn finish_of_whole(body: &str) -> Option<String> {
    let members = Members::read(body)?;
    let choices = members.get("choices").and_then(elements)?;
    let reason: Option<String> = Members::read(choices.first()?)?.value("finish_reason");
    reason.filter(|reason| !reason.is_empty())
}

/// Whether a stored answer, JSON or stream, says that it ended for this reason; `member` is where its dialect says so.
pub(crate) fn ends_by(body: &[u8], member: &str, reason: &str) -> bool {
    let (member, reason) = (format!("\"{member}\""), format!("\"{reason}\""));
    let mut places = memmem::find_iter(body, reason.as_bytes());
    // The name stands before it; in a text of the model's both would be escaped.
    places.any(|at| {
        let before = body[..at].trim_ascii_end();
        let before = before.strip_suffix(b":").unwrap_or_default();
        before.trim_ascii_end().ends_with(member.as_bytes())
    })
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
    fn only_what_the_engine_gave_up_is_no_answer() {
        for reason in ["abort", "error"] {
            assert!(is_no_answer(reason));
        }
        for reason in ["stop", "length", "tool_calls", "content_filter", "refusal"] {
            assert!(!is_no_answer(reason), "{reason}");
        }
        let whole = r#"{"choices":[{"message":{"content":"\"finish_reason\":\"stop\""},"finish_reason":"abort"}]}"#;
        assert_eq!(finish_of_whole(whole).as_deref(), Some("abort"));
        assert_eq!(finish_of_whole("<html>"), None);
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
