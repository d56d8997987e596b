//! The parts of a chat completion request that the scripted model uses. Sampling parameters are ignored.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value};

use rollcage_model::finding::CaptureLevel;

/// vLLM's default limit on alternatives per token.
const TOP_LOGPROBS_MAX: i64 = 20;

#[derive(Debug, Deserialize)]
pub(super) struct ChatRequest {
    pub(super) messages: Vec<Message>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    n: Option<i64>,
    logprobs: Option<bool>,
    /// vLLM's default is 0; an explicit null turns logprobs off.
    #[serde(default = "no_alternatives")]
    top_logprobs: Option<i64>,
    return_token_ids: Option<bool>,
    return_tokens_as_token_ids: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Message {
    pub(super) role: String,
    content: Option<Value>,
    reasoning_content: Option<Value>,
    reasoning: Option<Value>,
    tool_calls: Option<Vec<RequestToolCall>>,
}

#[derive(Debug, Deserialize)]
struct RequestToolCall {
    function: Function,
}

#[derive(Debug, Deserialize)]
struct Function {
    name: String,
    arguments: Option<Value>,
}

/// A function that the agent offers.
#[derive(Debug)]
pub(super) struct Tool<'a> {
    pub(super) name: &'a str,
    pub(super) properties: Option<&'a Map<String, Value>>,
    pub(super) required: Vec<&'a str>,
}

/// What the answer should contain besides the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutputOptions {
    pub(super) token_ids: bool,
    /// The number of alternatives per token; `None` for no logprobs.
    pub(super) top_logprobs: Option<usize>,
    pub(super) tokens_as_ids: bool,
    pub(super) stream: bool,
    pub(super) stream_usage: bool,
}

impl OutputOptions {
    /// Without what an endpoint of this capture level does not provide.
    pub(super) fn at_most(self, level: CaptureLevel) -> Self {
        OutputOptions {
            token_ids: self.token_ids && level == CaptureLevel::Tokens,
            top_logprobs: self.top_logprobs.filter(|_| level != CaptureLevel::Text),
            ..self
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("the body is not a chat completion request: {0}")]
    Shape(#[from] serde_json::Error),
    #[error("`{field}` must be {allowed}, not {given}")]
    Range {
        field: &'static str,
        allowed: &'static str,
        given: i64,
    },
    #[error("when using `top_logprobs`, `logprobs` must be set to true")]
    TopWithoutLogprobs,
}

fn no_alternatives() -> Option<i64> {
    Some(0)
}

/// Parses a request and validates everything that the answer depends on.
pub(super) fn parse(body: &[u8]) -> Result<ChatRequest, RequestError> {
    let request: ChatRequest = serde_json::from_slice(body)?;
    let range = |field, given: Option<i64>, allowed, is_fine: bool| match given {
        Some(given) if !is_fine => Err(RequestError::Range {
            field,
            allowed,
            given,
        }),
        _ => Ok(()),
    };
    let (short, long) = (request.max_tokens, request.max_completion_tokens);
    let is_positive = |given: Option<i64>| given.is_none_or(|given| given >= 1);
    range("max_tokens", short, "at least 1", is_positive(short))?;
    range(
        "max_completion_tokens",
        long,
        "at least 1",
        is_positive(long),
    )?;
    range("n", request.n, "1", request.n.is_none_or(|n| n == 1))?;
    let top = request.top_logprobs;
    let is_allowed = top.is_none_or(|top| (0..=TOP_LOGPROBS_MAX).contains(&top));
    range("top_logprobs", top, "from 0 to 20", is_allowed)?;
    if top.is_some_and(|top| top > 0) && request.logprobs != Some(true) {
        return Err(RequestError::TopWithoutLogprobs);
    }
    Ok(request)
}

impl ChatRequest {
    pub(super) fn output_options(&self) -> OutputOptions {
        let top = self.top_logprobs.and_then(|top| usize::try_from(top).ok());
        let usage = self
            .stream_options
            .as_ref()
            .and_then(|options| options.include_usage);
        OutputOptions {
            token_ids: self.return_token_ids == Some(true),
            top_logprobs: top.filter(|_| self.logprobs == Some(true)),
            tokens_as_ids: self.return_tokens_as_token_ids == Some(true),
            stream: self.stream == Some(true),
            stream_usage: usage == Some(true),
        }
    }

    /// The limit on completion tokens.
    pub(super) fn tokens_max(&self) -> usize {
        let limit = self.max_completion_tokens.or(self.max_tokens);
        limit
            .and_then(|limit| usize::try_from(limit).ok())
            .unwrap_or(usize::MAX)
    }

    /// The tools as sent.
    pub(super) fn tool_definitions(&self) -> &[Value] {
        self.tools.as_deref().unwrap_or_default()
    }

    /// The functions that may be called in this turn.
    pub(super) fn offered(&self) -> Vec<Tool<'_>> {
        if self.tool_choice.as_ref().and_then(Value::as_str) == Some("none") {
            return Vec::new();
        }
        self.tool_definitions().iter().filter_map(tool).collect()
    }

    /// The texts of all tool results, in order.
    pub(super) fn results(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let results = self
            .messages
            .iter()
            .filter(|message| message.role == "tool");
        results.map(Message::text)
    }

    /// Whether a message other than the model's contains these words.
    pub(super) fn mentions(&self, words: &str) -> bool {
        let mut others = self
            .messages
            .iter()
            .filter(|message| !message.is_assistant());
        others.any(|message| message.text().contains(words))
    }

    /// Whether the instructions contain these words; tool results do not count.
    pub(super) fn is_instructed(&self, words: &str) -> bool {
        let mut others = self
            .messages
            .iter()
            .filter(|message| !message.is_assistant() && message.role != "tool");
        others.any(|message| message.text().contains(words))
    }

    /// The number of assistant turns so far. Consecutive assistant messages count as one, because some agents send back
    /// the text and the tool call of one answer as two messages.
    pub(super) fn turns(&self) -> usize {
        let roles: Vec<_> = self.messages.iter().map(Message::is_assistant).collect();
        let starts = roles.iter().enumerate().filter(|(index, is_assistant)| {
            **is_assistant && !index.checked_sub(1).is_some_and(|before| roles[before])
        });
        starts.count()
    }
}

impl Message {
    pub(super) fn is_assistant(&self) -> bool {
        self.role == "assistant"
    }

    pub(super) fn text(&self) -> Cow<'_, str> {
        self.content.as_ref().map(content_text).unwrap_or_default()
    }

    pub(super) fn reasoning(&self) -> &str {
        let given = self.reasoning_content.as_ref().or(self.reasoning.as_ref());
        given.and_then(Value::as_str).unwrap_or_default()
    }

    /// Name and arguments of each tool call, the arguments exactly as the agent sent them.
    pub(super) fn calls(&self) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
        let calls = self.tool_calls.as_deref().unwrap_or_default();
        calls.iter().map(|call| {
            let arguments = call.function.arguments.as_ref();
            let arguments = arguments.map(content_text).unwrap_or_default();
            (call.function.name.as_str(), arguments)
        })
    }
}

fn tool(definition: &Value) -> Option<Tool<'_>> {
    let function = definition.get("function")?;
    let parameters = function.get("parameters");
    let required = parameters.and_then(|schema| schema.get("required")?.as_array());
    Some(Tool {
        name: function.get("name")?.as_str()?,
        properties: parameters.and_then(|schema| schema.get("properties")?.as_object()),
        required: required
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect(),
    })
}

/// A string unchanged, a list of parts joined, and anything else as JSON.
fn content_text(content: &Value) -> Cow<'_, str> {
    match content {
        Value::Null => Cow::Borrowed(""),
        Value::String(text) => Cow::Borrowed(text),
        Value::Array(parts) => parts.iter().map(part_text).collect::<String>().into(),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => content.to_string().into(),
    }
}

fn part_text(part: &Value) -> Cow<'_, str> {
    match (part, part.get("text")) {
        (Value::String(text), _) => Cow::Borrowed(text),
        (_, Some(Value::String(text))) if part.get("type").is_some_and(|kind| kind == "text") => {
            Cow::Borrowed(text)
        }
        _ => part.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(body: Value, expect: &str) {
        let outcome = parse(body.to_string().as_bytes());
        let text = outcome.map_or_else(
            |error| error.to_string(),
            |request| format!("{:?}", request.output_options()),
        );
        assert_eq!(text, expect);
    }

    #[test]
    fn limits_out_of_range_are_refused_by_name() {
        check(
            json!({"messages": [], "max_tokens": 0}),
            "`max_tokens` must be at least 1, not 0",
        );
        check(json!({"messages": [], "n": 2}), "`n` must be 1, not 2");
        check(
            json!({"messages": [], "logprobs": true, "top_logprobs": 21}),
            "`top_logprobs` must be from 0 to 20, not 21",
        );
        check(
            json!({"messages": [], "top_logprobs": 1}),
            "when using `top_logprobs`, `logprobs` must be set to true",
        );
    }

    #[test]
    fn null_logprobs_mean_the_same_as_in_vllm() {
        let output_options = |body: Value| {
            parse(body.to_string().as_bytes())
                .unwrap()
                .output_options()
                .top_logprobs
        };
        assert_eq!(
            output_options(json!({"messages": [], "logprobs": true})),
            Some(0)
        );
        assert_eq!(
            output_options(json!({"messages": [], "logprobs": true, "top_logprobs": null})),
            None
        );
        assert_eq!(
            output_options(json!({"messages": [], "logprobs": false})),
            None
        );
    }

    #[test]
    fn an_answer_sent_back_in_two_messages_is_one_turn() {
        let body = json!({"messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]},
            {"role": "assistant", "content": "b"}, {"role": "assistant", "content": null},
            {"role": "tool", "content": "c"}, {"role": "assistant"},
        ]});
        let request = parse(body.to_string().as_bytes()).unwrap();
        assert_eq!(request.turns(), 2);
        assert_eq!(
            request.messages[0].text(),
            r#"a{"type":"image_url","image_url":{}}"#
        );
    }
}
