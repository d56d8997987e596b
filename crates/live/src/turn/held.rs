//! How much a turn holds and has passed on. An agent can replace its own server, and then says whatever it likes. Pure.

use serde_json::Value;

/// Texts, tool calls and messages of the longest turns are some megabytes.
const BYTES_MAX: usize = 64 << 20;
/// What each of them takes besides, in memory and in its reply.
const EACH_BYTES: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Held {
    bytes: usize,
}

impl Held {
    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes + EACH_BYTES);
    }

    /// What is passed on, if it is anything.
    pub(super) fn add_text(&mut self, text: Option<&str>) {
        if let Some(text) = text {
            self.add(text.len());
        }
    }

    pub(super) fn remove(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes + EACH_BYTES);
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes > BYTES_MAX
    }
}

/// About as many bytes as the value takes.
pub(super) fn weight(value: &Value) -> usize {
    const VALUE: usize = size_of::<Value>();
    VALUE
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(weight).sum(),
            Value::Object(members) => members
                .iter()
                .map(|(name, value)| VALUE + name.len() + weight(value))
                .sum(),
        }
}
