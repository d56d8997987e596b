//! One event of a chat stream, read once: what it means for the stream, what of it the agent sees, what was used.

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::added::Added;
use super::delta::{Delta, read_delta};
use super::error::StreamError;
use super::finish::is_no_answer;
use super::members::Members;
use super::reply::is_done;
use super::reply::{Usage, read_usage};
use super::skim::elements;
use super::strip::{Stripped, strip_members};

/// What an event means for its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A role, usage, ids of the prompt, a sign of life: nothing that an agent could act on.
    Nothing,
    /// A piece of the answer, or something that we do not know.
    Content,
    /// There is a finish reason: after it an agent may act on the answer.
    Final,
    /// The engine gave up on the completion, with this finish reason. What came of it is no answer.
    Aborted(String),
    /// The last event.
    Done,
    /// An error in the place of what is missing.
    Error(StreamError),
}

/// The members of an event and of its choices, as they are written. Lists of ids and logprobs, which are most of it, are
/// passed over.
#[derive(Debug)]
pub struct ChatEvent<'a> {
    data: &'a str,
    /// `None` for what is no JSON object.
    chunk: Option<Chunk<'a>>,
}

#[derive(Debug)]
struct Chunk<'a> {
    members: Members<'a>,
    choices: Option<Vec<&'a str>>,
    /// There is one: `n` is always 1.
    choice: Option<Members<'a>>,
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

    /// What it means for the stream. What is no chunk of a completion is content: the agent's to judge.
    pub fn mark(&self) -> Mark {
        let Some(chunk) = &self.chunk else {
            return match is_done(self.data) {
                true => Mark::Done,
                false => Mark::Content,
            };
        };
        if chunk.members.get("error").is_some()
            && let Some(error) = StreamError::read(self.data)
        {
            return Mark::Error(error);
        }
        match self.finish_reason() {
            Some(reason) if is_no_answer(&reason) => Mark::Aborted(reason),
            Some(_) => Mark::Final,
            None if chunk.has_content() => Mark::Content,
            None => Mark::Nothing,
        }
    }

    /// Some upstreams write an empty reason where others write null. It ends the answer, so it must be in real JSON:
    /// what is only skimmed may be torn.
    fn finish_reason(&self) -> Option<String> {
        let choice = self.chunk.as_ref()?.choice.as_ref()?;
        let reason: String = choice.value("finish_reason")?;
        let is_json = || serde_json::from_str::<IgnoredAny>(self.data).is_ok();
        (!reason.is_empty() && is_json()).then_some(reason)
    }

    /// What the answer used, on the event that says so.
    pub fn usage(&self) -> Option<Usage> {
        let usage = self.chunk.as_ref()?.members.get("usage")?;
        read_usage(usage.as_bytes())
    }

    /// The pieces of the answer. What cannot be read holds none.
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

    /// The event without what the agent did not ask for.
    pub fn strip(self, added: &Added) -> Stripped {
        let Some(chunk) = self.chunk else {
            return Stripped::Unchanged;
        };
        if chunk.is_ours_alone(added) {
            return Stripped::Dropped;
        }
        let stripped = strip_members(chunk.members, chunk.choices.as_deref(), added);
        stripped.map_or(Stripped::Unchanged, Stripped::Changed)
    }
}

impl Chunk<'_> {
    /// Whether there is something in it that an agent could act on.
    fn has_content(&self) -> bool {
        let Some(delta) = self.choice.as_ref().and_then(|choice| choice.get("delta")) else {
            return false;
        };
        let Some(delta) = Members::read(delta) else {
            return true;
        };
        let is_empty = |value: &str| matches!(value, "\"\"" | "[]" | "{}");
        delta
            .names()
            .filter(|name| *name != "role")
            .any(|name| delta.get(name).is_some_and(|value| !is_empty(value)))
    }

    /// A chunk without choices that is there only because we asked: for usage, or for token ids (SGLang's `sglext`).
    fn is_ours_alone(&self, added: &Added) -> bool {
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

    fn mark(data: &str) -> Mark {
        ChatEvent::read(data).mark()
    }

    #[test]
    fn an_event_with_a_finish_reason_is_the_end() {
        let stop = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
        assert_eq!(mark(stop), Mark::Final);
        for data in [
            r#"{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":""}]}"#,
            "no json",
            // Looks whole to whoever only skims it.
            r#"{"choices":[{"delta":{"content":"a"},"x":tru,"finish_reason":"stop"}]}"#,
        ] {
            assert_eq!(mark(data), Mark::Content, "{data}");
        }
        assert_eq!(mark("[DONE]"), Mark::Done);
        let aborted =
            r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"abort","stop_reason":null}]}"#;
        assert_eq!(mark(aborted), Mark::Aborted("abort".to_owned()));
    }

    #[test]
    fn what_an_agent_could_act_on_is_told_from_what_it_could_not() {
        for (data, expect) in [
            (
                r#"{"choices":[{"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1]}"#,
                Mark::Nothing,
            ),
            (
                r#"{"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":[]}}]}"#,
                Mark::Nothing,
            ),
            (
                r#"{"choices":[],"usage":{"prompt_tokens":1}}"#,
                Mark::Nothing,
            ),
            (r#"{"type":"ping"}"#, Mark::Nothing),
            (r#"{"choices":[{"delta":{"content":"a"}}]}"#, Mark::Content),
            (
                r#"{"choices":[{"delta":{"reasoning_content":"a"}}]}"#,
                Mark::Content,
            ),
            (
                r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
                Mark::Content,
            ),
        ] {
            assert_eq!(mark(data), expect, "{data}");
        }
    }

    #[test]
    fn an_error_is_told_from_a_text_about_one() {
        assert!(matches!(
            mark(r#"{"error":{"message":"too busy","code":503}}"#),
            Mark::Error(error) if error.is_passing() && error.message == "too busy"
        ));
        let text = r#"{"choices":[{"delta":{"content":"{\"error\": 1}"}}],"error":null}"#;
        assert_eq!(mark(text), Mark::Content);
    }
}
