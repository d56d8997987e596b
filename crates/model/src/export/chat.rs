//! Messages as chat templates take them: one text each, roles that every template knows, arguments as objects.

use serde_json::{Map, Value};

use super::Arguments;
use super::conversation::text_of;

/// A message with nothing in it that a template would leave out or trip over. Parts that are no text stay as they are:
/// a template for them takes lists.
pub(super) fn plain(message: &Value, arguments: Arguments) -> Value {
    let Value::Object(members) = message else {
        return message.clone();
    };
    let mut plain = Map::new();
    for (name, value) in members {
        let (name, value) = match (name.as_str(), value) {
            ("role", Value::String(role)) => ("role", role_of(role).into()),
            ("content", content) => {
                let text = text_of(content);
                ("content", text.map_or_else(|| content.clone(), Value::from))
            }
            ("tool_calls", Value::Array(calls)) => {
                let calls = calls.iter().map(|call| call_of(call, arguments));
                ("tool_calls", calls.collect())
            }
            // Two names for one thing; this one is the templates'.
            ("reasoning", Value::String(_)) if !members.contains_key("reasoning_content") => {
                ("reasoning_content", value.clone())
            }
            (name, value) => (name, value.clone()),
        };
        plain.insert(name.to_owned(), value);
    }
    plain.into()
}

/// Templates pass over roles that they do not know.
fn role_of(role: &str) -> &str {
    match role {
        "developer" => "system",
        "function" => "tool",
        role => role,
    }
}

fn call_of(call: &Value, arguments: Arguments) -> Value {
    let mut call = call.clone();
    let Some(given) = call.pointer_mut("/function/arguments") else {
        return call;
    };
    let text = given.as_str().map(str::trim);
    match (arguments, text) {
        (Arguments::Objects, Some("")) => *given = Value::Object(Map::new()),
        // What is no object was sampled like that, and stays.
        (Arguments::Objects, Some(text)) => {
            if let Ok(Value::Object(members)) = serde_json::from_str(text) {
                *given = members.into();
            }
        }
        (Arguments::Strings, None) => *given = given.to_string().into(),
        (Arguments::Objects, None) | (Arguments::Strings, Some(_)) => {}
    }
    call
}
