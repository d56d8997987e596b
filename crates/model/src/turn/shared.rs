//! What the turns of a rollout have in common, kept once: every request repeats the conversation so far.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::tokens::TokenStore;
use rollcage_dialect::anthropic;

/// A JSON value that several turns hold; cloning copies a reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Shared(Arc<Value>);

impl Shared {
    /// The value's address: equal for clones, and for nothing else while one of them lives.
    pub(crate) fn place(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl From<Value> for Shared {
    fn from(value: Value) -> Self {
        Shared(Arc::new(value))
    }
}

impl Deref for Shared {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0
    }
}

impl Serialize for Shared {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// Keeps one copy of each prompt prefix, message and list of tools of the turns read so far.
#[derive(Debug, Default)]
pub struct Interner {
    pub prompts: TokenStore,
    /// By their text, so that what was read before is not read again.
    values: HashMap<Box<str>, Shared>,
}

/// A request's members; messages and tools, which are long and shared, are separate.
#[derive(Default)]
pub(super) struct RequestParts {
    pub(super) members: Map<String, Value>,
    pub(super) messages: Vec<Shared>,
    pub(super) tools: Option<Shared>,
}

impl Interner {
    /// Empty when the body is no JSON object.
    pub(super) fn chat_parts(&mut self, body: &[u8]) -> RequestParts {
        let mut asked = RequestParts::default();
        let members: HashMap<String, &RawValue> = serde_json::from_slice(body).unwrap_or_default();
        for (name, text) in members {
            match name.as_str() {
                "messages" => {
                    let list: Vec<&RawValue> = serde_json::from_str(text.get()).unwrap_or_default();
                    asked.messages = list.iter().filter_map(|text| self.value(text)).collect();
                }
                "tools" => asked.tools = self.value(text).filter(|tools| !tools.is_null()),
                _ => {
                    if let Ok(value) = serde_json::from_str(text.get()) {
                        asked.members.insert(name, value);
                    }
                }
            }
        }
        asked
    }

    /// The same for a body in Anthropic's dialect, translated to chat.
    pub(super) fn anthropic_parts(&mut self, body: &[u8]) -> RequestParts {
        let (messages, tools) = anthropic::messages_of(body);
        let mut members: Map<String, Value> = serde_json::from_slice(body).unwrap_or_default();
        members.retain(|name, _| !matches!(name.as_str(), "messages" | "system" | "tools"));
        RequestParts {
            members,
            messages: messages.into_iter().map(|it| self.share(it)).collect(),
            tools: tools.map(|tools| self.share(tools)),
        }
    }

    fn share(&mut self, value: Value) -> Shared {
        let text = value.to_string();
        let known = self.values.entry(text.into());
        known.or_insert_with(|| Shared::from(value)).clone()
    }

    fn value(&mut self, text: &RawValue) -> Option<Shared> {
        if let Some(known) = self.values.get(text.get()) {
            return Some(known.clone());
        }
        let value: Value = serde_json::from_str(text.get()).ok()?;
        let value = Shared::from(value);
        self.values.insert(text.get().into(), value.clone());
        Some(value)
    }
}
