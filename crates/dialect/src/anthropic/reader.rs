//! Parses an Anthropic answer, stream or JSON, into deltas and into a `Reply`. The dialect has no token ids.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::chat::{Delta, Flaw, Message, Reply, ToolCall, Usage};
use crate::sse::Splitter;

/// Parses a stream, event by event, into dialect-independent deltas.
#[derive(Debug, Default)]
pub(crate) struct DeltaReader {
    pub(super) id: Option<String>,
    pub(super) model: Option<String>,
    /// The error object of an `error` event, which ends the answer.
    pub(super) error: Option<Value>,
    usage: UsageCounts,
    blocks: Vec<OpenCall>,
    calls: usize,
    /// Thinking blocks since the last call.
    thoughts: Vec<Value>,
    kept: Vec<CallThoughts>,
}

/// The id of a tool call, and the unchanged thinking blocks that preceded it.
pub type CallThoughts = (String, Vec<Value>);

/// A `tool_use` block that has not ended.
#[derive(Debug)]
struct OpenCall {
    block: u64,
    call: usize,
    has_arguments: bool,
}

/// Anthropic's token counts. Later events override earlier ones, and may omit what did not change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UsageCounts {
    is_seen: bool,
    input: u64,
    cache_read: u64,
    cache_creation: u64,
    output: u64,
}

impl DeltaReader {
    /// The thinking blocks that preceded calls so far. Each is returned once.
    pub(crate) fn take_thoughts(&mut self) -> Vec<CallThoughts> {
        std::mem::take(&mut self.kept)
    }

    /// The usage reported so far.
    pub(crate) fn usage(&self) -> Option<Usage> {
        self.usage.total()
    }

    /// The deltas in one event. `name` may be empty, since the data also has the type.
    pub(crate) fn read(&mut self, name: &str, event: &Value) -> Vec<Delta> {
        let mut out = Vec::new();
        let kind = text_at(event, "/type").unwrap_or(name);
        let block = event.get("index").and_then(Value::as_u64);
        let block = block.unwrap_or_default();
        match kind {
            "message_start" => {
                self.id = text_at(event, "/message/id").map(str::to_owned);
                self.model = text_at(event, "/message/model").map(str::to_owned);
                self.usage.update(event.pointer("/message/usage"));
            }
            "content_block_start" => {
                let content = event.get("content_block").unwrap_or(&Value::Null);
                self.start_block(block, content, &mut out);
            }
            "content_block_delta" => {
                let delta = event.get("delta").unwrap_or(&Value::Null);
                self.read_delta(block, delta, &mut out);
            }
            "content_block_stop" => self.stop_block(block, &mut out),
            "message_delta" => {
                self.usage.update(event.get("usage"));
                let reason = text_at(event, "/delta/stop_reason");
                out.extend(reason.map(|reason| Delta::Finish(finish_reason(reason).to_owned())));
                out.push(Delta::Usage(self.usage.sum()));
            }
            "error" => self.error = event.get("error").cloned(),
            _ => {}
        }
        out
    }

    /// Anthropic's blocks start empty; other servers of the dialect may send whole blocks at once.
    fn start_block(&mut self, block: u64, content: &Value, out: &mut Vec<Delta>) {
        match text_at(content, "/type") {
            Some("text") => push_text(content, "/text", Delta::Text, out),
            Some("thinking") => {
                push_text(content, "/thinking", Delta::Reasoning, out);
                self.thoughts.push(content.clone());
            }
            Some("redacted_thinking") => self.thoughts.push(content.clone()),
            Some("tool_use") => {
                let call = self.calls;
                self.calls += 1;
                let member = |path| text_at(content, path).unwrap_or_default().to_owned();
                if !self.thoughts.is_empty() {
                    let thoughts = std::mem::take(&mut self.thoughts);
                    self.kept.push((member("/id"), thoughts));
                }
                out.push(Delta::Call {
                    index: call,
                    id: member("/id"),
                    name: member("/name"),
                });
                let input = content.get("input").and_then(Value::as_object);
                let input = input.filter(|input| !input.is_empty());
                if let Some(input) = input {
                    let text = Value::from(input.clone()).to_string();
                    out.push(Delta::Arguments { index: call, text });
                }
                self.blocks.push(OpenCall {
                    block,
                    call,
                    has_arguments: input.is_some(),
                });
            }
            // Server tools run on the endpoint, not in the agent.
            _ => {}
        }
    }

    fn read_delta(&mut self, block: u64, delta: &Value, out: &mut Vec<Delta>) {
        match text_at(delta, "/type") {
            Some("text_delta") => push_text(delta, "/text", Delta::Text, out),
            Some("thinking_delta") => {
                push_text(delta, "/thinking", Delta::Reasoning, out);
                self.add_thought("thinking", text_at(delta, "/thinking"));
            }
            Some("signature_delta") => self.add_thought("signature", text_at(delta, "/signature")),
            Some("input_json_delta") => {
                let open = self.blocks.iter_mut().find(|open| open.block == block);
                if let Some(open) = open {
                    let before = out.len();
                    let index = open.call;
                    let arguments = |text| Delta::Arguments { index, text };
                    push_text(delta, "/partial_json", arguments, out);
                    open.has_arguments |= out.len() > before;
                }
            }
            _ => {}
        }
    }

    fn add_thought(&mut self, name: &str, more: Option<&str>) {
        if let (Some(Value::Object(block)), Some(more)) = (self.thoughts.last_mut(), more)
            && let Value::String(text) = block.entry(name).or_insert_with(|| "".into())
        {
            text.push_str(more);
        }
    }

    /// Sends `{}` for a call without arguments, because chat clients parse them as JSON.
    fn stop_block(&mut self, block: u64, out: &mut Vec<Delta>) {
        let Some(at) = self.blocks.iter().position(|open| open.block == block) else {
            return;
        };
        let open = self.blocks.swap_remove(at);
        if !open.has_arguments {
            out.push(Delta::Arguments {
                index: open.call,
                text: "{}".to_owned(),
            });
        }
    }
}

impl UsageCounts {
    /// Updates the counts from an event.
    pub(crate) fn update_from(&mut self, event: &Value) {
        self.update(event.pointer("/message/usage"));
        self.update(event.get("usage"));
    }

    fn update(&mut self, usage: Option<&Value>) {
        self.is_seen |= usage.is_some_and(|usage| !usage.is_null());
        let number = |name: &str| usage?.get(name)?.as_u64();
        // A zero in a later event means that the prompt was not counted again.
        let keep = |new: Option<u64>, old: u64| new.filter(|new| *new > 0).unwrap_or(old);
        self.input = keep(number("input_tokens"), self.input);
        self.cache_read = keep(number("cache_read_input_tokens"), self.cache_read);
        self.cache_creation = keep(number("cache_creation_input_tokens"), self.cache_creation);
        self.output = number("output_tokens").unwrap_or(self.output);
    }

    /// `None` if no usage was reported.
    pub(crate) fn total(&self) -> Option<Usage> {
        self.is_seen.then(|| self.sum())
    }

    fn sum(&self) -> Usage {
        Usage {
            prompt_tokens: self.input + self.cache_read + self.cache_creation,
            completion_tokens: self.output,
            cached_tokens: self.cache_read,
            cache_write_tokens: self.cache_creation,
        }
    }
}

/// The message of an error, in a stream event or a response body.
pub fn error_message(data: &str) -> Option<String> {
    let value: Value = serde_json::from_str(data).ok()?;
    text_at(&value, "/error/message").map(str::to_owned)
}

/// Parses a stored answer.
pub fn read_message(body: &str, is_stream: bool) -> Reply {
    read_with_thoughts(body, is_stream).0
}

/// Parses a stored answer, with the thinking blocks that preceded its calls.
pub fn read_with_thoughts(body: &str, is_stream: bool) -> (Reply, Vec<CallThoughts>) {
    let mut reply = Reply {
        message: Message {
            role: "assistant".to_owned(),
            ..Message::default()
        },
        ..Reply::default()
    };
    let mut reader = DeltaReader::default();
    // Refused requests get plain JSON, even if they asked for a stream.
    if is_stream && !body.trim_start().starts_with('{') {
        for data in events(body) {
            match serde_json::from_str::<Value>(&data) {
                Ok(event) => take(&mut reply, reader.read("", &event)),
                Err(_) => reply.flaws.push(Flaw::Unreadable),
            }
        }
    } else {
        match serde_json::from_str::<Value>(body) {
            Ok(message) => {
                for event in as_events(message) {
                    take(&mut reply, reader.read("", &event));
                }
            }
            Err(_) if body.trim().is_empty() => {}
            Err(_) => reply.flaws.push(Flaw::Unreadable),
        }
    }
    let thoughts = reader.take_thoughts();
    reply.id = reader.id;
    reply.model = reader.model;
    reply.upstream_error = reader.error;
    (reply, thoughts)
}

/// The usage in an answer, JSON or stream, without parsing the rest: for budgets and logs.
pub fn usage_of(body: &[u8]) -> Option<Usage> {
    #[derive(Deserialize)]
    struct Event {
        message: Option<Start>,
        usage: Option<Value>,
    }
    #[derive(Deserialize)]
    struct Start {
        usage: Option<Value>,
    }
    let mut counts = UsageCounts::default();
    let mut take = |text: &[u8]| {
        let event: Option<Event> = serde_json::from_slice(text).ok();
        for event in event.into_iter() {
            let start = event.message.and_then(|message| message.usage);
            for usage in [start, event.usage].into_iter().flatten() {
                counts.update(Some(&usage));
            }
        }
    };
    if body.trim_ascii_start().starts_with(b"{") {
        take(body);
    } else {
        let lines = body.split(|byte| matches!(byte, b'\n' | b'\r'));
        let events = lines.filter_map(|line| line.strip_prefix(b"data:"));
        let is_counting = |event: &&[u8]| memchr::memmem::find(event, b"\"usage\"").is_some();
        events.filter(is_counting).for_each(take);
    }
    counts.total()
}

fn events(body: &str) -> Vec<String> {
    // The body is in memory already, so the splitter needs no limit.
    let mut splitter = Splitter::new(usize::MAX);
    let mut events = splitter.push(body.as_bytes()).unwrap_or_default();
    // Some servers omit the last empty line; an event that was really truncated is no JSON.
    let tail = splitter.finish().ok().map(|tail| tail.event);
    let is_whole = |data: &String| serde_json::from_str::<Value>(data).is_ok();
    events.extend(tail.filter(|event| event.data.as_ref().is_some_and(is_whole)));
    events.into_iter().filter_map(|event| event.data).collect()
}

/// A JSON message as the equivalent stream events, so that one parser handles both.
fn as_events(mut message: Value) -> Vec<Value> {
    if message.get("type").and_then(Value::as_str) == Some("error") || message["error"].is_object()
    {
        message["type"] = "error".into();
        return vec![message];
    }
    let content = message.get_mut("content").map(Value::take);
    let end = serde_json::json!({
        "type": "message_delta",
        "delta": { "stop_reason": message["stop_reason"] },
        "usage": message["usage"],
    });
    let mut events = vec![serde_json::json!({ "type": "message_start", "message": message })];
    let blocks = content.as_ref().and_then(Value::as_array);
    for (index, block) in blocks.into_iter().flatten().enumerate() {
        events.push(serde_json::json!({
            "type": "content_block_start", "index": index, "content_block": block,
        }));
        events.push(serde_json::json!({ "type": "content_block_stop", "index": index }));
    }
    events.push(end);
    events
}

fn take(reply: &mut Reply, deltas: Vec<Delta>) {
    for delta in deltas {
        match delta {
            Delta::Reasoning(text) => add_reasoning(&mut reply.message.other, &text),
            Delta::Text(text) => {
                let content = reply.message.content.get_or_insert_default();
                content.push_str(&text);
            }
            Delta::Call { id, name, .. } => reply.message.tool_calls.push(ToolCall {
                id: Some(id).filter(|id| !id.is_empty()),
                name,
                arguments: String::new(),
            }),
            Delta::Arguments { index, text } => {
                if let Some(call) = reply.message.tool_calls.get_mut(index) {
                    call.arguments.push_str(&text);
                }
            }
            Delta::Finish(reason) => {
                reply.finish_reason = Some(reason);
                reply.is_complete = true;
            }
            Delta::Usage(usage) => reply.usage = Some(usage),
        }
    }
}

fn add_reasoning(other: &mut Map<String, Value>, more: &str) {
    let value = other
        .entry("reasoning_content")
        .or_insert_with(|| Value::String(String::new()));
    if let Value::String(text) = value {
        text.push_str(more);
    }
}

fn finish_reason(stop_reason: &str) -> &'static str {
    match stop_reason {
        "tool_use" => "tool_calls",
        "max_tokens" | "model_context_window_exceeded" => "length",
        "refusal" => "content_filter",
        _ => "stop",
    }
}

fn text_at<'a>(value: &'a Value, path: &str) -> Option<&'a str> {
    value.pointer(path).and_then(Value::as_str)
}

fn push_text(value: &Value, path: &str, make: impl FnOnce(String) -> Delta, out: &mut Vec<Delta>) {
    let text = text_at(value, path).filter(|text| !text.is_empty());
    out.extend(text.map(|text| make(text.to_owned())));
}
