//! Rendering of answers that are not forwarded: the trait that every dialect implements, and the renderer for chat,
//! which replays a whole answer as a stream or writes an answer of the proxy's own.

use serde_json::{Value, json};

use super::{Delta, Message, Reply, ToolCall, Usage};

/// Renders one answer in one dialect. Created from the request, fed with deltas, and finished once.
pub trait Render: Send {
    /// Events to send before the first delta.
    fn start(&mut self) -> Vec<u8>;
    /// Complete events to send for a delta; may be empty.
    fn push(&mut self, delta: &Delta) -> Vec<u8>;
    /// The events that end the answer. Called once, after a `Delta::Finish` was pushed.
    fn finish(&mut self) -> Vec<u8>;
    /// An event without meaning that keeps the client from timing out.
    fn keep_alive(&self) -> Vec<u8>;
    /// An error in the middle of a stream; nothing follows it.
    fn error(&self, message: &str) -> Vec<u8>;
    /// Whether clients of the dialect recognise [`Render::error`]. Without that the stream has to break, too: some would take
    /// its end for the end of the answer.
    fn has_error_events(&self) -> bool {
        true
    }
    /// Bytes to send before a stream is aborted, for clients that do not retry after a broken connection alone.
    fn broken_off(&self) -> Option<&'static [u8]> {
        None
    }
    /// The whole answer, for a request without streaming.
    fn whole(&self, reply: &Reply) -> Vec<u8>;
}

/// Renders one chat answer.
#[derive(Debug)]
pub struct ChatRenderer {
    pub id: String,
    pub model: String,
    /// Unix seconds.
    pub created: u64,
    /// The agent requested a usage chunk at the end of the stream.
    pub has_usage: bool,
    usage: Option<Usage>,
    is_begun: bool,
}

impl ChatRenderer {
    pub fn new(id: String, model: String, created: u64, has_usage: bool) -> Self {
        ChatRenderer {
            id,
            model,
            created,
            has_usage,
            usage: None,
            is_begun: false,
        }
    }

    fn event(&self, choices: Value, usage: Option<Value>) -> Vec<u8> {
        let mut chunk = json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        if let (Some(usage), Some(members)) = (usage, chunk.as_object_mut()) {
            members.insert("usage".to_owned(), usage);
        }
        format!("data: {chunk}\n\n").into_bytes()
    }

    fn delta(&mut self, mut delta: Value, finish: Option<&str>) -> Vec<u8> {
        if !std::mem::replace(&mut self.is_begun, true)
            && let Some(members) = delta.as_object_mut()
        {
            members.insert("role".to_owned(), "assistant".into());
        }
        let choice = json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish});
        self.event(json!([choice]), None)
    }
}

impl Render for ChatRenderer {
    fn start(&mut self) -> Vec<u8> {
        self.delta(json!({"content": ""}), None)
    }

    fn push(&mut self, delta: &Delta) -> Vec<u8> {
        match delta {
            Delta::Reasoning(text) => self.delta(json!({"reasoning_content": text}), None),
            Delta::Text(text) => self.delta(json!({"content": text}), None),
            Delta::Call { index, id, name } => {
                let function = json!({"name": name, "arguments": ""});
                let call =
                    json!({"index": index, "id": id, "type": "function", "function": function});
                self.delta(json!({"tool_calls": [call]}), None)
            }
            Delta::Arguments { index, text } => {
                let call = json!({"index": index, "function": {"arguments": text}});
                self.delta(json!({"tool_calls": [call]}), None)
            }
            Delta::Finish(reason) => self.delta(json!({}), Some(reason)),
            Delta::Usage(usage) => {
                self.usage = Some(*usage);
                Vec::new()
            }
        }
    }

    fn finish(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.has_usage {
            let usage = self.usage.unwrap_or_default();
            out.extend(self.event(json!([]), Some(usage_value(usage))));
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
        out
    }

    fn keep_alive(&self) -> Vec<u8> {
        b": waiting\n\n".to_vec()
    }

    fn has_error_events(&self) -> bool {
        false
    }

    fn error(&self, message: &str) -> Vec<u8> {
        let error = json!({"error": {"message": message, "type": "upstream_error", "code": 502}});
        format!("data: {error}\n\n").into_bytes()
    }

    fn whole(&self, reply: &Reply) -> Vec<u8> {
        let choice = json!({
            "index": 0,
            "message": reply.message.to_value(),
            "logprobs": null,
            "finish_reason": reply.finish_reason,
        });
        let body = json!({
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [choice],
            "usage": usage_value(reply.usage.unwrap_or_default()),
        });
        body.to_string().into_bytes()
    }
}

/// Includes every sub-object that clients access without checking.
fn usage_value(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    })
}

/// The body of an error response.
pub fn error_body(status: u16, message: &str) -> Vec<u8> {
    let kind = match status {
        401 | 403 => "authentication_error",
        424 => "upstream_error",
        400..500 => "invalid_request_error",
        _ => "upstream_error",
    };
    let error = json!({"message": message, "type": kind, "param": null, "code": status});
    json!({ "error": error }).to_string().into_bytes()
}

/// An answer by the proxy itself that ends an agent's loop: plain text without tool calls.
pub fn closing_reply(text: &str) -> Reply {
    Reply {
        message: Message {
            role: "assistant".to_owned(),
            content: Some(text.to_owned()),
            tool_calls: Vec::<ToolCall>::new(),
            ..Message::default()
        },
        finish_reason: Some("stop".to_owned()),
        usage: Some(Usage::default()),
        is_complete: true,
        ..Reply::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::read_reply;

    #[test]
    fn a_replayed_answer_reads_back_as_the_same_answer() {
        let body = r#"{"id":"x","choices":[{"message":{"role":"assistant","content":"ok","reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function","function":{"name":"bash","arguments":"{\"a\":1}"}},{"id":"c2","type":"function","function":{"name":"ls","arguments":"{}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
        let reply = read_reply(body, false);
        let mut answer = ChatRenderer::new("x".into(), "m".into(), 1, true);
        let mut stream = answer.start();
        for delta in reply.deltas() {
            stream.extend(answer.push(&delta));
        }
        stream.extend(answer.finish());
        let text = String::from_utf8(stream).unwrap();
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        let again = read_reply(&text, true);
        assert_eq!(
            (&again.message, &again.finish_reason, again.usage),
            (&reply.message, &reply.finish_reason, reply.usage)
        );
        let whole = String::from_utf8(answer.whole(&reply)).unwrap();
        assert_eq!(read_reply(&whole, false).message, reply.message);
    }

    #[test]
    fn a_closing_reply_is_never_empty() {
        let reply = closing_reply("The budget is used up.");
        assert_eq!(
            reply.deltas().first(),
            Some(&Delta::Text("The budget is used up.".into()))
        );
    }
}
