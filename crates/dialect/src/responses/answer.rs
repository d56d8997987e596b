//! Renders a chat answer as a Responses answer, streamed or whole.
//!
//! Ids are derived from a hash of the request, so that rendering is a pure function. The model's thoughts are sent as a
//! summary, the only form that both Codex and OpenCode's SDK send back.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::super::Render;
use super::item::{Item, ItemKind, summary_part, text_part};
use super::tool::{OriginalTool, ToolKind, custom_input};
use crate::chat::mentions_context_overflow;
use crate::chat::{Delta, Reply, Usage};

/// Renders one response.
#[derive(Clone, Debug)]
pub struct ResponsesRenderer {
    /// The request's hash, part of every id in the answer.
    key: String,
    /// Members of the response object that do not change while it is streamed.
    fixed: Map<String, Value>,
    originals: HashMap<String, OriginalTool>,
    /// The agent requested `reasoning.encrypted_content`.
    is_encrypted_wanted: bool,
    sequence: u64,
    items: Vec<Item>,
    /// The open reasoning or message item. One at a time, because Codex supports no more.
    open: Option<usize>,
    /// Chat's index of each call, with the index of its item.
    calls: Vec<(usize, usize)>,
    finish_reason: String,
    usage: Usage,
}

impl ResponsesRenderer {
    pub(super) fn new(
        request: &Map<String, Value>,
        originals: HashMap<String, OriginalTool>,
        chat: &[u8],
    ) -> Self {
        let include = request.get("include").and_then(Value::as_array);
        let mut include = include.into_iter().flatten();
        ResponsesRenderer {
            key: format!("{:016x}", hash(chat)),
            fixed: fixed_members(request),
            originals,
            is_encrypted_wanted: include.any(|name| name == "reasoning.encrypted_content"),
            sequence: 0,
            items: Vec::new(),
            open: None,
            calls: Vec::new(),
            finish_reason: String::new(),
            usage: Usage::default(),
        }
    }

    fn event(&mut self, out: &mut Vec<u8>, name: &str, members: Value) {
        let mut data = json!({"type": name, "sequence_number": self.sequence});
        if let (Some(data), Value::Object(members)) = (data.as_object_mut(), members) {
            data.extend(members);
        }
        self.sequence += 1;
        out.extend_from_slice(format!("event: {name}\ndata: {data}\n\n").as_bytes());
    }

    /// Writes an event about one item, with the item's id and index.
    fn item_event(&mut self, out: &mut Vec<u8>, name: &str, at: usize, members: Value) {
        let mut all = json!({"item_id": self.items[at].id, "output_index": at});
        if let (Some(all), Value::Object(members)) = (all.as_object_mut(), members) {
            all.extend(members);
        }
        self.event(out, name, all);
    }

    fn add(&mut self, out: &mut Vec<u8>, kind: ItemKind) -> usize {
        let at = self.items.len();
        let id = format!("{}_{}_{at}", kind.prefix(), self.key);
        let text = String::new();
        self.items.push(Item { id, kind, text });
        let item = self.item(at, "in_progress");
        let members = json!({"output_index": at, "item": item});
        self.event(out, "response.output_item.added", members);
        at
    }

    /// The open item of this kind; opens one if necessary.
    fn opened(&mut self, out: &mut Vec<u8>, kind: ItemKind) -> usize {
        let is_open = |at: usize| match (&self.items[at].kind, &kind) {
            (ItemKind::Reasoning, ItemKind::Reasoning) | (ItemKind::Message, ItemKind::Message) => {
                true
            }
            (ItemKind::Reasoning | ItemKind::Message | ItemKind::Call { .. }, _) => false,
        };
        if let Some(at) = self.open.filter(|at| is_open(*at)) {
            return at;
        }
        self.close_open(out);
        let is_message = matches!(kind, ItemKind::Message);
        let at = self.add(out, kind);
        self.open = Some(at);
        if is_message {
            let members = json!({"content_index": 0, "part": text_part("")});
            self.item_event(out, "response.content_part.added", at, members);
        } else {
            let members = json!({"summary_index": 0, "part": summary_part("")});
            self.item_event(out, "response.reasoning_summary_part.added", at, members);
        }
        at
    }

    fn write(&mut self, out: &mut Vec<u8>, kind: ItemKind, text: &str) {
        let at = self.opened(out, kind);
        self.items[at].text.push_str(text);
        match self.items[at].kind {
            ItemKind::Message => {
                let members = json!({"content_index": 0, "delta": text, "logprobs": []});
                self.item_event(out, "response.output_text.delta", at, members);
            }
            ItemKind::Reasoning | ItemKind::Call { .. } => {
                let members = json!({"summary_index": 0, "delta": text});
                self.item_event(out, "response.reasoning_summary_text.delta", at, members);
            }
        }
    }

    fn call(&mut self, out: &mut Vec<u8>, index: usize, id: &str, name: &str) {
        if let Some(at) = self.item_of(index)
            && let ItemKind::Call { id: known, .. } = &self.items[at].kind
            // Some servers repeat a call's id and name in each delta; others give all calls index 0.
            && (id.is_empty() || id == known)
        {
            return;
        }
        self.close_open(out);
        let original = self
            .originals
            .get(name)
            .cloned()
            .unwrap_or_else(|| OriginalTool {
                kind: ToolKind::Function,
                namespace: None,
                name: name.to_owned(),
            });
        let id = match id {
            "" => format!("call_{}_{}", self.key, self.items.len()),
            id => id.to_owned(),
        };
        let at = self.add(out, ItemKind::Call { id, original });
        self.calls.retain(|(known, _)| *known != index);
        self.calls.push((index, at));
    }

    fn item_of(&self, index: usize) -> Option<usize> {
        let call = self.calls.iter().find(|(known, _)| *known == index);
        call.map(|(_, at)| *at)
    }

    fn write_arguments(&mut self, out: &mut Vec<u8>, index: usize, text: &str) {
        let Some(at) = self.item_of(index) else {
            return;
        };
        self.items[at].text.push_str(text);
        // A freeform tool's input can be extracted only from the complete arguments.
        if matches!(&self.items[at].kind, ItemKind::Call { original, .. } if original.kind == ToolKind::Function)
        {
            let members = json!({ "delta": text });
            self.item_event(out, "response.function_call_arguments.delta", at, members);
        }
    }

    fn close_open(&mut self, out: &mut Vec<u8>) {
        if let Some(at) = self.open.take() {
            self.close(out, at);
        }
    }

    fn close(&mut self, out: &mut Vec<u8>, at: usize) {
        let text = self.items[at].text.clone();
        match &self.items[at].kind {
            ItemKind::Message => {
                let members = json!({"content_index": 0, "text": text, "logprobs": []});
                self.item_event(out, "response.output_text.done", at, members);
                let members = json!({"content_index": 0, "part": text_part(&text)});
                self.item_event(out, "response.content_part.done", at, members);
            }
            ItemKind::Reasoning => {
                let members = json!({"summary_index": 0, "text": text});
                self.item_event(out, "response.reasoning_summary_text.done", at, members);
                let members = json!({"summary_index": 0, "part": summary_part(&text)});
                self.item_event(out, "response.reasoning_summary_part.done", at, members);
            }
            ItemKind::Call { original, .. } => match original.kind {
                ToolKind::Function => {
                    let members = json!({"name": original.name, "arguments": text});
                    self.item_event(out, "response.function_call_arguments.done", at, members);
                }
                ToolKind::Custom => {
                    let input = custom_input(&text);
                    let members = json!({ "delta": input });
                    self.item_event(out, "response.custom_tool_call_input.delta", at, members);
                    let members = json!({ "input": input });
                    self.item_event(out, "response.custom_tool_call_input.done", at, members);
                }
            },
        }
        let item = self.item(at, "completed");
        let members = json!({"output_index": at, "item": item});
        self.event(out, "response.output_item.done", members);
    }

    fn close_all(&mut self, out: &mut Vec<u8>) {
        let is_spoken = |item: &Item| !matches!(item.kind, ItemKind::Reasoning);
        if !self.items.iter().any(is_spoken) {
            // Clients cannot handle an answer without any message or call.
            self.opened(out, ItemKind::Message);
        }
        self.close_open(out);
        // The deltas of several calls may interleave, so calls are complete only at the end.
        for at in 0..self.items.len() {
            if matches!(self.items[at].kind, ItemKind::Call { .. }) {
                self.close(out, at);
            }
        }
    }

    fn item(&self, at: usize, status: &str) -> Value {
        let mut value = self.items[at].value(status);
        if self.is_encrypted_wanted && matches!(self.items[at].kind, ItemKind::Reasoning) {
            // A dummy: OpenCode's SDK sends back no thoughts without the member.
            value["encrypted_content"] = "rollcage".into();
        }
        value
    }

    fn response(&self, status: &str) -> Value {
        let mut response =
            json!({"id": format!("resp_{}", self.key), "object": "response", "status": status});
        if let Some(members) = response.as_object_mut() {
            members.extend(self.fixed.clone());
        }
        let is_done = status != "in_progress";
        if is_done {
            let items = (0..self.items.len()).map(|at| self.item(at, "completed"));
            response["output"] = items.collect();
            response["usage"] = usage_value(self.usage);
        }
        if status == "incomplete" {
            let reason = match self.finish_reason.as_str() {
                "content_filter" => "content_filter",
                _ => "max_output_tokens",
            };
            response["incomplete_details"] = json!({ "reason": reason });
        }
        response
    }

    fn status(&self) -> &'static str {
        match self.finish_reason.as_str() {
            "length" | "content_filter" => "incomplete",
            _ => "completed",
        }
    }
}

impl Render for ResponsesRenderer {
    fn start(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        for name in ["response.created", "response.in_progress"] {
            let members = json!({"response": self.response("in_progress")});
            self.event(&mut out, name, members);
        }
        out
    }

    fn push(&mut self, delta: &Delta) -> Vec<u8> {
        let mut out = Vec::new();
        match delta {
            Delta::Reasoning(text) => self.write(&mut out, ItemKind::Reasoning, text),
            Delta::Text(text) => self.write(&mut out, ItemKind::Message, text),
            Delta::Call { index, id, name } => self.call(&mut out, *index, id, name),
            Delta::Arguments { index, text } => self.write_arguments(&mut out, *index, text),
            Delta::Finish(reason) => self.finish_reason.clone_from(reason),
            Delta::Usage(usage) => self.usage = *usage,
        }
        out
    }

    fn finish(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.close_all(&mut out);
        let status = self.status();
        let members = json!({"response": self.response(status)});
        self.event(&mut out, &format!("response.{status}"), members);
        out
    }

    fn keep_alive(&self) -> Vec<u8> {
        b": waiting\n\n".to_vec()
    }

    fn error(&self, message: &str) -> Vec<u8> {
        let code = match mentions_context_overflow(message) {
            true => "context_length_exceeded",
            false => "server_error",
        };
        let mut after = self.clone();
        let mut out = Vec::new();
        // OpenCode's SDK stops at the first event, Codex at the second. The first has its members twice, because
        // versions of the SDK expect them in different places.
        let inner =
            json!({"type": "server_error", "code": code, "message": message, "param": null});
        let members = json!({"code": code, "message": message, "param": null, "error": inner});
        after.event(&mut out, "error", members);
        let mut response = after.response("failed");
        response["error"] = json!({"code": code, "message": message});
        after.event(&mut out, "response.failed", json!({ "response": response }));
        out
    }

    fn whole(&self, reply: &Reply) -> Vec<u8> {
        let mut answer = self.clone();
        for delta in reply.deltas() {
            answer.push(&delta);
        }
        answer.close_all(&mut Vec::new());
        answer.response(answer.status()).to_string().into_bytes()
    }
}

/// Members that clients expect in a response object; those of the request are echoed.
fn fixed_members(request: &Map<String, Value>) -> Map<String, Value> {
    let or = |name: &str, other: Value| match request.get(name) {
        Some(value) if !value.is_null() => value.clone(),
        _ => other,
    };
    let members = json!({
        "created_at": 0,
        "error": null,
        "incomplete_details": null,
        "instructions": null,
        "max_output_tokens": or("max_output_tokens", Value::Null),
        "metadata": {},
        "model": or("model", "".into()),
        "output": [],
        "parallel_tool_calls": or("parallel_tool_calls", true.into()),
        "previous_response_id": null,
        "reasoning": or("reasoning", json!({"effort": null, "summary": null})),
        "store": false,
        "temperature": or("temperature", 1.0.into()),
        "text": or("text", json!({"format": {"type": "text"}})),
        "tool_choice": or("tool_choice", "auto".into()),
        "tools": [],
        "top_p": or("top_p", 1.0.into()),
        "truncation": "disabled",
        "usage": null,
    });
    match members {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

/// Includes every sub-object that clients access without checking.
fn usage_value(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}

/// FNV-1a, because the standard library's hash may differ between builds.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
