//! What a whole answer lacks that has a good status.

use super::added::AddedFields;
use super::error::StreamError;
use super::finish::is_aborted_finish;
use super::members::Members;
use super::readable::{NO_JSON, is_json};
use super::skim::elements;
use super::strip::strip_body;

/// Why a whole answer with a good status is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerFault {
    /// The inference engine aborted the completion, with this finish reason.
    Aborted(String),
    /// An error in place of an answer.
    Error(StreamError),
    /// It is not JSON, or not the JSON of an answer.
    Unreadable(&'static str),
}

/// What is wrong with a whole answer, seen as its agent sees it: without what only we asked for.
pub(crate) fn fault_of(body: &[u8], added: &AddedFields) -> Option<AnswerFault> {
    let (stripped, _) = strip_body(body, added);
    let text = std::str::from_utf8(stripped.as_deref().unwrap_or(body));
    let read = text.ok().filter(|text| is_json(text));
    let Some((text, members)) = read.and_then(|text| Some((text, Members::read(text)?))) else {
        return Some(AnswerFault::Unreadable(NO_JSON));
    };
    let choices = members.get("choices").and_then(elements);
    let choice = choices
        .as_ref()
        .and_then(|list| Members::read(list.first()?));
    let message = choice.as_ref().and_then(|choice| choice.get("message"));
    if message.and_then(Members::read).is_some() {
        let reason: Option<String> = choice.and_then(|choice| choice.value("finish_reason"));
        let aborted = reason.filter(|reason| is_aborted_finish(reason));
        return aborted.map(AnswerFault::Aborted);
    }
    Some(match StreamError::read(text) {
        Some(error) => AnswerFault::Error(error),
        None if choice.is_some() => AnswerFault::Unreadable("its choice has no message"),
        None => AnswerFault::Unreadable("it has no choices"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_answer_has_a_choice_with_a_message() {
        let fault = |body: &str| fault_of(body.as_bytes(), &AddedFields::default());
        for good in [
            r#"{"choices":[{"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}]}"#,
            r#" {"error":null,"choices":[{"message":{"content":null},"finish_reason":"length"}]}"#,
            r#"{"choices":[{"message":{"content":"x","error":"abort"},"finish_reason":"stop"}]}"#,
            r#"{"choices":[{"message":{"content":"{\"error\":1}"}}]}"#,
        ] {
            assert_eq!(fault(good), None, "{good}");
        }
        let unreadable = |why| Some(AnswerFault::Unreadable(why));
        for (bad, why) in [
            ("", NO_JSON),
            ("<html>", NO_JSON),
            ("[]", NO_JSON),
            (r#"{"choices":[{"message":{"content":"hal"#, NO_JSON),
            (r#"{"choices":[{"message":{"content":"\ud800"}}]}"#, NO_JSON),
            (
                r#"{"choices":[{"message":{"content":"a"},"x":tru}]}"#,
                NO_JSON,
            ),
            (r#"{"choices":[]}"#, "it has no choices"),
            ("{}", "it has no choices"),
            (
                r#"{"choices":[{"finish_reason":"stop"}]}"#,
                "its choice has no message",
            ),
            (
                r#"{"choices":[{"message":null,"finish_reason":"stop"}]}"#,
                "its choice has no message",
            ),
        ] {
            assert_eq!(fault(bad), unreadable(why), "{bad}");
        }
        assert_eq!(
            fault_of(b"{\"a\":\"\xff\"}", &AddedFields::default()),
            unreadable(NO_JSON)
        );
        let aborted = r#"{"choices":[{"message":{"content":"\"finish_reason\":\"stop\""},"finish_reason":"abort"}]}"#;
        assert_eq!(
            fault(aborted),
            Some(AnswerFault::Aborted("abort".to_owned()))
        );
        let error = r#"{"error":{"message":"too busy","code":503}}"#;
        assert!(
            matches!(fault(error), Some(AnswerFault::Error(error)) if error.message == "too busy")
        );
    }

    #[test]
    fn what_the_agent_does_not_see_is_not_looked_at() {
        let body = br#"{"choices":[{"message":{"content":"a"},"logprobs":{"content":[{"logprob":NaN}]}}]}"#;
        let ours = AddedFields {
            logprobs: true,
            ..AddedFields::default()
        };
        assert_eq!(fault_of(body, &ours), None);
        let agents = AddedFields::default();
        assert_eq!(
            fault_of(body, &agents),
            Some(AnswerFault::Unreadable(NO_JSON))
        );
    }
}
