//! Translates input items to chat messages.
//!
//! One assistant turn comes back as several items, which are merged into one message. Leading system and developer
//! messages become one system message, since chat templates allow only one, at the start; for the same reason later
//! ones become user messages.

use serde_json::{Map, Value, json};

use super::super::TranslateError;
use super::super::assistant::AssistantMessage;
use super::content::{parts, split, to_content, unsupported};
use super::tool::{custom_arguments, qualified_name};
use super::{missing, wrong};

pub(super) fn messages(
    request: &Map<String, Value>,
    dropped: &mut Vec<String>,
) -> Result<Vec<Value>, TranslateError> {
    let mut builder = ChatMessageBuilder::default();
    if let Some(text) = request.get("instructions").and_then(Value::as_str) {
        builder.system.push(text.to_owned());
    }
    match request.get("input") {
        Some(Value::String(text)) => builder.say("user", text.as_str().into()),
        Some(Value::Array(items)) => {
            for (at, item) in items.iter().enumerate() {
                builder.read(item, &format!("input[{at}]"), dropped)?;
            }
        }
        Some(_) => return Err(wrong("input", "is neither text nor a list of items")),
        None => return Err(missing("input")),
    }
    builder.close();
    Ok(builder.messages)
}

#[derive(Default)]
struct ChatMessageBuilder {
    messages: Vec<Value>,
    /// Texts of the leading system message, until another message starts.
    system: Vec<String>,
    assistant: Option<AssistantMessage>,
    /// Parts of tool results that chat's tool messages cannot hold; sent in a user message after all results.
    shown: Vec<Value>,
}

impl ChatMessageBuilder {
    fn read(
        &mut self,
        item: &Value,
        place: &str,
        dropped: &mut Vec<String>,
    ) -> Result<(), TranslateError> {
        let text = |name: &str| item.get(name).and_then(Value::as_str);
        let needed = |name: &str| text(name).ok_or_else(|| missing(&format!("{place}.{name}")));
        // The short form of a message has a role and no type.
        match text("type").unwrap_or("message") {
            "message" => return self.read_message(item, place),
            "agent_message" => {
                let parts = parts(&item["content"], &format!("{place}.content"))?;
                self.say("user", to_content(parts));
            }
            "reasoning" => self.read_reasoning(item, place)?,
            "function_call" => {
                let name = qualified_name(text("namespace"), needed("name")?);
                let arguments = text("arguments").unwrap_or_default();
                self.call(needed("call_id")?, &name, arguments);
            }
            "custom_tool_call" => {
                let name = qualified_name(text("namespace"), needed("name")?);
                let arguments = custom_arguments(text("input").unwrap_or_default());
                self.call(needed("call_id")?, &name, &arguments);
            }
            "local_shell_call" => {
                let id = text("call_id").or(text("id")).unwrap_or_default();
                self.call(id, "local_shell", &item["action"].to_string());
            }
            "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" => {
                let id = text("call_id").map_or_else(|| needed("id"), Ok)?;
                self.result(id, &item["output"], &format!("{place}.output"))?;
            }
            "item_reference" => {
                return Err(unsupported(
                    "an item by reference (nothing is stored here: send it whole, store: false)",
                ));
            }
            // Offered with the other tools.
            "additional_tools" => {}
            // Meaningless to a model without the hosted tool.
            kind @ ("web_search_call"
            | "file_search_call"
            | "image_generation_call"
            | "code_interpreter_call"
            | "tool_search_call"
            | "tool_search_output"
            | "configuration_update") => dropped.push(format!("item {kind}")),
            other => return Err(unsupported(&format!("an item of type `{other}`"))),
        }
        Ok(())
    }

    fn read_message(&mut self, item: &Value, place: &str) -> Result<(), TranslateError> {
        let parts = parts(&item["content"], &format!("{place}.content"))?;
        match item["role"].as_str() {
            Some("assistant") => {
                let (texts, _) = split(parts);
                self.assistant().text.push_str(&texts.concat());
            }
            Some("system" | "developer") => {
                let is_text = parts.iter().all(|part| part["type"] == "text");
                if is_text && self.messages.is_empty() && self.assistant.is_none() {
                    self.system.extend(split(parts).0);
                } else {
                    self.say("user", to_content(parts));
                }
            }
            Some("user") => self.say("user", to_content(parts)),
            _ => return Err(wrong(&format!("{place}.role"), "is no role of a message")),
        }
        Ok(())
    }

    /// The raw text if there is any, otherwise the summary. Encrypted content is useless to another model.
    fn read_reasoning(&mut self, item: &Value, place: &str) -> Result<(), TranslateError> {
        let raw = parts(&item["content"], &format!("{place}.content"))?;
        let summary = parts(&item["summary"], &format!("{place}.summary"))?;
        let texts = split(if raw.is_empty() { summary } else { raw }).0;
        self.assistant().reasoning.push_str(&texts.concat());
        Ok(())
    }

    fn call(&mut self, id: &str, name: &str, arguments: &str) {
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        self.assistant().calls.push(call);
    }

    fn result(&mut self, id: &str, output: &Value, place: &str) -> Result<(), TranslateError> {
        let content = match output {
            Value::Array(_) => {
                let (texts, others) = split(parts(output, place)?);
                self.shown.extend(others);
                texts.join("\n")
            }
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        self.close_system();
        self.close_assistant();
        self.messages
            .push(json!({"role": "tool", "tool_call_id": id, "content": content}));
        Ok(())
    }

    fn say(&mut self, role: &str, content: Value) {
        self.close();
        self.messages
            .push(json!({"role": role, "content": content}));
    }

    fn assistant(&mut self) -> &mut AssistantMessage {
        self.close_system();
        self.close_shown();
        self.assistant.get_or_insert_default()
    }

    fn close(&mut self) {
        self.close_system();
        self.close_assistant();
        self.close_shown();
    }

    fn close_system(&mut self) {
        let texts = std::mem::take(&mut self.system);
        if !texts.is_empty() {
            let content = texts.join("\n\n");
            self.messages
                .push(json!({"role": "system", "content": content}));
        }
    }

    fn close_assistant(&mut self) {
        let assistant = self.assistant.take();
        self.messages
            .extend(assistant.map(AssistantMessage::into_message));
    }

    fn close_shown(&mut self) {
        let shown = std::mem::take(&mut self.shown);
        if !shown.is_empty() {
            self.messages
                .push(json!({"role": "user", "content": shown}));
        }
    }
}
