//! One event of a chat stream, parsed once: its kind, what of it the agent sees, and its usage.

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::added::AddedFields;
use super::delta::{Delta, read_delta};
use super::error::StreamError;
use super::finish::is_aborted_finish;
use super::members::Members;
use super::readable::{NO_JSON, is_json};
use super::reply::{Usage, is_done, read_usage};
use super::skim::elements;
use super::strip::{StrippedEvent, strip_members};

/// The role of an event in its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Nothing that an agent could act on: a role, usage, prompt token ids, a keep-alive.
    Nothing,
    /// Part of the answer, or unknown.
    Content,
    /// Has a finish reason: from here on an agent may act on the answer.
    Final,
    /// The inference engine aborted the completion, with this finish reason: there is no valid answer.
    Aborted(String),
    /// Nobody can read it, for this reason: whatever it was is missing from the answer.
    Unreadable(&'static str),
    /// The last event.
    Done,
    /// An error instead of the rest of the answer.
    Error(StreamError),
}

/// The unparsed members of an event and of its choices. Lists of token ids and logprobs, which make up most of an
/// event, are skipped over without parsing.
#[derive(Debug)]
pub struct ChatEvent<'a> {
    data: &'a str,
    /// `None` if the data is no JSON object.
    chunk: Option<Chunk<'a>>,
}

#[derive(Debug)]
struct Chunk<'a> {
    members: Members<'a>,
    choices: Option<Vec<&'a str>>,
    /// The only one: `n` is always 1.
    choice: Option<Members<'a>>,
}

/// The deltas in the data of one chat stream event; empty if it cannot be parsed.
pub fn deltas(data: &str) -> Vec<Delta> {
    ChatEvent::read(data).deltas()
}

impl<'a> ChatEvent<'a> {
    pub fn read(data: &'a str) -> Self {
        let chunk = Members::read(data).map(|members| {
            let choices = members.text("choices").and_then(elements);
            let first = choices.as_ref().and_then(|choices| choices.first());
            Chunk {
                choice: first.and_then(|choice| Members::read(choice)),
                choices,
                members,
            }
        });
        ChatEvent { data, chunk }
    }

    /// The kind of event.
    pub fn kind(&self) -> EventKind {
        let Some(chunk) = &self.chunk else {
            return match self.data.trim() {
                "" => EventKind::Nothing,
                data if is_done(data) => EventKind::Done,
                _ => EventKind::Unreadable(NO_JSON),
            };
        };
        if chunk.members.get("error").is_some()
            && let Some(error) = StreamError::read(self.data)
        {
            return EventKind::Error(error);
        }
        match self.finish_reason() {
            Some(reason) if is_aborted_finish(&reason) => EventKind::Aborted(reason),
            reason => match (reason, chunk.has_content()) {
                (_, None) => EventKind::Unreadable("its delta is no object"),
                (Some(_), _) => EventKind::Final,
                (None, Some(true)) => EventKind::Content,
                (None, Some(false)) => EventKind::Nothing,
            },
        }
    }

    /// Some endpoints send an empty reason instead of null. Since a finish reason ends the answer, the whole event must
    /// be valid JSON: skimming alone would accept a truncated one.
    fn finish_reason(&self) -> Option<String> {
        let choice = self.chunk.as_ref()?.choice.as_ref()?;
        let reason: String = choice.value("finish_reason")?;
        let is_json = || serde_json::from_str::<IgnoredAny>(self.data).is_ok();
        (!reason.is_empty() && is_json()).then_some(reason)
    }

    /// The usage, if this event reports it.
    pub fn usage(&self) -> Option<Usage> {
        let usage = self.chunk.as_ref()?.members.get("usage")?;
        read_usage(usage.as_bytes())
    }

    /// The deltas in this event; empty if it cannot be parsed.
    pub fn deltas(&self) -> Vec<Delta> {
        let mut out = Vec::new();
        let choice = self.chunk.as_ref().and_then(|chunk| chunk.choice.as_ref());
        if let Some(choice) = choice {
            if let Some(delta) = choice.value::<Map<String, Value>>("delta") {
                read_delta(&delta, &mut out);
            }
            out.extend(self.finish_reason().map(Delta::Finish));
        }
        out.extend(self.usage().map(Delta::Usage));
        out
    }

    /// Whether its delta can be read, if it has one.
    pub(crate) fn has_readable_delta(&self) -> bool {
        let choice = self.chunk.as_ref().and_then(|chunk| chunk.choice.as_ref());
        let delta = choice.and_then(|choice| choice.get("delta"));
        delta.is_none_or(is_json)
    }

    /// The event without what the agent did not request.
    pub fn strip(self, added: &AddedFields) -> StrippedEvent {
        let Some(chunk) = self.chunk else {
            return StrippedEvent::Unchanged;
        };
        if chunk.is_ours_alone(added) {
            return StrippedEvent::Dropped;
        }
        let stripped = strip_members(chunk.members, chunk.choices.as_deref(), added);
        stripped.map_or(StrippedEvent::Unchanged, StrippedEvent::Changed)
    }
}

impl Chunk<'_> {
    /// Whether it contains anything that an agent could act on; `None` if its delta is no object.
    fn has_content(&self) -> Option<bool> {
        let Some(delta) = self.choice.as_ref().and_then(|choice| choice.get("delta")) else {
            return Some(false);
        };
        let delta = Members::read(delta)?;
        let is_empty = |value: &str| matches!(value, "\"\"" | "[]" | "{}");
        let mut names = delta.names().filter(|name| *name != "role");
        Some(names.any(|name| delta.get(name).is_some_and(|value| !is_empty(value))))
    }

    /// Whether it exists only because of what we requested in addition: usage, or token ids (SGLang's `sglext`).
    fn is_ours_alone(&self, added: &AddedFields) -> bool {
        let has_no_choices = self.choices.as_ref().is_some_and(Vec::is_empty);
        let has_usage = self.members.get("usage").is_some();
        let has_ids = self.members.get("sglext").is_some();
        has_no_choices
            && (has_usage || has_ids)
            && (added.usage || !has_usage)
            && (added.token_ids || !has_ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(data: &str) -> EventKind {
        ChatEvent::read(data).kind()
    }

    #[test]
    fn an_event_with_a_finish_reason_is_the_end() {
        let stop = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
        assert_eq!(kind(stop), EventKind::Final);
        for data in [
            r#"{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":""}]}"#,
            // Looks complete when only skimmed.
            r#"{"choices":[{"delta":{"content":"a"},"x":tru,"finish_reason":"stop"}]}"#,
        ] {
            assert_eq!(kind(data), EventKind::Content, "{data}");
        }
        assert_eq!(kind("[DONE]"), EventKind::Done);
        assert_eq!(kind(" "), EventKind::Nothing);
        for data in ["no json", r#"{"choices":[{"delta":{"cont"#, "[]", "null"] {
            assert_eq!(kind(data), EventKind::Unreadable(NO_JSON), "{data}");
        }
        let odd = r#"{"choices":[{"delta":"ok"}]}"#;
        assert_eq!(kind(odd), EventKind::Unreadable("its delta is no object"));
        let aborted =
            r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"abort","stop_reason":null}]}"#;
        assert_eq!(kind(aborted), EventKind::Aborted("abort".to_owned()));
    }

    #[test]
    fn events_with_content_are_distinguished() {
        for (data, expect) in [
            (
                r#"{"choices":[{"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1]}"#,
                EventKind::Nothing,
            ),
            (
                r#"{"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":[]}}]}"#,
                EventKind::Nothing,
            ),
            (
                r#"{"choices":[],"usage":{"prompt_tokens":1}}"#,
                EventKind::Nothing,
            ),
            (r#"{"type":"ping"}"#, EventKind::Nothing),
            (
                r#"{"choices":[{"delta":{"content":"a"}}]}"#,
                EventKind::Content,
            ),
            (
                r#"{"choices":[{"delta":{"reasoning_content":"a"}}]}"#,
                EventKind::Content,
            ),
            (
                r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
                EventKind::Content,
            ),
        ] {
            assert_eq!(kind(data), expect, "{data}");
        }
    }

    #[test]
    fn an_error_is_distinguished_from_text_about_one() {
        assert!(matches!(
            kind(r#"{"error":{"message":"too busy","code":503}}"#),
            EventKind::Error(error) if error.is_transient() && error.message == "too busy"
        ));
        let text = r#"{"choices":[{"delta":{"content":"{\"error\": 1}"}}],"error":null}"#;
        assert_eq!(kind(text), EventKind::Content);
    }
}
