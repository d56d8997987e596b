//! The output items of a response: reasoning, messages and calls.

use serde_json::{Value, json};

use super::tool::{OriginalTool, ToolKind, custom_input};

#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) id: String,
    pub(super) kind: ItemKind,
    /// The text so far; for calls, the arguments.
    pub(super) text: String,
}

#[derive(Clone, Debug)]
pub(super) enum ItemKind {
    Reasoning,
    Message,
    Call { id: String, original: OriginalTool },
}

impl ItemKind {
    /// The prefix of the item's id.
    pub(super) fn prefix(&self) -> &'static str {
        match self {
            ItemKind::Reasoning => "rs",
            ItemKind::Message => "msg",
            ItemKind::Call { original, .. } => match original.kind {
                ToolKind::Function => "fc",
                ToolKind::Custom => "ctc",
            },
        }
    }
}

impl Item {
    /// The JSON of the item. While in progress it has no parts, since events deliver them.
    pub(super) fn value(&self, status: &str) -> Value {
        let parts = |part: fn(&str) -> Value| match status {
            "in_progress" => Vec::new(),
            _ => vec![part(&self.text)],
        };
        match &self.kind {
            ItemKind::Reasoning => {
                json!({"id": self.id, "type": "reasoning", "summary": parts(summary_part)})
            }
            ItemKind::Message => json!({
                "id": self.id,
                "type": "message",
                "status": status,
                "role": "assistant",
                "content": parts(text_part),
            }),
            ItemKind::Call { id, original } => {
                let (kind, member, text) = match original.kind {
                    ToolKind::Function => ("function_call", "arguments", self.text.clone()),
                    ToolKind::Custom => ("custom_tool_call", "input", custom_input(&self.text)),
                };
                let mut value = json!({
                    "id": self.id,
                    "type": kind,
                    "status": status,
                    "call_id": id,
                    "name": original.name,
                });
                value[member] = text.into();
                if let Some(namespace) = &original.namespace {
                    value["namespace"] = namespace.as_str().into();
                }
                value
            }
        }
    }
}

pub(super) fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

pub(super) fn summary_part(text: &str) -> Value {
    json!({"type": "summary_text", "text": text})
}
