//! Translates contents to chat messages.
//!
//! A call without an id gets its number in the conversation as id, which is the same on every turn. A result without a
//! known id is assigned to the first call of its name that has no result yet.

use serde_json::{Map, Value, json};

use super::super::TranslateError;
use super::super::assistant::AssistantMessage;
use super::{inside, member, signature, text, unsupported, wrong};

/// Member that holds a call's arguments as text if they are no JSON object, which Gemini cannot represent otherwise.
/// The agent's tool refuses such a call, and the next request returns the original text to the model.
pub(super) const RAW_ARGUMENTS: &str = "__raw_arguments";

/// The messages, and the number of calls in them.
pub(super) fn messages(
    request: &Map<String, Value>,
) -> Result<(Vec<Value>, usize), TranslateError> {
    let mut builder = ChatMessageBuilder::default();
    if let Some(system) = member(request, "systemInstruction") {
        builder.read_system(system);
    }
    let contents = member(request, "contents").ok_or_else(|| wrong("contents", "is missing"))?;
    // A single content is accepted in place of a list.
    let contents = match contents {
        Value::Array(contents) => contents.as_slice(),
        content => std::slice::from_ref(content),
    };
    for (at, content) in contents.iter().enumerate() {
        let place = format!("contents[{at}]");
        let parts = match inside(content, "parts") {
            Some(Value::Array(parts)) => parts.as_slice(),
            None => &[],
            Some(_) => return Err(wrong(&format!("{place}.parts"), "is no list")),
        };
        match text(content, "role") {
            Some("model") => builder.read_model(parts)?,
            Some("user" | "function" | "tool") | None => builder.read_user(parts)?,
            Some(_) => return Err(wrong(&format!("{place}.role"), "is no role of a content")),
        }
    }
    builder.close_assistant();
    Ok((builder.messages, builder.n_calls))
}

#[derive(Default)]
struct ChatMessageBuilder {
    messages: Vec<Value>,
    assistant: Option<AssistantMessage>,
    n_calls: usize,
    /// Name and id of calls without a result so far.
    waiting: Vec<(String, String)>,
}

impl ChatMessageBuilder {
    fn read_system(&mut self, system: &Value) {
        let content = match (system, inside(system, "parts")) {
            (Value::String(text), _) => text.clone(),
            (_, Some(Value::Array(parts))) => {
                let texts: Vec<&str> = parts.iter().filter_map(|it| text(it, "text")).collect();
                texts.join("\n\n")
            }
            _ => String::new(),
        };
        if !content.is_empty() {
            self.messages
                .push(json!({"role": "system", "content": content}));
        }
    }

    fn read_model(&mut self, parts: &[Value]) -> Result<(), TranslateError> {
        for part in parts {
            let assistant = self.assistant.get_or_insert_default();
            if let Some(thoughts) = text(part, "thoughtSignature").and_then(signature::read) {
                assistant.reasoning = thoughts;
            }
            if let Some(call) = inside(part, "functionCall") {
                self.read_call(call)?;
            } else if let Some(said) = text(part, "text") {
                match inside(part, "thought") {
                    Some(Value::Bool(true)) => assistant.reasoning.push_str(said),
                    _ => assistant.text.push_str(said),
                }
            } else if part.as_object().is_some_and(|it| !it.is_empty()) {
                return Err(unsupported(format!("a model's part with {}", names(part))));
            }
        }
        Ok(())
    }

    fn read_call(&mut self, call: &Value) -> Result<(), TranslateError> {
        let name = text(call, "name").ok_or_else(|| wrong("functionCall.name", "is missing"))?;
        let id = match text(call, "id").filter(|id| !id.is_empty()) {
            Some(id) => original_id(id, name).to_owned(),
            None => generated_id(self.n_calls),
        };
        self.n_calls += 1;
        let args = inside(call, "args");
        let arguments = match args.and_then(|args| args.get(RAW_ARGUMENTS)) {
            Some(Value::String(raw)) => raw.clone(),
            _ => args.map_or_else(|| "{}".to_owned(), Value::to_string),
        };
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        self.waiting.push((name.to_owned(), id));
        self.assistant.get_or_insert_default().calls.push(call);
        Ok(())
    }

    /// Results first, since chat requires them right after their calls; then the rest of the user's parts.
    fn read_user(&mut self, parts: &[Value]) -> Result<(), TranslateError> {
        self.close_assistant();
        let mut said = Vec::new();
        let mut shown = Vec::new();
        for part in parts {
            if let Some(response) = inside(part, "functionResponse") {
                self.read_result(response);
                let more = inside(response, "parts").and_then(Value::as_array);
                for part in more.into_iter().flatten() {
                    shown.push(user_part(part)?);
                }
            } else {
                said.push(user_part(part)?);
            }
        }
        shown.extend(said);
        let content = match shown.as_mut_slice() {
            [] => return Ok(()),
            [part] if part["type"] == "text" => part["text"].take(),
            _ => Value::Array(shown),
        };
        self.messages
            .push(json!({"role": "user", "content": content}));
        Ok(())
    }

    fn read_result(&mut self, response: &Value) {
        let name = text(response, "name").unwrap_or_default();
        let id = text(response, "id").map(|id| original_id(id, name));
        let by_id = self
            .waiting
            .iter()
            .position(|(_, known)| Some(known.as_str()) == id);
        let by_name = || self.waiting.iter().position(|(known, _)| known == name);
        let id = match by_id.or_else(by_name) {
            Some(at) => self.waiting.remove(at).1,
            None => id.unwrap_or(name).to_owned(),
        };
        let content = result_text(inside(response, "response"), name);
        self.messages
            .push(json!({"role": "tool", "tool_call_id": id, "content": content}));
    }

    fn close_assistant(&mut self) {
        let assistant = self.assistant.take();
        self.messages
            .extend(assistant.map(AssistantMessage::into_message));
    }
}

/// A tool's plain text if the response contains nothing else, as agents that speak chat send it; otherwise the JSON.
fn result_text(response: Option<&Value>, name: &str) -> String {
    let Some(response) = response else {
        return String::new();
    };
    let n_members = response.as_object().map_or(0, Map::len);
    let alone = ["output", "result"]
        .iter()
        .find_map(|it| text(response, it));
    // The format of OpenCode's SDK.
    let named = text(response, "content").filter(|_| text(response, "name") == Some(name));
    match (n_members, alone, named) {
        (1, Some(text), _) | (2, _, Some(text)) => text.to_owned(),
        _ => response.to_string(),
    }
}

/// The id of a call without one, by its number in the conversation.
pub(super) fn generated_id(number: usize) -> String {
    format!("call_{number}")
}

/// The original id: Gemini CLI prefixes each id with the tool's name.
fn original_id<'a>(id: &'a str, name: &str) -> &'a str {
    let rest = id.strip_prefix(name).and_then(|it| it.strip_prefix("__"));
    rest.filter(|rest| !rest.is_empty()).unwrap_or(id)
}

fn user_part(part: &Value) -> Result<Value, TranslateError> {
    if let Some(said) = text(part, "text") {
        return Ok(json!({"type": "text", "text": said}));
    }
    if let Some(data) = inside(part, "inlineData") {
        let kind = text(data, "mimeType").unwrap_or_default();
        let bytes = text(data, "data").unwrap_or_default();
        let url = format!("data:{kind};base64,{bytes}");
        return Ok(match kind.split_once('/') {
            Some(("image", _)) => json!({"type": "image_url", "image_url": {"url": url}}),
            Some(("audio", format)) => {
                json!({"type": "input_audio", "input_audio": {"data": bytes, "format": format}})
            }
            _ => json!({"type": "file", "file": {"filename": "file", "file_data": url}}),
        });
    }
    if let Some(file) = inside(part, "fileData") {
        let is_image = text(file, "mimeType").is_some_and(|kind| kind.starts_with("image/"));
        return match text(file, "fileUri") {
            Some(url) if is_image => Ok(json!({"type": "image_url", "image_url": {"url": url}})),
            _ => Err(unsupported("a file by its address")),
        };
    }
    Err(unsupported(format!("a user's part with {}", names(part))))
}

fn names(part: &Value) -> String {
    let names: Vec<&str> = part
        .as_object()
        .into_iter()
        .flat_map(|members| members.keys().map(String::as_str))
        .collect();
    format!("`{}`", names.join("`, `"))
}
