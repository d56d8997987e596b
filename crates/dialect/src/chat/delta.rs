//! Dialect-independent deltas of an answer, from which all dialects are rendered.

use serde_json::{Map, Value};

use super::reply::{Reply, Usage};

/// Message members that hold reasoning: vLLM and SGLang use the first, newer versions of vLLM and OpenRouter the
/// second.
pub(super) const THOUGHTS: [&str; 3] = ["reasoning_content", "reasoning", "reasoning_details"];

/// One increment of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// Text of the model's reasoning.
    Reasoning(String),
    Text(String),
    /// The start of a tool call. `index` distinguishes the calls of one answer.
    Call {
        index: usize,
        id: String,
        name: String,
    },
    /// More of a call's arguments, as the model wrote them.
    Arguments {
        index: usize,
        text: String,
    },
    Finish(String),
    Usage(Usage),
}

pub(super) fn read_delta(delta: &Map<String, Value>, out: &mut Vec<Delta>) {
    let text = |name: &str| {
        let text = delta.get(name).and_then(Value::as_str);
        text.filter(|text| !text.is_empty()).map(str::to_owned)
    };
    // vLLM and SGLang use the first name, OpenRouter the second.
    let reasoning = text("reasoning_content").or_else(|| text("reasoning"));
    out.extend(reasoning.map(Delta::Reasoning));
    out.extend(text("content").map(Delta::Text));
    let calls = delta.get("tool_calls").and_then(Value::as_array);
    for (at, call) in calls.into_iter().flatten().enumerate() {
        let index = call.get("index").and_then(Value::as_u64);
        let index = index.map_or(at, |index| usize::try_from(index).unwrap_or(at));
        let member = |path: &str| call.pointer(path).and_then(Value::as_str);
        if let Some(name) = member("/function/name").filter(|name| !name.is_empty()) {
            out.push(Delta::Call {
                index,
                id: member("/id").unwrap_or_default().to_owned(),
                name: name.to_owned(),
            });
        }
        if let Some(text) = member("/function/arguments").filter(|text| !text.is_empty()) {
            let text = text.to_owned();
            out.push(Delta::Arguments { index, text });
        }
    }
}

impl Reply {
    /// The answer without reasoning, for an agent that turned it off.
    pub fn without_thoughts(mut self) -> Self {
        self.message
            .other
            .retain(|name, _| !THOUGHTS.contains(&name.as_str()));
        self
    }

    /// A whole answer as the deltas that a stream would have had.
    pub fn deltas(&self) -> Vec<Delta> {
        let mut out = Vec::new();
        let reasoning = ["reasoning_content", "reasoning"].map(|name| {
            let text = self.message.other.get(name).and_then(Value::as_str);
            text.filter(|text| !text.is_empty())
        });
        let reasoning = reasoning.into_iter().flatten().next();
        out.extend(reasoning.map(|text| Delta::Reasoning(text.to_owned())));
        let text = self.message.content.clone().filter(|text| !text.is_empty());
        out.extend(text.map(Delta::Text));
        for (index, call) in self.message.tool_calls.iter().enumerate() {
            out.push(Delta::Call {
                index,
                id: call.id.clone().unwrap_or_default(),
                name: call.name.clone(),
            });
            let text = call.arguments.clone();
            out.push(Delta::Arguments { index, text });
        }
        out.extend(self.finish_reason.clone().map(Delta::Finish));
        out.extend(self.usage.map(Delta::Usage));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::deltas;

    #[test]
    fn a_chunk_yields_its_deltas_in_order() {
        let data = r#"{"choices":[{"delta":{"reasoning_content":"hm","content":"ok","tool_calls":[{"index":1,"id":"c1","function":{"name":"bash","arguments":"{\"a\""}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
        let usage = Usage {
            prompt_tokens: 3,
            completion_tokens: 2,
            ..Usage::default()
        };
        assert_eq!(
            deltas(data),
            [
                Delta::Reasoning("hm".into()),
                Delta::Text("ok".into()),
                Delta::Call {
                    index: 1,
                    id: "c1".into(),
                    name: "bash".into()
                },
                Delta::Arguments {
                    index: 1,
                    text: "{\"a\"".into()
                },
                Delta::Finish("tool_calls".into()),
                Delta::Usage(usage),
            ]
        );
        assert_eq!(deltas("[DONE]"), []);
    }

    #[test]
    fn a_whole_answer_yields_the_same_deltas_as_its_stream() {
        let body = r#"{"choices":[{"message":{"role":"assistant","content":"ok","reasoning_content":"hm"},"finish_reason":"stop"}]}"#;
        let reply = super::super::read_reply(body, false);
        assert_eq!(
            reply.deltas(),
            [
                Delta::Reasoning("hm".into()),
                Delta::Text("ok".into()),
                Delta::Finish("stop".into())
            ]
        );
    }
}
