//! Finds a reply in a later request: at which messages, and how well those match it.
//!
//! Agents add members that have defaults, cut white space, write numbers in another form, replace what they cannot
//! read, and send one reply as several messages.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use crate::turn::{Shared, Turn};
use rollcage_dialect::chat::{Message, ToolCall};

/// How strong the evidence is that messages are a certain reply, the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fit {
    /// It calls tools where the reply called none.
    No,
    /// Nothing but its position, which is the reply's.
    Place,
    /// The same tools are called.
    Shape,
    /// The same words but for white space, the forms of numbers and added members.
    Words,
}

/// The ids of the calls that a message makes or answers.
pub(super) fn ids_in(message: &Value) -> impl Iterator<Item = &str> {
    let made = calls_in(message).filter_map(|call| call["id"].as_str());
    let answered = message["tool_call_id"].as_str();
    made.chain(answered).filter(|id| !id.is_empty())
}

pub(crate) fn calls_in(message: &Value) -> impl Iterator<Item = &Value> {
    message["tool_calls"].as_array().into_iter().flatten()
}

/// The text of a message, of its parts one after the other.
pub(crate) fn text_in(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part["text"].as_str());
            texts.collect()
        }
        _ => String::new(),
    }
}

pub(super) fn is_assistant(message: &Value) -> bool {
    message["role"] == "assistant"
}

/// How many system messages come first. Agents re-render those, so positions are counted after them.
pub(super) fn n_leading(messages: &[Shared]) -> usize {
    let is_system =
        |message: &&Shared| matches!(message["role"].as_str(), Some("system" | "developer"));
    messages.iter().take_while(is_system).count()
}

/// The indices of the messages in `turn` that are the reply of `before`; empty when it is not there.
pub(crate) fn echo_of(before: &Turn, turn: &Turn) -> Vec<usize> {
    let Some(reply) = &before.message else {
        return Vec::new();
    };
    let said = before.messages.len() - n_leading(&before.messages);
    let place = n_leading(&turn.messages) + said;
    let next = turn
        .messages
        .get(place)
        .filter(|message| is_assistant(message));
    // Where earlier messages were removed or inserted, only the call ids identify it.
    let is_in_place = before.messages.last().is_none_or(|last| {
        let known = place.checked_sub(1).and_then(|at| turn.messages.get(at));
        known.is_some_and(|known| says_the_same(known, last))
    });
    if next.is_some_and(|message| is_in_place || shares_id(reply, message)) {
        return echo_at(reply, &turn.messages, place);
    }
    let found = echo_by_ids(reply, &turn.messages);
    if found.is_empty() && next.is_some() {
        return echo_at(reply, &turn.messages, place);
    }
    found
}

pub(super) fn says_the_same(one: &Value, other: &Value) -> bool {
    one["role"] == other["role"] && text_in(one) == text_in(other)
}

/// The same for a reply that is at a known position, or not there at all.
pub(super) fn echo_at(reply: &Message, messages: &[Shared], place: usize) -> Vec<usize> {
    let mut found = Vec::new();
    let mut n_calls = 0;
    for (at, message) in messages.iter().enumerate().skip(place) {
        let is_first = found.is_empty();
        if is_assistant(message) {
            let is_more = n_calls < reply.tool_calls.len() && is_part(reply, message);
            if !is_first && !is_more {
                break;
            }
            n_calls += calls_in(message).count();
            found.push(at);
        } else if is_first || message["role"] != "tool" {
            break;
        }
    }
    found
}

/// The last messages with a call of the reply, and a text right before them that the agent split off.
fn echo_by_ids(reply: &Message, messages: &[Shared]) -> Vec<usize> {
    let mut found: Vec<usize> = Vec::new();
    for (at, message) in messages.iter().enumerate().rev() {
        let last = found.last().copied();
        if is_assistant(message) {
            let is_text = last == Some(at + 1) && calls_in(message).next().is_none();
            if shares_id(reply, message) || is_text {
                found.push(at);
            } else if last.is_some() {
                break;
            }
        } else if last.is_some() && message["role"] != "tool" {
            break;
        }
    }
    found.reverse();
    found
}

fn shares_id(reply: &Message, message: &Value) -> bool {
    ids_in(message).any(|id| {
        let mut calls = reply.tool_calls.iter();
        calls.any(|call| call.id.as_deref() == Some(id))
    })
}

/// Whether the message can be another part of the reply.
fn is_part(reply: &Message, message: &Value) -> bool {
    let has_ids = reply.tool_calls.iter().all(|call| call.id.is_some());
    let is_of_reply = |name: &str| {
        reply
            .tool_calls
            .iter()
            .any(|call| same_name(&call.name, name))
    };
    let mut names = calls_in(message).map(name_of);
    (has_ids && shares_id(reply, message)) || (!has_ids && names.all(is_of_reply))
}

fn name_of(call: &Value) -> &str {
    call["function"]["name"].as_str().unwrap_or_default()
}

/// A hash that is equal for messages at the same position that differ only in white space; calls count by their names.
/// `None` for an empty message.
pub(super) fn hash_of_words(place: usize, message: &Value) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    place.hash(&mut hasher);
    let text = text_in(message);
    let mut n_words = 0;
    for letter in text.chars().filter(|it| !it.is_whitespace()) {
        letter.hash(&mut hasher);
        n_words += 1;
    }
    for call in calls_in(message) {
        letters_of(name_of(call)).hash(&mut hasher);
        n_words += 1;
    }
    (n_words > 0).then(|| hasher.finish())
}

/// How well these messages match the reply.
pub(super) fn fit(reply: &Message, echo: &[&Value]) -> Fit {
    let text: String = echo.iter().map(|message| text_in(message)).collect();
    let calls: Vec<&Value> = echo.iter().flat_map(|message| calls_in(message)).collect();
    if reply.tool_calls.is_empty() && !calls.is_empty() {
        return Fit::No;
    }
    let same_text = same_words(reply.content.as_deref().unwrap_or_default(), &text);
    let pairs = || reply.tool_calls.iter().zip(&calls);
    let is_paired = reply.tool_calls.len() == calls.len();
    if is_paired && same_text && pairs().all(|(call, echo)| same_call(call, echo)) {
        Fit::Words
    } else if is_paired
        && !calls.is_empty()
        && pairs().all(|(call, echo)| same_name(&call.name, name_of(echo)))
    {
        Fit::Shape
    } else {
        Fit::Place
    }
}

/// Agents change dots and other marks in names.
fn same_name(left: &str, right: &str) -> bool {
    left == right || letters_of(left) == letters_of(right)
}

fn letters_of(name: &str) -> String {
    name.chars().filter(|it| it.is_alphanumeric()).collect()
}

fn same_words(left: &str, right: &str) -> bool {
    let words =
        |text: &'_ str| -> Vec<char> { text.chars().filter(|it| !it.is_whitespace()).collect() };
    left == right || words(left) == words(right)
}

fn same_call(call: &ToolCall, echo: &Value) -> bool {
    if !same_name(&call.name, name_of(echo)) {
        return false;
    }
    let arguments = arguments_in(echo);
    match (arguments_of(&call.arguments), arguments) {
        (Some(given), Some(sent)) => same_value(&given, &sent),
        (None, _) => echo["function"]["arguments"]
            .as_str()
            .is_some_and(|sent| same_words(&call.arguments, sent)),
        (Some(_), None) => false,
    }
}

/// `None` when they are no JSON.
pub(crate) fn arguments_of(text: &str) -> Option<Value> {
    if text.trim().is_empty() {
        return Some(Value::Object(serde_json::Map::new()));
    }
    serde_json::from_str(text).ok()
}

/// The arguments of a call in a message, which some agents send as a value.
pub(crate) fn arguments_in(call: &Value) -> Option<Value> {
    match &call["function"]["arguments"] {
        Value::String(text) => arguments_of(text),
        Value::Null => arguments_of(""),
        other => Some(other.clone()),
    }
}

/// Whether an agent may have turned one into the other: numbers into strings, changed white space, added members.
fn same_value(given: &Value, sent: &Value) -> bool {
    match (given, sent) {
        (Value::Object(given), Value::Object(sent)) => given.iter().all(|(name, value)| {
            let sent = sent.get(name).unwrap_or(&Value::Null);
            same_value(value, sent)
        }),
        (Value::Array(given), Value::Array(sent)) => {
            given.len() == sent.len()
                && given
                    .iter()
                    .zip(sent)
                    .all(|(one, two)| same_value(one, two))
        }
        (Value::Object(_) | Value::Array(_), _) | (_, Value::Object(_) | Value::Array(_)) => false,
        _ if given == sent => true,
        _ => match (number_of(given), number_of(sent)) {
            (Some(given), Some(sent)) => given == sent,
            _ => same_words(&plain(given), &plain(sent)),
        },
    }
}

fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
