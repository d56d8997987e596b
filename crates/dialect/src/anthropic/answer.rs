//! Renders a chat answer as an Anthropic message: named events for a stream, otherwise one object.
//!
//! Anthropic sends content blocks one after the other, whereas the deltas of several chat calls may interleave. Deltas
//! that do not belong to the open block are held back until the end of the answer.

use serde_json::{Value, json};
use uuid::Uuid;

use super::{error_value, input_of};
use crate::chat::Render;
use crate::chat::{Delta, Reply, Usage};

/// Clients send thoughts back only if they have a signature; only Anthropic verifies it.
const SIGNATURE: &str = "rollcage";

/// Renders the answer to one request.
#[derive(Debug)]
pub struct MessagesRenderer {
    /// Unique, because Claude Code merges answers of the same id into one message.
    pub message_id: String,
    /// As the agent named it.
    pub model: String,
    /// The calls so far in order, each with chat's index and its id.
    calls: Vec<(usize, String)>,
    open: Option<BlockKind>,
    waiting: Vec<(BlockStart, String)>,
    blocks_sent: usize,
    /// A block other than thinking was sent.
    has_said: bool,
    finish_reason: Option<String>,
    usage: Usage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockKind {
    Thinking,
    Text,
    /// Index into `MessagesRenderer::calls`.
    Call(usize),
}

#[derive(Debug)]
struct BlockStart {
    kind: BlockKind,
    /// The tool's name for a call; otherwise empty.
    name: String,
}

impl MessagesRenderer {
    /// `model` as the agent named it.
    pub fn new(model: &str) -> Self {
        MessagesRenderer {
            message_id: format!("msg_{}", Uuid::now_v7().simple()),
            model: model.to_owned(),
            calls: Vec::new(),
            open: None,
            waiting: Vec::new(),
            blocks_sent: 0,
            has_said: false,
            finish_reason: None,
            usage: Usage::default(),
        }
    }

    fn message(&self, content: Vec<Value>, stop_reason: Option<&str>, usage: Usage) -> Value {
        json!({
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": null,
            "usage": usage_value(usage),
        })
    }

    /// Text and thoughts are sent at once unless a call is open; then they are held back.
    fn say(&mut self, kind: BlockKind, text: &str, out: &mut Vec<u8>) {
        if let Some((block, waiting)) = self.waiting.last_mut()
            && block.kind == kind
        {
            waiting.push_str(text);
            return;
        }
        let name = String::new();
        let block = BlockStart { kind, name };
        if self.must_wait() {
            self.waiting.push((block, text.to_owned()));
            return;
        }
        if self.open != Some(kind) {
            self.open(&block, out);
        }
        self.send(kind, text, out);
    }

    fn call(&mut self, index: usize, id: &str, name: &str, out: &mut Vec<u8>) {
        let known = self.calls.iter().rev().find(|(known, _)| *known == index);
        // Some servers repeat a call's id and name in every delta, and some give all calls the same index.
        if known.is_some_and(|(_, known)| id.is_empty() || id == known) {
            return;
        }
        let number = self.calls.len();
        let is_taken = self.calls.iter().any(|(_, known)| known == id);
        let id = match id.is_empty() || is_taken {
            true => self.call_id(number),
            false => id.to_owned(),
        };
        self.calls.push((index, id));
        let block = BlockStart {
            kind: BlockKind::Call(number),
            name: name.to_owned(),
        };
        if self.must_wait() {
            self.waiting.push((block, String::new()));
        } else {
            self.open(&block, out);
        }
    }

    fn arguments(&mut self, index: usize, text: &str, out: &mut Vec<u8>) {
        let Some(number) = self.calls.iter().rposition(|(known, _)| *known == index) else {
            return;
        };
        let kind = BlockKind::Call(number);
        if self.open == Some(kind) {
            self.send(kind, text, out);
        } else if let Some((_, waiting)) = self.waiting.iter_mut().find(|(b, _)| b.kind == kind) {
            waiting.push_str(text);
        }
    }

    /// A call id that is unique across answers.
    fn call_id(&self, number: usize) -> String {
        let unique = self.message_id.trim_start_matches("msg_");
        format!("toolu_{unique}_{number}")
    }

    fn must_wait(&self) -> bool {
        matches!(self.open, Some(BlockKind::Call(_))) || !self.waiting.is_empty()
    }

    fn open(&mut self, block: &BlockStart, out: &mut Vec<u8>) {
        self.close(out);
        let content = match block.kind {
            BlockKind::Thinking => json!({ "type": "thinking", "thinking": "", "signature": "" }),
            BlockKind::Text => json!({ "type": "text", "text": "" }),
            BlockKind::Call(number) => {
                let id = &self.calls[number].1;
                json!({ "type": "tool_use", "id": id, "name": block.name, "input": {} })
            }
        };
        let index = self.blocks_sent;
        self.blocks_sent += 1;
        self.has_said |= block.kind != BlockKind::Thinking;
        self.open = Some(block.kind);
        let start =
            json!({ "type": "content_block_start", "index": index, "content_block": content });
        event(&start, out);
    }

    fn send(&self, kind: BlockKind, text: &str, out: &mut Vec<u8>) {
        let delta = match kind {
            BlockKind::Thinking => json!({ "type": "thinking_delta", "thinking": text }),
            BlockKind::Text => json!({ "type": "text_delta", "text": text }),
            BlockKind::Call(_) => json!({ "type": "input_json_delta", "partial_json": text }),
        };
        self.send_delta(&delta, out);
    }

    fn send_delta(&self, delta: &Value, out: &mut Vec<u8>) {
        let index = self.blocks_sent.saturating_sub(1);
        let delta = json!({ "type": "content_block_delta", "index": index, "delta": delta });
        event(&delta, out);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        let Some(kind) = self.open.take() else {
            return;
        };
        if kind == BlockKind::Thinking {
            let signature = json!({ "type": "signature_delta", "signature": SIGNATURE });
            self.send_delta(&signature, out);
        }
        let index = self.blocks_sent.saturating_sub(1);
        event(
            &json!({ "type": "content_block_stop", "index": index }),
            out,
        );
    }
}

impl Render for MessagesRenderer {
    fn start(&mut self) -> Vec<u8> {
        // Usage is known only at the end; clients take it from `message_delta`.
        let message = self.message(Vec::new(), None, Usage::default());
        let mut out = Vec::new();
        let start = json!({ "type": "message_start", "message": message });
        event(&start, &mut out);
        out
    }

    fn push(&mut self, delta: &Delta) -> Vec<u8> {
        let mut out = Vec::new();
        match delta {
            Delta::Reasoning(text) if text.is_empty() => {}
            Delta::Text(text) if text.is_empty() => {}
            Delta::Reasoning(text) => self.say(BlockKind::Thinking, text, &mut out),
            Delta::Text(text) => self.say(BlockKind::Text, text, &mut out),
            Delta::Call { index, id, name } => self.call(*index, id, name, &mut out),
            Delta::Arguments { index, text } => self.arguments(*index, text, &mut out),
            Delta::Finish(reason) => self.finish_reason = Some(reason.clone()),
            Delta::Usage(usage) => self.usage = *usage,
        }
        out
    }

    fn finish(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        for (block, text) in std::mem::take(&mut self.waiting) {
            self.open(&block, &mut out);
            if !text.is_empty() {
                self.send(block.kind, &text, &mut out);
            }
        }
        if !self.has_said {
            let name = String::new();
            let kind = BlockKind::Text;
            self.open(&BlockStart { kind, name }, &mut out);
        }
        self.close(&mut out);
        let stop_reason = stop_reason(self.finish_reason.as_deref(), !self.calls.is_empty());
        let end = json!({
            "type": "message_delta",
            "delta": { "stop_reason": stop_reason, "stop_sequence": null },
            "usage": usage_value(self.usage),
        });
        event(&end, &mut out);
        event(&json!({ "type": "message_stop" }), &mut out);
        out
    }

    fn keep_alive(&self) -> Vec<u8> {
        let mut out = Vec::new();
        event(&json!({ "type": "ping" }), &mut out);
        out
    }

    fn error(&self, message: &str) -> Vec<u8> {
        let mut out = Vec::new();
        event(&error_value("api_error", message), &mut out);
        out
    }

    fn whole(&self, reply: &Reply) -> Vec<u8> {
        let mut content = Vec::new();
        let mut has_said = false;
        for delta in reply.deltas() {
            match delta {
                Delta::Reasoning(text) => content
                    .push(json!({ "type": "thinking", "thinking": text, "signature": SIGNATURE })),
                Delta::Text(text) => {
                    has_said = true;
                    content.push(json!({ "type": "text", "text": text }));
                }
                Delta::Call { index, id, name } => {
                    has_said = true;
                    let id = match id.is_empty() {
                        true => self.call_id(index),
                        false => id,
                    };
                    let arguments = reply.message.tool_calls.get(index);
                    let arguments = arguments.map(|call| call.arguments.as_str());
                    let input = input_of(arguments.unwrap_or_default());
                    content.push(
                        json!({ "type": "tool_use", "id": id, "name": name, "input": input }),
                    );
                }
                Delta::Arguments { .. } | Delta::Finish(_) | Delta::Usage(_) => {}
            }
        }
        if !has_said {
            content.push(json!({ "type": "text", "text": "" }));
        }
        let has_calls = !reply.message.tool_calls.is_empty();
        let stop_reason = stop_reason(reply.finish_reason.as_deref(), has_calls);
        let message = self.message(content, Some(stop_reason), reply.usage.unwrap_or_default());
        message.to_string().into_bytes()
    }
}

/// `tool_use` whenever there are calls, because clients run calls only then and some servers send `stop`.
fn stop_reason(finish_reason: Option<&str>, has_calls: bool) -> &'static str {
    match finish_reason {
        Some("length") => "max_tokens",
        Some("content_filter") => "refusal",
        _ if has_calls => "tool_use",
        _ => "end_turn",
    }
}

/// Chat includes cached tokens in the prompt tokens, Anthropic counts them separately. Clients require all numbers.
fn usage_value(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(usage.cached_tokens + usage.cache_write_tokens),
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    })
}

/// Writes an event; its name is its type.
fn event(data: &Value, out: &mut Vec<u8>) {
    let name = data.get("type").and_then(Value::as_str).unwrap_or_default();
    out.extend(format!("event: {name}\ndata: {data}\n\n").into_bytes());
}
