//! Finish reasons, found without parsing the answer.

use memchr::memmem;

const FAILED: [&str; 2] = ["abort", "error"];

/// Whether a finish reason means that the inference engine aborted the completion, as vLLM does at a weight sync: the
/// completion is then not a valid answer. A refusal or a filtered text is one.
pub fn is_aborted_finish(finish_reason: &str) -> bool {
    FAILED.contains(&finish_reason)
}

/// Whether an answer, JSON or stream, has this finish reason; `member` is its dialect's name for the member.
pub(crate) fn has_finish_reason(body: &[u8], member: &str, reason: &str) -> bool {
    let (member, reason) = (format!("\"{member}\""), format!("\"{reason}\""));
    let mut places = memmem::find_iter(body, reason.as_bytes());
    // The member's name precedes its value. In text by the model, the quotes of both would be escaped.
    places.any(|at| {
        let before = body[..at].trim_ascii_end();
        let before = before.strip_suffix(b":").unwrap_or_default();
        before.trim_ascii_end().ends_with(member.as_bytes())
    })
}

/// Whether a request offers tools. An agent's main conversation does; its requests for titles and summaries do not.
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
    fn only_aborted_completions_are_no_answer() {
        for reason in ["abort", "error"] {
            assert!(is_aborted_finish(reason));
        }
        for reason in ["stop", "length", "tool_calls", "content_filter", "refusal"] {
            assert!(!is_aborted_finish(reason), "{reason}");
        }
    }

    #[test]
    fn offered_tools_are_detected() {
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
