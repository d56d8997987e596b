//! One assistant message, assembled from the separate items or parts in which some dialects send it back.

use serde_json::{Value, json};

#[derive(Default)]
pub(super) struct AssistantMessage {
    pub(super) reasoning: String,
    pub(super) text: String,
    /// Tool calls in chat's format.
    pub(super) calls: Vec<Value>,
}

impl AssistantMessage {
    /// The chat message. Deterministic, so that each prompt begins with the exact bytes of the previous one.
    pub(super) fn into_message(self) -> Value {
        let is_silent = self.text.is_empty() && !self.calls.is_empty();
        let content = (!is_silent).then_some(self.text);
        let mut message = json!({"role": "assistant", "content": content});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.into();
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = self.calls.into();
        }
        message
    }
}
