//! Translates Anthropic messages to chat messages.
//!
//! A history must yield the same messages on every turn, even though its cache markers move. So the translation of a
//! message never depends on later ones.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::block::{Block, BlockParent, ToolUse, read_content};
use super::{TranslateError, list, string, wrong};

/// Builds chat messages.
#[derive(Debug, Default)]
pub(super) struct ChatMessageBuilder {
    messages: Vec<ChatMessage>,
    /// What the chat messages cannot represent, with its path in the request.
    pub(super) dropped: Vec<String>,
}

#[derive(Debug)]
enum ChatMessage {
    Plain { role: &'static str, content: Value },
    Assistant(AssistantMessage),
    Tool { id: String, content: String },
}

#[derive(Debug, Default)]
struct AssistantMessage {
    text: String,
    reasoning: String,
    calls: Vec<ToolUse>,
}

/// Start of a block that Claude Code puts before its system prompt for Anthropic's billing. Dropped, because it changes
/// between requests, so that no prompt would be a prefix of the next.
const BILLING: &str = "x-anthropic-billing-header:";

impl ChatMessageBuilder {
    pub(super) fn into_values(self) -> Vec<Value> {
        self.messages
            .into_iter()
            .map(ChatMessage::into_value)
            .collect()
    }

    /// Adds the system prompt, a string or text blocks.
    pub(super) fn system(&mut self, system: &Value) -> Result<(), TranslateError> {
        let mut texts = Vec::new();
        for block in read_content(Some(system), "system", BlockParent::Message)? {
            match block {
                Block::Text(text) if text.starts_with(BILLING) => {
                    self.dropped.push("system: billing header".to_owned());
                }
                Block::Text(text) => texts.push(Part::Text(text)),
                _ => return Err(wrong("system", "has a block that is no text")),
            }
        }
        if !texts.is_empty() {
            self.plain("system", texts);
        }
        Ok(())
    }

    pub(super) fn message(&mut self, at: usize, message: &Value) -> Result<(), TranslateError> {
        let place = format!("messages[{at}]");
        let role = string(message, "role", &place)?;
        let content_place = format!("{place}.content");
        let blocks = read_content(message.get("content"), &content_place, BlockParent::Message)?;
        match role {
            "user" => self.user(blocks, &content_place),
            "assistant" => self.assistant(blocks, &content_place),
            // Claude Code sends system messages in the middle of the conversation.
            "system" => {
                let parts = self.parts(blocks, &content_place)?;
                self.plain("system", parts);
                Ok(())
            }
            _ => Err(wrong(format!("{place}.role"), "is no role we know")),
        }
    }

    fn plain(&mut self, role: &'static str, parts: Vec<Part<'_>>) {
        let content = content_value(parts);
        self.messages.push(ChatMessage::Plain { role, content });
    }

    /// Tool results are moved to their calls; the rest becomes a user message.
    fn user(&mut self, blocks: Vec<Block<'_>>, place: &str) -> Result<(), TranslateError> {
        let mut parts = Vec::new();
        let mut rest = Vec::new();
        let mut has_results = false;
        for block in blocks {
            match block {
                Block::Result {
                    id,
                    blocks,
                    is_error,
                } => {
                    has_results = true;
                    let blocks = self.parts(blocks, place)?;
                    parts.extend(self.tool_result(id, blocks, is_error));
                }
                other => rest.push(other),
            }
        }
        parts.extend(self.parts(rest, place)?);
        if !parts.is_empty() || !has_results {
            self.plain("user", parts);
        }
        Ok(())
    }

    /// Inserts a result after its call and returns its images: tool messages hold only text, so the images go into the
    /// user message that follows.
    fn tool_result(
        &mut self,
        id: &str,
        parts: Vec<Part<'_>>,
        is_error: bool,
    ) -> Vec<Part<'static>> {
        let mut texts = Vec::new();
        let mut images = Vec::new();
        for part in parts {
            match part {
                Part::Text(text) => texts.push(text),
                Part::Image(url) => {
                    texts.push("[image]".into());
                    images.push(Part::Text(format!("[image of tool result {id}]").into()));
                    images.push(Part::Image(url));
                }
            }
        }
        let mut content = texts.join("\n");
        // Chat cannot mark a call as failed, so the text must say it.
        let says_so = content.starts_with("Error") || content.starts_with("<tool_use_error>");
        if is_error && !says_so {
            content.insert_str(0, "Error: ");
        }
        let id = id.to_owned();
        let at = self.place_of_result(&id);
        self.messages.insert(at, ChatMessage::Tool { id, content });
        images
    }

    /// The position of a result, in the order of the calls: some chat templates match results to calls by their order,
    /// while agents send them in order of completion.
    fn place_of_result(&self, id: &str) -> usize {
        let place_in = |message: &ChatMessage, id: &str| match message {
            ChatMessage::Assistant(assistant) => {
                assistant.calls.iter().position(|call| call.id == id)
            }
            ChatMessage::Plain { .. } | ChatMessage::Tool { .. } => None,
        };
        let calls_it = |message: &ChatMessage| place_in(message, id).is_some();
        let Some(at) = self.messages.iter().rposition(calls_it) else {
            return self.messages.len();
        };
        let calls = &self.messages[at];
        let is_before = |message: &&ChatMessage| match message {
            ChatMessage::Tool { id: other, .. } => place_in(calls, other) <= place_in(calls, id),
            ChatMessage::Plain { .. } | ChatMessage::Assistant(_) => false,
        };
        at + 1 + self.messages[at + 1..].iter().take_while(is_before).count()
    }

    /// Consecutive assistant messages are merged: they are one turn to Anthropic, and chat requires results right after
    /// all calls.
    fn assistant(&mut self, blocks: Vec<Block<'_>>, place: &str) -> Result<(), TranslateError> {
        if !matches!(self.messages.last(), Some(ChatMessage::Assistant(_))) {
            self.messages
                .push(ChatMessage::Assistant(AssistantMessage::default()));
        }
        let Some(ChatMessage::Assistant(assistant)) = self.messages.last_mut() else {
            return Ok(());
        };
        for block in blocks {
            // Joined without a separator, because `MessagesRenderer` may have split one text into several blocks.
            match block {
                Block::Text(text) => assistant.text.push_str(&text),
                Block::Thinking(text) => assistant.reasoning.push_str(text),
                Block::Call(call) => assistant.calls.push(call),
                Block::Dropped(kind) => self.dropped.push(format!("{place}: {kind}")),
                Block::Image(_) => return Err(wrong(place, "has an image by the assistant")),
                Block::Result { .. } => {
                    return Err(wrong(place, "has a tool result by the assistant"));
                }
            }
        }
        Ok(())
    }

    /// The parts of a message that may contain only text and images.
    fn parts<'a>(
        &mut self,
        blocks: Vec<Block<'a>>,
        place: &str,
    ) -> Result<Vec<Part<'a>>, TranslateError> {
        let mut parts = Vec::new();
        for block in blocks {
            match block {
                Block::Text(text) if text.is_empty() => {}
                Block::Text(text) => parts.push(Part::Text(text)),
                Block::Image(url) => parts.push(Part::Image(url)),
                Block::Dropped(kind) => self.dropped.push(format!("{place}: {kind}")),
                Block::Thinking(_) | Block::Call(_) | Block::Result { .. } => {
                    return Err(wrong(place, "has a block that does not belong there"));
                }
            }
        }
        Ok(parts)
    }
}

impl ChatMessage {
    fn into_value(self) -> Value {
        match self {
            ChatMessage::Plain { role, content } => json!({ "role": role, "content": content }),
            ChatMessage::Tool { id, content } => {
                json!({ "role": "tool", "tool_call_id": id, "content": content })
            }
            ChatMessage::Assistant(assistant) => assistant.into_value(),
        }
    }
}

impl AssistantMessage {
    /// Members are in the same order as in `chat::Message::to_value`.
    fn into_value(self) -> Value {
        let content = match self.text.is_empty() && !self.calls.is_empty() {
            true => Value::Null,
            false => self.text.into(),
        };
        let mut message = json!({ "role": "assistant", "content": content });
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.into();
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = self.calls.into_iter().map(ToolUse::into_value).collect();
        }
        message
    }
}

enum Part<'a> {
    Text(Cow<'a, str>),
    Image(String),
}

/// A string if all parts are text, since every endpoint accepts that, joined with line feeds as vLLM joins text parts.
fn content_value(parts: Vec<Part<'_>>) -> Value {
    if parts.iter().all(|part| matches!(part, Part::Text(_))) {
        let texts: Vec<_> = parts.into_iter().map(Part::into_text).collect();
        return texts.join("\n").into();
    }
    parts.into_iter().map(Part::into_value).collect()
}

impl<'a> Part<'a> {
    fn into_text(self) -> Cow<'a, str> {
        match self {
            Part::Text(text) => text,
            Part::Image(url) => url.into(),
        }
    }

    fn into_value(self) -> Value {
        match self {
            Part::Text(text) => json!({ "type": "text", "text": text }),
            Part::Image(url) => json!({ "type": "image_url", "image_url": { "url": url } }),
        }
    }
}

/// Translates all messages of a request, the system prompt first.
pub(super) fn read_messages(
    system: Option<&Value>,
    messages: Option<&Value>,
) -> Result<ChatMessageBuilder, TranslateError> {
    let mut builder = ChatMessageBuilder::default();
    if let Some(system) = system.filter(|system| !system.is_null()) {
        builder.system(system)?;
    }
    let messages = list(messages.unwrap_or(&Value::Null), "messages")?;
    for (at, message) in messages.iter().enumerate() {
        builder.message(at, message)?;
    }
    Ok(builder)
}
