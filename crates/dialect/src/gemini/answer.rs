//! Renders a chat answer as a generateContent answer, streamed or whole.
//!
//! Gemini does not stream function calls, so they are held back until the end of the answer.

use serde_json::{Map, Value, json};

use super::contents::{RAW_ARGUMENTS, generated_id};
use super::{ResponseEncoding, error_value, inside, member, signature};
use crate::chat::{Delta, Render, Reply, Usage};

/// Renders one answer.
#[derive(Clone, Debug)]
pub struct GeminiRenderer {
    model: String,
    encoding: ResponseEncoding,
    is_thought_wanted: bool,
    /// Number of calls in the conversation so far, for the ids of calls to which the endpoint gave none.
    n_calls: usize,
    /// Something was sent, so the next array element needs a comma.
    is_begun: bool,
    thoughts: String,
    calls: Vec<PendingCall>,
    finish_reason: String,
    usage: Usage,
}

#[derive(Clone, Debug)]
struct PendingCall {
    index: usize,
    id: String,
    name: String,
    arguments: String,
}

impl GeminiRenderer {
    pub(super) fn new(
        request: &Map<String, Value>,
        model: &str,
        encoding: ResponseEncoding,
        n_calls: usize,
    ) -> Self {
        let thinking = member(request, "generationConfig")
            .and_then(|config| inside(config, "thinkingConfig"))
            .and_then(|thinking| inside(thinking, "includeThoughts"));
        GeminiRenderer {
            model: model.to_owned(),
            encoding,
            is_thought_wanted: thinking == Some(&Value::Bool(true)),
            n_calls,
            is_begun: false,
            thoughts: String::new(),
            calls: Vec::new(),
            finish_reason: String::new(),
            usage: Usage::default(),
        }
    }

    /// The content type of a streamed answer.
    pub fn content_type(&self) -> &'static str {
        self.encoding.content_type()
    }

    fn chunk(&mut self, value: &Value) -> Vec<u8> {
        let is_first = !std::mem::replace(&mut self.is_begun, true);
        let value = in_one_line(value);
        match self.encoding {
            ResponseEncoding::Events => format!("data: {value}\n\n"),
            ResponseEncoding::Whole | ResponseEncoding::Array if is_first => value,
            ResponseEncoding::Whole | ResponseEncoding::Array => format!(",\n{value}"),
        }
        .into_bytes()
    }

    fn part(&mut self, part: Value) -> Vec<u8> {
        let candidate = json!({"content": {"role": "model", "parts": [part]}, "index": 0});
        let value = json!({"candidates": [candidate], "modelVersion": self.model});
        self.chunk(&value)
    }

    fn call(&mut self, index: usize, id: &str, name: &str) {
        let known = self.calls.iter_mut().rfind(|call| call.index == index);
        if let Some(call) = known
            // Some servers repeat a call's id and name in each delta; others give all calls index 0.
            && (id.is_empty() || call.id == id)
        {
            return;
        }
        self.calls.push(PendingCall {
            index,
            id: id.to_owned(),
            name: name.to_owned(),
            arguments: String::new(),
        });
    }

    fn call_parts(&self) -> Vec<Value> {
        let calls = self.calls.iter().enumerate();
        let mut parts: Vec<Value> = calls
            .map(|(at, call)| call.part(self.n_calls + at))
            .collect();
        if let Some(first) = parts.first_mut()
            && !self.thoughts.is_empty()
        {
            first["thoughtSignature"] = signature::write(&self.thoughts).into();
        }
        parts
    }

    /// The last chunk of the answer, with the parts that were held back.
    fn last(&self, mut parts: Vec<Value>) -> Value {
        if parts.is_empty() {
            // Clients access the parts without checking that there are any.
            parts.push(json!({"text": ""}));
        }
        let reason = match self.finish_reason.as_str() {
            "length" => "MAX_TOKENS",
            "content_filter" => "SAFETY",
            _ => "STOP",
        };
        let candidate = json!({
            "content": {"role": "model", "parts": parts},
            "finishReason": reason,
            "index": 0,
        });
        json!({
            "candidates": [candidate],
            "usageMetadata": usage_value(self.usage),
            "modelVersion": self.model,
        })
    }
}

impl PendingCall {
    /// `number` is the call's number in the conversation.
    fn part(&self, number: usize) -> Value {
        let args = match serde_json::from_str(&self.arguments) {
            Ok(Value::Object(args)) => Value::Object(args),
            _ if self.arguments.trim().is_empty() => json!({}),
            _ => json!({ RAW_ARGUMENTS: self.arguments }),
        };
        let id = match self.id.as_str() {
            "" => generated_id(number),
            id => id.to_owned(),
        };
        json!({"functionCall": {"id": id, "name": self.name, "args": args}})
    }
}

impl Render for GeminiRenderer {
    fn start(&mut self) -> Vec<u8> {
        match self.encoding {
            ResponseEncoding::Array => b"[".to_vec(),
            ResponseEncoding::Events | ResponseEncoding::Whole => Vec::new(),
        }
    }

    fn push(&mut self, delta: &Delta) -> Vec<u8> {
        match delta {
            Delta::Reasoning(text) => {
                self.thoughts.push_str(text);
                if self.is_thought_wanted {
                    return self.part(json!({"text": text, "thought": true}));
                }
            }
            Delta::Text(text) => {
                return self.part(json!({ "text": text }));
            }
            Delta::Call { index, id, name } => self.call(*index, id, name),
            Delta::Arguments { index, text } => {
                let call = self.calls.iter_mut().rfind(|call| call.index == *index);
                if let Some(call) = call {
                    call.arguments.push_str(text);
                }
            }
            Delta::Finish(reason) => self.finish_reason.clone_from(reason),
            Delta::Usage(usage) => self.usage = *usage,
        }
        Vec::new()
    }

    fn finish(&mut self) -> Vec<u8> {
        let value = self.last(self.call_parts());
        let mut out = self.chunk(&value);
        if self.encoding == ResponseEncoding::Array {
            out.push(b']');
        }
        out
    }

    /// White space, because Google's SDK accepts only that before `data:` and fails on a comment.
    fn keep_alive(&self) -> Vec<u8> {
        b"\n".to_vec()
    }

    /// An incomplete event: Gemini CLI always retries when a stream ends within one, but may mistake a broken
    /// connection for one that was closed properly.
    fn broken_off(&self) -> Option<&'static [u8]> {
        (self.encoding == ResponseEncoding::Events).then_some(b"data: {")
    }

    /// Not an event, because Google's SDK detects an error only in a chunk that consists of JSON alone.
    fn error(&self, message: &str) -> Vec<u8> {
        let error = in_one_line(&error_value(502, message));
        match self.encoding {
            ResponseEncoding::Events | ResponseEncoding::Whole => format!("{error}\n"),
            ResponseEncoding::Array if self.is_begun => format!(",\n{error}]"),
            ResponseEncoding::Array => format!("{error}]"),
        }
        .into_bytes()
    }

    fn whole(&self, reply: &Reply) -> Vec<u8> {
        let mut answer = self.clone();
        for delta in reply.deltas() {
            answer.push(&delta);
        }
        let mut parts = Vec::new();
        if self.is_thought_wanted && !answer.thoughts.is_empty() {
            parts.push(json!({"text": answer.thoughts, "thought": true}));
        }
        let text = reply.message.content.as_deref().unwrap_or_default();
        if !text.is_empty() {
            parts.push(json!({ "text": text }));
        }
        parts.extend(answer.call_parts());
        answer.last(parts).to_string().into_bytes()
    }
}

/// JSON with U+2028 and U+2029 escaped: JavaScript treats them as line ends, so Google's SDK would split events there.
/// They occur only in strings, where an escape is equivalent.
fn in_one_line(value: &Value) -> String {
    let text = value.to_string();
    match text.contains(['\u{2028}', '\u{2029}']) {
        true => text
            .replace('\u{2028}', "\\u2028")
            .replace('\u{2029}', "\\u2029"),
        false => text,
    }
}

/// Includes every number that clients read. Chat's completion tokens include those of thoughts.
fn usage_value(usage: Usage) -> Value {
    json!({
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens,
        "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
        "thoughtsTokenCount": 0,
    })
}
