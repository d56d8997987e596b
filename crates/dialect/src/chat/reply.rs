//! Parses a stored answer, JSON or stream, into one message.
//!
//! Nothing is made up: missing values stay missing, and invalid ones are reported as flaws.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::members::Members;
use super::readable;
use super::skim::elements;
use crate::sse::Splitter;

mod message;
mod sampled;

pub use message::read_message;
pub use sampled::{LikelyToken, SampledToken, read_sampled};

/// The parsed answer of one model call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    pub id: Option<String>,
    pub model: Option<String>,
    pub message: Message,
    pub finish_reason: Option<String>,
    pub usage: Option<Usage>,
    pub prompt_token_ids: Option<Vec<u32>>,
    /// The sampled token ids.
    pub token_ids: Option<Vec<u32>>,
    /// `token_ids` were taken from token strings of the form `token_id:N`.
    pub is_from_strings: bool,
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// A finish reason was seen.
    pub is_complete: bool,
    /// The endpoint's error, an object or text, from a JSON body or a stream.
    pub upstream_error: Option<Value>,
    pub flaws: Vec<Flaw>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    pub role: String,
    pub content: Option<String>,
    pub tool_calls: Vec<ToolCall>,
    /// All other members (`reasoning_content`, `reasoning`, `refusal`…); the deltas of a stream are joined.
    pub other: Map<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    pub id: Option<String>,
    pub name: String,
    /// As the model wrote them, JSON or not.
    pub arguments: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    pub token: String,
    /// `None`, and a flaw, if the endpoint sent no finite number, or vLLM's word for minus infinity.
    pub logprob: Option<f64>,
    pub bytes: Option<Vec<u8>>,
}

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[schemars(rename = "CallUsage")]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: u64,
    /// Of the completion.
    pub completion_tokens: u64,
    /// Those of the prompt that were cached.
    pub cached_tokens: u64,
    /// Prompt tokens that were put into a cache, which some services charge more for.
    #[serde(default)]
    pub cache_write_tokens: u64,
}

/// Why the token ids and logprobs of a reply cannot be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flaw {
    TokenId {
        text: String,
    },
    Logprob {
        at: usize,
    },
    PositiveLogprob {
        at: usize,
    },
    /// The id in a token string differs from the one in the id list.
    Pairing {
        at: usize,
    },
    /// Part of the answer is missing or not valid JSON.
    Unreadable,
}

impl Message {
    fn assistant() -> Self {
        Message {
            role: "assistant".to_owned(),
            ..Message::default()
        }
    }

    /// The message as an agent would send it back.
    pub fn to_value(&self) -> Value {
        let mut out = Map::new();
        out.insert("role".to_owned(), self.role.as_str().into());
        out.insert("content".to_owned(), self.content.as_deref().into());
        out.extend(self.other.clone());
        if !self.tool_calls.is_empty() {
            out.insert(
                "tool_calls".to_owned(),
                self.tool_calls.iter().map(ToolCall::to_value).collect(),
            );
        }
        Value::Object(out)
    }

    pub fn is_empty(&self) -> bool {
        self.content.as_deref().unwrap_or_default().is_empty()
            && self.tool_calls.is_empty()
            && self.other.is_empty()
    }
}

impl ToolCall {
    fn to_value(&self) -> Value {
        serde_json::json!({
            "id": self.id,
            "type": "function",
            "function": { "name": self.name, "arguments": self.arguments },
        })
    }
}

/// What vLLM writes where a logprob is minus infinity, which JSON cannot say. No token can be sampled with it, so it is the
/// logprob of none.
const MINUS_INFINITY: f64 = -9999.0;

/// The member of a choice in a JSON answer; in a stream it is `delta`.
const WHOLE: &str = "message";

/// Parses a stored answer.
pub fn read_reply(body: &str, is_stream: bool) -> Reply {
    let mut reply = Reply {
        message: Message::assistant(),
        ..Reply::default()
    };
    // Endpoints that refuse a streamed request often respond with plain JSON.
    if is_stream && !body.trim_start().starts_with('{') {
        for data in events(body) {
            if !is_done(&data) {
                reply.read(&data, "delta");
            }
        }
    } else {
        reply.read(body, WHOLE);
    }
    reply.close();
    reply
}

fn events(body: &str) -> Vec<String> {
    // The body is in memory already, so the splitter needs no limit.
    let mut splitter = Splitter::new(usize::MAX);
    let mut events = splitter.push(body.as_bytes()).unwrap_or_default();
    // Some servers omit the last empty line; a chunk that was really truncated is no JSON.
    if let Ok(tail) = splitter.finish()
        && tail.event.data.as_deref().is_some_and(is_json)
    {
        events.push(tail.event);
    }
    events.into_iter().filter_map(|event| event.data).collect()
}

/// Validates the whole text, since skimming accepts some invalid JSON.
fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

impl Reply {
    fn read(&mut self, text: &str, message_name: &str) {
        let Some(members) = Members::read(text).filter(|_| is_json(text)) else {
            if !text.trim().is_empty() {
                self.flaws.push(Flaw::Unreadable);
            }
            return;
        };
        if let Some(error) = members.value("error") {
            self.upstream_error = Some(error);
        }
        self.id = self.id.take().or_else(|| members.value("id"));
        self.model = self.model.take().or_else(|| members.value("model"));
        if let Some(usage) = members
            .get("usage")
            .and_then(|text| read_usage(text.as_bytes()))
        {
            self.usage = Some(usage);
        }
        self.read_prompt_ids(&members);
        if let Some(extension) = members.get("sglext").and_then(Members::read) {
            self.read_sglang_extension(&extension);
        }
        for choice in members
            .get("choices")
            .and_then(elements)
            .unwrap_or_default()
        {
            if let Some(choice) = Members::read(choice)
                && choice.value("index").unwrap_or(0_u64) == 0
            {
                self.read_choice(&choice, message_name);
            }
        }
    }

    fn read_choice(&mut self, choice: &Members<'_>, message_name: &str) {
        self.read_prompt_ids(choice);
        if let Some(text) = choice.get("token_ids")
            && let Some(ids) = self.read_ids(text)
        {
            self.token_ids.get_or_insert_default().extend(ids);
        }
        if let Some(logprobs) = choice.get("logprobs").and_then(Members::read)
            && let Some(content) = logprobs.get("content").and_then(elements)
        {
            self.logprobs.get_or_insert_default();
            for entry in content {
                self.read_logprob(entry);
            }
        }
        let is_whole = message_name == WHOLE;
        let message = choice.get(message_name);
        match message
            .filter(|it| readable::is_json(it))
            .and_then(Members::read)
        {
            Some(members) => self.message.read(&members, is_whole),
            None if is_whole || message.is_some() => self.flaws.push(Flaw::Unreadable),
            None => {}
        }
        if let Some(reason) = choice
            .value("finish_reason")
            .filter(|reason: &String| !reason.is_empty())
        {
            self.finish_reason = Some(reason);
            self.is_complete = true;
        }
    }

    /// vLLM sends them at the top level, in streams on the first chunk; SGLang sends them in the choice.
    fn read_prompt_ids(&mut self, members: &Members<'_>) {
        if let Some(text) = members.get("prompt_token_ids")
            && self.prompt_token_ids.is_none()
        {
            self.prompt_token_ids = self.read_ids(text);
        }
    }

    /// SGLang's own format for token ids: once per answer, in streams on a chunk near the end.
    fn read_sglang_extension(&mut self, extension: &Members<'_>) {
        if let Some(text) = extension.get("input_ids")
            && self.prompt_token_ids.is_none()
        {
            self.prompt_token_ids = self.read_ids(text);
        }
        let choices = extension
            .get("output_ids")
            .and_then(elements)
            .unwrap_or_default();
        if let Some(first) = choices.first()
            && self.token_ids.is_none()
        {
            self.token_ids = self.read_ids(first);
        }
    }

    fn read_ids(&mut self, text: &str) -> Option<Vec<u32>> {
        match serde_json::from_str(text) {
            Ok(ids) => Some(ids),
            Err(error) => {
                self.flaws.push(Flaw::TokenId {
                    text: error.to_string(),
                });
                None
            }
        }
    }

    fn read_logprob(&mut self, text: &str) {
        let logprobs = self.logprobs.get_or_insert_default();
        let at = logprobs.len();
        let entry = Members::read(text).unwrap_or_default();
        // Parsed from the text, since serde_json's default float parsing may be off in the last bit.
        let logprob = entry
            .get("logprob")
            .and_then(|text| text.parse().ok())
            .filter(|value: &f64| value.is_finite() && *value > MINUS_INFINITY);
        match logprob {
            None => self.flaws.push(Flaw::Logprob { at }),
            Some(value) if value > 0.0 => self.flaws.push(Flaw::PositiveLogprob { at }),
            Some(_) => {}
        }
        logprobs.push(TokenLogprob {
            token: entry.value("token").unwrap_or_default(),
            logprob,
            bytes: entry.value("bytes"),
        });
    }

    /// Ids in token strings replace a missing id list, and must agree with an existing one.
    fn close(&mut self) {
        let Some(logprobs) = &self.logprobs else {
            return;
        };
        let named: Vec<Option<u32>> = logprobs
            .iter()
            .map(|entry| id_in_string(&entry.token))
            .collect();
        match &self.token_ids {
            Some(ids) => {
                let differs =
                    |(named, id): (&Option<u32>, &u32)| named.is_some_and(|named| named != *id);
                if let Some(at) = named.iter().zip(ids).position(differs) {
                    self.flaws.push(Flaw::Pairing { at });
                }
            }
            None if named.is_empty()
                || self
                    .flaws
                    .iter()
                    .any(|flaw| matches!(flaw, Flaw::TokenId { .. })) => {}
            None => {
                self.token_ids = named.into_iter().collect();
                self.is_from_strings = self.token_ids.is_some();
            }
        }
    }
}

fn id_in_string(token: &str) -> Option<u32> {
    token.strip_prefix("token_id:")?.parse().ok()
}

/// The last usage in an answer, JSON or stream, without parsing the rest: for progress and logs.
pub fn last_usage(body: &[u8]) -> Option<Usage> {
    // It is usually near the end.
    const END_BYTES: usize = 2 << 10;
    let end = &body[body.len().saturating_sub(END_BYTES)..];
    last_usage_in(end).or_else(|| last_usage_in(body))
}

fn last_usage_in(body: &[u8]) -> Option<Usage> {
    const NAME: &[u8] = b"\"usage\":";
    // Searched forwards, which is many times faster than backwards. A stream may have a null in every chunk.
    let places = memchr::memmem::find_iter(body, NAME).map(|at| &body[at + NAME.len()..]);
    let places: Vec<&[u8]> = places
        .filter(|value| !value.trim_ascii_start().starts_with(b"null"))
        .collect();
    places.into_iter().rev().find_map(|value| {
        let mut values = serde_json::Deserializer::from_slice(value).into_iter::<&RawValue>();
        read_usage(values.next()?.ok()?.get().as_bytes())
    })
}

pub(super) fn read_usage(text: &[u8]) -> Option<Usage> {
    let members = Members::read(std::str::from_utf8(text).ok()?)?;
    let details = members.get("prompt_tokens_details").and_then(Members::read);
    let cached = details.and_then(|details| details.value("cached_tokens"));
    Usage::from_numbers(|name| members.value(name), cached)
}

impl Usage {
    /// `None` without a number of prompt tokens.
    fn from_numbers(number: impl Fn(&str) -> Option<u64>, cached: Option<u64>) -> Option<Self> {
        Some(Usage {
            prompt_tokens: number("prompt_tokens")?,
            completion_tokens: number("completion_tokens").unwrap_or_default(),
            cached_tokens: cached.unwrap_or_default(),
            cache_write_tokens: 0,
        })
    }
}

impl Message {
    /// Adds a whole message, or the next delta of one.
    fn read(&mut self, members: &Members<'_>, is_whole: bool) {
        for name in members.names() {
            match name {
                "role" => self.role = members.value("role").unwrap_or_else(|| self.role.clone()),
                "content" => {
                    if let Some(text) = members
                        .value::<Value>("content")
                        .and_then(|content| text_of(&content))
                    {
                        self.content.get_or_insert_default().push_str(&text);
                    }
                }
                "tool_calls" => {
                    for call in members
                        .get("tool_calls")
                        .and_then(elements)
                        .unwrap_or_default()
                    {
                        if let Some(call) = Members::read(call) {
                            // The calls of a whole message are never merged, even if their ids are equal.
                            let index = match is_whole {
                                true => self.tool_calls.len(),
                                false => self.index_of(&call),
                            };
                            self.read_tool_call(&call, index);
                        }
                    }
                }
                _ => match (members.value::<Value>(name), self.other.get_mut(name)) {
                    (None, _) => {}
                    (Some(Value::String(more)), Some(Value::String(text))) => text.push_str(&more),
                    (Some(value), _) => {
                        self.other.insert(name.to_owned(), value);
                    }
                },
            }
        }
    }

    /// Deltas of one call share an index; without an index, a new id starts a new call.
    fn index_of(&self, members: &Members<'_>) -> usize {
        if let Some(index) = members.value::<usize>("index") {
            return index;
        }
        match (id_of(members), self.tool_calls.last()) {
            (_, None) => 0,
            (None, Some(_)) => self.tool_calls.len() - 1,
            (id, Some(last)) if last.id == id => self.tool_calls.len() - 1,
            (Some(_), Some(_)) => self.tool_calls.len(),
        }
    }

    fn read_tool_call(&mut self, members: &Members<'_>, index: usize) {
        // An index with a gap is a mistake of the endpoint, and must not allocate memory.
        let index = index.min(self.tool_calls.len());
        if index == self.tool_calls.len() {
            self.tool_calls.push(ToolCall::default());
        }
        let call = &mut self.tool_calls[index];
        call.id = call.id.take().or_else(|| id_of(members));
        let function = members
            .get("function")
            .and_then(Members::read)
            .unwrap_or_default();
        if let Some(name) = function.value::<String>("name")
            && call.name != name
        {
            call.name.push_str(&name);
        }
        match function.value::<Value>("arguments") {
            Some(Value::String(more)) => call.arguments.push_str(&more),
            Some(object) => call.arguments.push_str(&object.to_string()),
            None => {}
        }
    }
}

/// A call's id; an empty one counts as absent.
fn id_of(call: &Members<'_>) -> Option<String> {
    call.value("id").filter(|id: &String| !id.is_empty())
}

/// The text of a message content, which is a string or a list of parts.
fn text_of(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => Some(
            parts
                .iter()
                .filter_map(|part| part.get("text")?.as_str())
                .collect(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

/// Whether the event is the marker that ends a stream.
pub fn is_done(data: &str) -> bool {
    data.trim() == "[DONE]"
}

#[cfg(test)]
mod tests;
