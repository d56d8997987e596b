//! What an agent changed in a reply before it sent it back, in a few words.

use std::collections::HashMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::graph::{arguments_in, arguments_of, calls_in, text_in};
use rollcage_dialect::chat::{Message, ToolCall};

/// How much of a value is shown.
const VALUE_MAX: usize = 40;
/// How many changes are described.
const CHANGES_MAX: usize = 4;

/// The changes between a reply and the messages that it was sent back as.
pub(super) fn describe(reply: &Message, echo: &[&Value]) -> String {
    let mut changes = Vec::new();
    if echo.is_empty() {
        return "only the results of its calls were".to_owned();
    }
    let sent: String = echo.iter().map(|message| text_in(message)).collect();
    changes.extend(text_change(
        reply.content.as_deref().unwrap_or_default(),
        &sent,
    ));
    let calls: Vec<&Value> = echo.iter().flat_map(|message| calls_in(message)).collect();
    call_changes(&reply.tool_calls, &calls, &mut changes);
    if has_reasoning(&reply.other)
        && !echo
            .iter()
            .any(|it| it.as_object().is_some_and(has_reasoning))
    {
        changes.push("reasoning left out".to_owned());
    }
    if echo.len() > 1 {
        changes.push(format!("sent as {} messages", echo.len()));
    }
    let n_more = changes.len().saturating_sub(CHANGES_MAX);
    changes.truncate(CHANGES_MAX);
    if n_more > 0 {
        changes.push(format!("{n_more} more"));
    }
    if changes.is_empty() {
        changes.push("in its form alone".to_owned());
    }
    changes.join(", ")
}

fn has_reasoning(members: &Map<String, Value>) -> bool {
    let names = ["reasoning_content", "reasoning"];
    let texts = names.iter().filter_map(|name| members.get(*name)?.as_str());
    texts.into_iter().any(|text| !text.is_empty())
}

fn text_change(given: &str, sent: &str) -> Option<String> {
    if given == sent {
        return None;
    }
    let words =
        |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
    let change = if given.trim().is_empty() && sent.is_empty() {
        "blank text left out"
    } else if sent.trim().is_empty() {
        "text left out"
    } else if given.trim().is_empty() {
        return Some(format!("text added ({})", short(sent)));
    } else if given.trim() == sent.trim() {
        "white space around the text"
    } else if words(given) == words(sent) {
        "white space in the text"
    } else {
        return Some(format!("text: {} became {}", short(given), short(sent)));
    };
    Some(change.to_owned())
}

fn call_changes(given: &[ToolCall], sent: &[&Value], changes: &mut Vec<String>) {
    let mut rest: Vec<&Value> = sent.to_vec();
    let mut open = Vec::new();
    for call in given {
        let id = call.id.as_deref().filter(|id| !id.is_empty());
        match rest
            .iter()
            .position(|it| id.is_some() && it["id"].as_str() == id)
        {
            Some(at) => call_change(call, rest.remove(at), changes),
            None => open.push(call),
        }
    }
    for call in open {
        // Ids that were changed leave the order.
        match rest.is_empty() {
            true => changes.push(format!("call `{}` left out", call.name)),
            false => call_change(call, rest.remove(0), changes),
        }
    }
    for call in rest {
        changes.push(format!("call `{}` added", name_in(call)));
    }
}

fn name_in(call: &Value) -> &str {
    call["function"]["name"].as_str().unwrap_or_default()
}

fn call_change(call: &ToolCall, sent: &Value, changes: &mut Vec<String>) {
    let (given, now) = (arguments_of(&call.arguments), arguments_in(sent));
    let name = name_in(sent);
    if name != call.name {
        let is_renamed = given.is_some() && given == now;
        let verb = if is_renamed { "renamed" } else { "replaced by" };
        changes.push(format!("call `{}` {verb} `{name}`", call.name));
        return;
    }
    match (given, now) {
        (Some(Value::Object(given)), Some(Value::Object(now))) => {
            let written = written_members(&call.arguments);
            changes.extend(member_changes(name, &given, &now, &written));
        }
        (Some(given), Some(now)) if given == now => {}
        (None, _) => {
            let now = &sent["function"]["arguments"];
            let now = now.as_str().map_or_else(|| now.to_string(), str::to_owned);
            if now != call.arguments {
                changes.push(format!("`{name}`: broken arguments became {}", short(&now)));
            }
        }
        (Some(_), _) => changes.push(format!("`{name}`: other arguments")),
    }
}

/// The members as the model wrote them: a number has many forms.
fn written_members(arguments: &str) -> HashMap<String, &RawValue> {
    serde_json::from_str(arguments).unwrap_or_default()
}

fn member_changes<'a>(
    name: &'a str,
    given: &'a Map<String, Value>,
    now: &'a Map<String, Value>,
    written: &'a HashMap<String, &RawValue>,
) -> impl Iterator<Item = String> + 'a {
    let kept = given
        .iter()
        .filter_map(move |(member, value)| match now.get(member) {
            Some(now) if now == value => None,
            Some(now) => Some(format!(
                "`{name}`: {member} {} became {}",
                written
                    .get(member)
                    .map_or_else(|| shown(value), |text| short(text.get())),
                shown(now)
            )),
            None => Some(format!("`{name}`: {member} left out")),
        });
    let added = now
        .iter()
        .filter(|(member, _)| !given.contains_key(*member));
    let added =
        added.map(move |(member, value)| format!("`{name}`: {member} added ({})", shown(value)));
    kept.chain(added)
}

fn shown(value: &Value) -> String {
    short(&value.to_string())
}

fn short(text: &str) -> String {
    let mut shown: String = text.chars().take(VALUE_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown.replace('\n', "\\n")
}
