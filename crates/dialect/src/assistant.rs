//! One turn of the model, gathered from the several pieces in which a dialect sends it back.

use serde_json::{Value, json};

#[derive(Default)]
pub(super) struct Assistant {
    pub(super) reasoning: String,
    pub(super) text: String,
    /// In chat's shape.
    pub(super) calls: Vec<Value>,
}

impl Assistant {
    /// The turn as chat has it. The same pieces give the same bytes, so that a prompt continues the one before.
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
