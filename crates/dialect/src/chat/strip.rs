//! Removes from an endpoint's answer what the agent did not request.
//!
//! What cannot be parsed is passed on unchanged, for the agent to judge.

use super::added::AddedFields;
use super::delta::THOUGHTS;
use super::members::Members;
use super::reply::{Usage, read_usage};
use super::skim::{EditedObject, MemberRule, edit, elements};

/// The data of one event after stripping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StrippedEvent {
    Unchanged,
    Changed(String),
    /// The event is not sent to the agent.
    Dropped,
}

/// Strips a JSON answer; `None` if nothing changes. Also returns the usage, if the same pass finds it.
pub fn strip_body(body: &[u8], added: &AddedFields) -> (Option<Vec<u8>>, Option<Usage>) {
    match strip_object(body, added) {
        Some(EditedObject { text, usage }) => (text, usage.and_then(read_usage)),
        None => (None, None),
    }
}

/// `None` if the text is no object.
fn strip_object<'a>(text: &'a [u8], added: &AddedFields) -> Option<EditedObject<'a>> {
    // Slow path for rare agents: those that request logprobs without alternatives, or turn off reasoning.
    if (added.logprobs || !added.top_logprobs) && !added.reasoning {
        return edit(text, added, answer_rule);
    }
    let text = std::str::from_utf8(text).ok()?;
    Some(EditedObject {
        text: strip_slowly(text, added).map(String::into_bytes),
        usage: None,
    })
}

fn answer_rule(name: &[u8], added: &AddedFields) -> MemberRule {
    match name {
        b"\"prompt_token_ids\"" | b"\"sglext\"" if added.token_ids => MemberRule::Drop,
        b"\"usage\"" => MemberRule::Usage {
            is_null_dropped: added.usage,
        },
        b"\"choices\"" => MemberRule::Each(choice_rule),
        _ => MemberRule::Keep,
    }
}

fn choice_rule(name: &[u8], added: &AddedFields) -> MemberRule {
    match name {
        b"\"token_ids\"" | b"\"prompt_token_ids\"" if added.token_ids => MemberRule::Drop,
        b"\"logprobs\"" if added.logprobs => MemberRule::Null,
        _ => MemberRule::Keep,
    }
}

fn strip_slowly(text: &str, added: &AddedFields) -> Option<String> {
    let members = Members::read(text)?;
    let choices = members.text("choices").and_then(elements);
    strip_members(members, choices.as_deref(), added)
}

/// Strips an answer or an event; `None` if nothing changes. `choices` are the elements of the member of that name.
pub(super) fn strip_members(
    mut members: Members<'_>,
    choices: Option<&[&str]>,
    added: &AddedFields,
) -> Option<String> {
    let mut is_changed = false;
    if added.token_ids {
        is_changed |= members.remove("prompt_token_ids");
        is_changed |= members.remove("sglext");
    }
    if added.usage && members.has("usage") && members.get("usage").is_none() {
        is_changed |= members.remove("usage");
    }
    let stripped = choices.and_then(|list| strip_each(list, |it| strip_choice(it, added)));
    if let Some(choices) = stripped {
        members.set("choices", choices);
        is_changed = true;
    }
    is_changed.then(|| members.write())
}

fn strip_choice(text: &str, added: &AddedFields) -> Option<String> {
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

/// Removes the reasoning from a message or a delta.
fn strip_thoughts(text: &str) -> Option<String> {
    let mut said = Members::read(text)?;
    let mut is_changed = false;
    for name in THOUGHTS {
        is_changed |= said.remove(name);
    }
    is_changed.then(|| said.write())
}

/// Empties the lists of alternatives, as an endpoint does if none are requested.
fn strip_alternatives(text: &str) -> Option<String> {
    let mut members = Members::read(text)?;
    let content = strip_each(&elements(members.get("content")?)?, |entry| {
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

/// The array of these elements after `strip`; `None` if no element changed.
fn strip_each(elements: &[&str], strip: impl Fn(&str) -> Option<String>) -> Option<String> {
    let mut is_changed = false;
    let parts: Vec<String> = elements
        .iter()
        .map(|element| {
            let stripped = strip(element);
            is_changed |= stripped.is_some();
            stripped.unwrap_or_else(|| (*element).to_owned())
        })
        .collect();
    is_changed.then(|| format!("[{}]", parts.join(",")))
}

#[cfg(test)]
mod tests;
