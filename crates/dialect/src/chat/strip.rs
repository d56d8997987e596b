//! The upstream's answer to the answer the agent asked for.
//!
//! What cannot be read goes through as it is: it is the agent's to judge.

use super::delta::THOUGHTS;
use super::members::Members;
use super::prepare::Added;
use super::reply::{Usage, read_usage};
use super::skim::{Edited, Rule, edit, elements};

/// What becomes of one event's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stripped {
    Unchanged,
    Changed(String),
    /// The agent gets no such event.
    Dropped,
}

/// A whole JSON answer without what the agent did not ask for, `None` when nothing changes; and what it used, where the
/// same look finds that.
pub fn strip_body(body: &[u8], added: &Added) -> (Option<Vec<u8>>, Option<Usage>) {
    match strip_object(body, added) {
        Some(Edited { text, usage }) => (text, usage.and_then(read_usage)),
        None => (None, None),
    }
}

/// One event's data without what the agent did not ask for.
pub fn strip_event(data: &str, added: &Added) -> Stripped {
    if is_ours_alone(data, added) {
        return Stripped::Dropped;
    }
    let stripped = strip_object(data.as_bytes(), added).and_then(|edited| edited.text);
    let text = stripped.and_then(|text| String::from_utf8(text).ok());
    text.map_or(Stripped::Unchanged, Stripped::Changed)
}

/// Whether the event is the marker that ends a stream.
pub fn is_done(data: &str) -> bool {
    data.trim() == "[DONE]"
}

/// A chunk without choices that is there only because we asked: for usage, or for token ids (SGLang's `sglext`).
fn is_ours_alone(data: &str, added: &Added) -> bool {
    let Some(members) = Members::read(data) else {
        return false;
    };
    let has_no_choices = members
        .get("choices")
        .and_then(elements)
        .is_some_and(|choices| choices.is_empty());
    let has_usage = members.get("usage").is_some();
    let has_ids = members.get("sglext").is_some();
    has_no_choices
        && (has_usage || has_ids)
        && (added.usage || !has_usage)
        && (added.token_ids || !has_ids)
}

/// `None` when it is none.
fn strip_object<'a>(text: &'a [u8], added: &Added) -> Option<Edited<'a>> {
    // An agent that asks for logprobs itself but for no alternatives, or for no thoughts, is rare and takes the slow way.
    if (added.logprobs || !added.top_logprobs) && !added.reasoning {
        return edit(text, added, answer_rule);
    }
    let text = std::str::from_utf8(text).ok()?;
    Some(Edited {
        text: strip_slowly(text, added).map(String::into_bytes),
        usage: None,
    })
}

fn answer_rule(name: &[u8], added: &Added) -> Rule {
    match name {
        b"\"prompt_token_ids\"" | b"\"sglext\"" if added.token_ids => Rule::Drop,
        b"\"usage\"" => Rule::Usage {
            is_null_dropped: added.usage,
        },
        b"\"choices\"" => Rule::Each(choice_rule),
        _ => Rule::Keep,
    }
}

fn choice_rule(name: &[u8], added: &Added) -> Rule {
    match name {
        b"\"token_ids\"" | b"\"prompt_token_ids\"" if added.token_ids => Rule::Drop,
        b"\"logprobs\"" if added.logprobs => Rule::Null,
        _ => Rule::Keep,
    }
}

fn strip_slowly(text: &str, added: &Added) -> Option<String> {
    let mut members = Members::read(text)?;
    let mut is_changed = false;
    if added.token_ids {
        is_changed |= members.remove("prompt_token_ids");
        is_changed |= members.remove("sglext");
    }
    if added.usage && members.has("usage") && members.get("usage").is_none() {
        is_changed |= members.remove("usage");
    }
    if let Some(choices) = members
        .get("choices")
        .and_then(|text| strip_each(text, |choice| strip_choice(choice, added)))
    {
        members.set("choices", choices);
        is_changed = true;
    }
    is_changed.then(|| members.write())
}

fn strip_choice(text: &str, added: &Added) -> Option<String> {
    let mut members = Members::read(text)?;
    let mut is_changed = false;
    if added.token_ids {
        is_changed |= members.remove("token_ids");
        is_changed |= members.remove("prompt_token_ids");
    }
    if added.logprobs {
        if members.get("logprobs").is_some() {
            members.set("logprobs", "null".to_owned());
            is_changed = true;
        }
    } else if added.top_logprobs
        && let Some(logprobs) = members.get("logprobs").and_then(strip_alternatives)
    {
        members.set("logprobs", logprobs);
        is_changed = true;
    }
    if added.reasoning {
        for name in ["message", "delta"] {
            if let Some(said) = members.get(name).and_then(strip_thoughts) {
                members.set(name, said);
                is_changed = true;
            }
        }
    }
    is_changed.then(|| members.write())
}

/// A message, or a piece of one, without the model's thoughts.
fn strip_thoughts(text: &str) -> Option<String> {
    let mut said = Members::read(text)?;
    let mut is_changed = false;
    for name in THOUGHTS {
        is_changed |= said.remove(name);
    }
    is_changed.then(|| said.write())
}

/// Logprobs without the alternatives, which an agent gets as empty lists when it asks for none.
fn strip_alternatives(text: &str) -> Option<String> {
    let mut members = Members::read(text)?;
    let content = strip_each(members.get("content")?, |entry| {
        let mut entry = Members::read(entry)?;
        entry
            .get("top_logprobs")
            .and_then(elements)
            .filter(|alternatives| !alternatives.is_empty())?;
        entry.set("top_logprobs", "[]".to_owned());
        Some(entry.write())
    })?;
    members.set("content", content);
    Some(members.write())
}

/// The array with each element that `strip` changes replaced; `None` when none was.
fn strip_each(text: &str, strip: impl Fn(&str) -> Option<String>) -> Option<String> {
    let mut is_changed = false;
    let parts: Vec<String> = elements(text)?
        .into_iter()
        .map(|element| {
            let stripped = strip(element);
            is_changed |= stripped.is_some();
            stripped.unwrap_or_else(|| element.to_owned())
        })
        .collect();
    is_changed.then(|| format!("[{}]", parts.join(",")))
}

#[cfg(test)]
mod tests;
