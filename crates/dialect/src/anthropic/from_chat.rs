//! Translates a chat request to a Messages request, for endpoints that speak Anthropic's dialect.
//!
//! Anthropic refuses unknown members, so only those with a counterpart are translated. Others, such as token ids,
//! logprobs, seeds and penalties, are listed in `MessagesRequest::dropped`.

use serde_json::{Map, Value, json};

use super::thought::{Thoughts, clean_id};
use super::{TranslateError, input_of, list, object, string, unsupported, wrong};

/// Default limit on completion tokens. Anthropic requires one; every current model accepts this value.
const TOKENS_MAX: u64 = 32_000;

/// A request in Anthropic's dialect.
#[derive(Debug)]
pub struct MessagesRequest {
    pub body: Vec<u8>,
    /// Members of the chat request without a counterpart.
    pub dropped: Vec<String>,
}

/// Members of a chat request that are translated, or that can be ignored.
const KNOWN: [&str; 17] = [
    "n",
    "model",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "stream",
    "stream_options",
    "thinking",
    "stop",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
];

/// Translates a request. `thoughts` are those of earlier answers in the same session.
pub fn from_chat_request(
    chat: &[u8],
    thoughts: &Thoughts,
) -> Result<MessagesRequest, TranslateError> {
    let chat = object(chat)?;
    let get = |name: &str| chat.get(name).filter(|value| !value.is_null());
    for name in ["functions", "function_call"] {
        if get(name).is_some() {
            return Err(unsupported(format!("the old member `{name}`")));
        }
    }
    if let Some(n) = get("n").filter(|n| n.as_f64() != Some(1.0)) {
        return Err(unsupported(format!("more than one answer (`n` is {n})")));
    }
    let model = get("model").ok_or_else(|| wrong("model", "is missing"))?;
    let tokens_max = get("max_completion_tokens").or_else(|| get("max_tokens"));
    let mut turns = AnthropicMessageBuilder::new(thoughts);
    let messages = list(get("messages").unwrap_or(&Value::Null), "messages")?;
    for (at, message) in messages.iter().enumerate() {
        turns.message(message, &format!("messages[{at}]"))?;
    }
    let mut dropped = turns.dropped();
    let is_dropped = |(name, value): &(&String, &Value)| {
        !value.is_null() && !KNOWN.contains(&name.as_str()) && **value != Value::Bool(false)
    };
    let other = chat.iter().filter(is_dropped);
    dropped.extend(other.map(|(name, _)| name.clone()));
    let mut out = Map::new();
    let mut set = |name: &str, value: Value| out.insert(name.to_owned(), value);
    set("model", model.clone());
    set(
        "max_tokens",
        tokens_max.cloned().unwrap_or(TOKENS_MAX.into()),
    );
    if !turns.system.is_empty() {
        set("system", turns.system.join("\n").into());
    }
    set("messages", turns.into_messages());
    for name in ["temperature", "top_p", "top_k", "stream", "thinking"] {
        match get(name) {
            // Chat allows up to 2; Anthropic refuses values above 1.
            Some(value) if name == "temperature" && value.as_f64() > Some(1.0) => {
                dropped.push("temperature above 1".to_owned());
                set(name, 1.into());
            }
            Some(value) => _ = set(name, value.clone()),
            None => {}
        }
    }
    match get("stop") {
        None => {}
        Some(Value::String(stop)) => _ = set("stop_sequences", json!([stop])),
        Some(stops) => _ = set("stop_sequences", stops.clone()),
    }
    out.extend(read_tools(&chat)?);
    let config = read_output_config(&chat, &mut dropped);
    if !config.is_empty() {
        out.insert("output_config".to_owned(), config.into());
    }
    let body = Value::Object(out).to_string().into_bytes();
    Ok(MessagesRequest { body, dropped })
}

/// How much to think, and the format of the answer.
fn read_output_config(chat: &Map<String, Value>, dropped: &mut Vec<String>) -> Map<String, Value> {
    let get = |name: &str| chat.get(name).filter(|value| !value.is_null());
    let mut config = Map::new();
    if let Some(effort) = get("reasoning_effort") {
        // Anthropic's lowest level is `low`.
        let is_below = effort == "none" || effort == "minimal";
        if is_below {
            dropped.push("reasoning_effort below low".to_owned());
        }
        let effort = if is_below {
            "low".into()
        } else {
            effort.clone()
        };
        config.insert("effort".to_owned(), effort);
    }
    if let Some(format) = get("response_format") {
        match read_format(format) {
            Some(format) => _ = config.insert("format".to_owned(), format),
            None if format["type"] == "text" => {}
            None => dropped.push(format!("response_format {}", format["type"])),
        }
    }
    config
}

fn read_format(format: &Value) -> Option<Value> {
    let schema = format.get("json_schema")?.get("schema").cloned();
    Some(json!({ "type": "json_schema", "schema": schema.unwrap_or_default() }))
}

/// The tools and `tool_choice`, which Anthropic refuses without tools.
fn read_tools(chat: &Map<String, Value>) -> Result<Map<String, Value>, TranslateError> {
    let get = |name: &str| chat.get(name).filter(|value| !value.is_null());
    let mut out = Map::new();
    let Some(tools) = get("tools") else {
        return Ok(out);
    };
    let tools = list(tools, "tools")?.iter().enumerate();
    let tools: Result<Vec<Value>, _> = tools
        .map(|(at, tool)| read_tool(tool, &format!("tools[{at}]")))
        .collect();
    let tools = tools?;
    if !tools.is_empty() {
        out.insert("tools".to_owned(), tools.into());
        let is_single = get("parallel_tool_calls") == Some(&Value::Bool(false));
        if let Some(choice) = read_choice(get("tool_choice"), is_single)? {
            out.insert("tool_choice".to_owned(), choice);
        }
    }
    Ok(out)
}

fn read_tool(tool: &Value, place: &str) -> Result<Value, TranslateError> {
    let kind = string(tool, "type", place)?;
    if kind != "function" {
        return Err(unsupported(format!("a tool of type `{kind}`")));
    }
    let place = format!("{place}.function");
    let function = tool.get("function").unwrap_or(&Value::Null);
    let mut out = Map::new();
    let name = string(function, "name", &place)?;
    out.insert("name".to_owned(), name.into());
    if let Some(description) = function.get("description").and_then(Value::as_str) {
        out.insert("description".to_owned(), description.into());
    }
    let parameters = function.get("parameters").filter(|value| value.is_object());
    let none = || json!({ "type": "object", "properties": {} });
    let schema = parameters.cloned().unwrap_or_else(none);
    out.insert("input_schema".to_owned(), schema);
    Ok(Value::Object(out))
}

fn read_choice(choice: Option<&Value>, is_single: bool) -> Result<Option<Value>, TranslateError> {
    let mut out = match choice {
        None if !is_single => return Ok(None),
        None => json!({ "type": "auto" }),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => json!({ "type": "auto" }),
            "required" => json!({ "type": "any" }),
            "none" => return Ok(Some(json!({ "type": "none" }))),
            _ => return Err(wrong("tool_choice", "is no choice we know")),
        },
        Some(choice) => {
            let function = choice.get("function").unwrap_or(&Value::Null);
            let name = string(function, "name", "tool_choice.function")?;
            json!({ "type": "tool", "name": name })
        }
    };
    if is_single {
        out["disable_parallel_tool_use"] = true.into();
    }
    Ok(Some(out))
}

/// Builds Anthropic messages. They alternate between user and assistant, so consecutive ones of a role are merged.
#[derive(Debug)]
struct AnthropicMessageBuilder<'a> {
    system: Vec<String>,
    turns: Vec<(&'static str, Vec<Value>)>,
    thoughts: &'a Thoughts,
    has_lost_thoughts: bool,
}

impl<'a> AnthropicMessageBuilder<'a> {
    fn new(thoughts: &'a Thoughts) -> Self {
        AnthropicMessageBuilder {
            system: Vec::new(),
            turns: Vec::new(),
            thoughts,
            has_lost_thoughts: false,
        }
    }

    fn dropped(&self) -> Vec<String> {
        let lost = "thoughts of earlier turns that led to no call".to_owned();
        self.has_lost_thoughts.then_some(lost).into_iter().collect()
    }

    /// Marks the end of the conversation for Anthropic's prompt cache: the next request begins with the same prompt,
    /// and repeated prompts are most of an agent's cost.
    fn into_messages(mut self) -> Value {
        let last = self
            .turns
            .last_mut()
            .and_then(|(_, content)| content.last_mut());
        if let Some(block) = last
            && block["type"] != "thinking"
            && block["type"] != "redacted_thinking"
        {
            block["cache_control"] = json!({ "type": "ephemeral" });
        }
        let turns = self.turns.into_iter();
        turns
            .map(|(role, content)| json!({ "role": role, "content": content }))
            .collect()
    }

    fn message(&mut self, message: &Value, place: &str) -> Result<(), TranslateError> {
        let role = string(message, "role", place)?;
        let place = format!("{place}.content");
        let content = message.get("content").unwrap_or(&Value::Null);
        let mut blocks = read_content(content, &place)?;
        match role {
            "system" | "developer" => {
                let texts = blocks.iter().filter_map(|block| block["text"].as_str());
                let text = texts.collect::<Vec<_>>().join("\n");
                if self.turns.is_empty() {
                    self.system.push(text);
                } else {
                    // Not all models accept the role in the middle; for those, Claude Code uses this format too.
                    let text = format!("<system-reminder>\n{text}\n</system-reminder>");
                    self.add("user", vec![json!({ "type": "text", "text": text })]);
                }
            }
            "user" => self.add("user", blocks),
            "assistant" => {
                self.add_calls(message, &mut blocks)?;
                self.add("assistant", blocks);
            }
            "tool" => {
                let id = string(message, "tool_call_id", &place)?;
                let mut result = json!({ "type": "tool_result", "tool_use_id": clean_id(id) });
                if !blocks.is_empty() {
                    result["content"] = blocks.into();
                }
                self.add_result(result);
            }
            _ => return Err(wrong(place, "has a role we do not know")),
        }
        Ok(())
    }

    /// Adds tool calls, each with its stored thinking blocks: Anthropic accepts thoughts only with its own signature.
    /// Those of the first call precede all other blocks, as in the original answer.
    fn add_calls(
        &mut self,
        message: &Value,
        blocks: &mut Vec<Value>,
    ) -> Result<(), TranslateError> {
        let calls = message.get("tool_calls").and_then(Value::as_array);
        let mut has_thoughts = false;
        for (at, call) in calls.into_iter().flatten().enumerate() {
            let call = read_call(call)?;
            let thoughts = self
                .thoughts
                .before(call["id"].as_str().unwrap_or_default());
            let thoughts = thoughts.unwrap_or_default();
            has_thoughts |= !thoughts.is_empty();
            let place = if at == 0 { 0 } else { blocks.len() };
            blocks.splice(place..place, thoughts);
            blocks.push(call);
        }
        let said = ["reasoning_content", "reasoning"].map(|name| message.get(name));
        let has_said = said
            .iter()
            .flatten()
            .any(|text| **text != *"" && !text.is_null());
        self.has_lost_thoughts |= has_said && !has_thoughts;
        Ok(())
    }

    /// Anthropic requires results at the start of the message that follows their calls.
    fn add_result(&mut self, result: Value) {
        match self.turns.last_mut() {
            Some(("user", content)) => {
                let is_result = |block: &&Value| block["type"] == "tool_result";
                let at = content.iter().take_while(is_result).count();
                content.insert(at, result);
            }
            _ => self.add("user", vec![result]),
        }
    }

    fn add(&mut self, role: &'static str, blocks: Vec<Value>) {
        match self.turns.last_mut() {
            Some((last, content)) if *last == role => content.extend(blocks),
            // Anthropic refuses messages without content.
            _ if blocks.is_empty() => {}
            _ => self.turns.push((role, blocks)),
        }
    }
}

fn read_call(call: &Value) -> Result<Value, TranslateError> {
    let place = "tool_calls";
    let function = call.get("function").unwrap_or(&Value::Null);
    let arguments = function.get("arguments");
    let input = match arguments {
        Some(Value::Object(_)) => arguments.cloned().unwrap_or_default(),
        _ => input_of(arguments.and_then(Value::as_str).unwrap_or_default()),
    };
    Ok(json!({
        "type": "tool_use",
        "id": clean_id(string(call, "id", place)?),
        "name": string(function, "name", place)?,
        "input": input,
    }))
}

/// The blocks of a message content, without texts of only white space, which Anthropic refuses.
fn read_content(content: &Value, place: &str) -> Result<Vec<Value>, TranslateError> {
    let text_block = |text: &str| {
        let is_empty = text.trim().is_empty();
        (!is_empty).then(|| json!({ "type": "text", "text": text }))
    };
    let mut blocks = Vec::new();
    match content {
        Value::Null => {}
        Value::String(text) => blocks.extend(text_block(text)),
        Value::Array(parts) => {
            for (at, part) in parts.iter().enumerate() {
                let place = format!("{place}[{at}]");
                match string(part, "type", &place)? {
                    "text" => blocks.extend(text_block(string(part, "text", &place)?)),
                    "refusal" => blocks.extend(text_block(string(part, "refusal", &place)?)),
                    "image_url" => blocks.push(read_image(part, &place)?),
                    kind => return Err(unsupported(format!("content of type `{kind}`"))),
                }
            }
        }
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            return Err(wrong(place, "is neither a string nor a list of parts"));
        }
    }
    Ok(blocks)
}

fn read_image(part: &Value, place: &str) -> Result<Value, TranslateError> {
    let url = match part.get("image_url") {
        Some(Value::String(url)) => url.as_str(),
        Some(image) => string(image, "url", place)?,
        None => return Err(wrong(place, "has no `image_url`")),
    };
    let source = match url.strip_prefix("data:") {
        None => json!({ "type": "url", "url": url }),
        Some(rest) => {
            let (media_type, data) = rest
                .split_once(";base64,")
                .ok_or_else(|| wrong(place, "has image data that is not base64"))?;
            json!({ "type": "base64", "media_type": media_type, "data": data })
        }
    };
    Ok(json!({ "type": "image", "source": source }))
}
