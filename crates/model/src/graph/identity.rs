//! Messages as numbers that are equal when the messages say the same, however the agent wrote them down.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::echo::ids_in;
use crate::turn::Shared;

#[derive(Debug, Default)]
pub(super) struct Identities {
    by_text: HashMap<String, u32>,
    /// By address: turns share equal messages, so each is serialised once. The value is held so that its address is not
    /// used again.
    by_place: HashMap<usize, (Shared, u32)>,
    /// Ids of tool calls that some request tells of.
    told_calls: HashSet<Box<str>>,
}

impl Identities {
    /// The leading system messages, and the rest.
    pub(super) fn of_messages(&mut self, messages: &[Shared]) -> (Vec<u32>, Vec<u32>) {
        let is_system =
            |message: &&Shared| matches!(message["role"].as_str(), Some("system" | "developer"));
        let n_system = messages.iter().take_while(is_system).count();
        let (system, rest) = messages.split_at(n_system);
        let mut numbers =
            |messages: &[Shared]| messages.iter().map(|it| self.of_shared(it)).collect();
        (numbers(system), numbers(rest))
    }

    pub(super) fn of_value(&mut self, message: &Value) -> u32 {
        let next = u32::try_from(self.by_text.len()).unwrap_or(u32::MAX);
        *self.by_text.entry(canonical(message)).or_insert(next)
    }

    fn of_shared(&mut self, message: &Shared) -> u32 {
        let place = message.place();
        if let Some((_, number)) = self.by_place.get(&place) {
            return *number;
        }
        let number = self.of_value(message);
        self.by_place.insert(place, (message.clone(), number));
        self.told_calls.extend(ids_in(message).map(Box::from));
        number
    }

    pub(super) fn is_told(&self, call_id: &str) -> bool {
        self.told_calls.contains(call_id)
    }
}

/// The canonical form of a message: role, text, and tool calls with their arguments as values. Call ids, reasoning and
/// cache marks are left out, since agents change or drop them.
pub(super) fn canonical(message: &Value) -> String {
    let content = match &message["content"] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(parts) if parts.iter().all(|part| part["type"] == "text") => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        other => sorted(other).to_string(),
    };
    let calls: Vec<Value> = message["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .map(canonical_call)
        .collect();
    serde_json::json!([message["role"], content, calls]).to_string()
}

fn canonical_call(call: &Value) -> Value {
    let function = &call["function"];
    let arguments = match &function["arguments"] {
        Value::String(text) => {
            serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone()))
        }
        other => other.clone(),
    };
    serde_json::json!([function["name"], sorted(&arguments)])
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(sorted).collect(),
        Value::Object(members) => {
            let mut members: Vec<_> = members
                .iter()
                .filter(|(name, _)| *name != "cache_control")
                .map(|(name, value)| (name.clone(), sorted(value)))
                .collect();
            members.sort_by(|left, right| left.0.cmp(&right.0));
            Value::Object(members.into_iter().collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}
