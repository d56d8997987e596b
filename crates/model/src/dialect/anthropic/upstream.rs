//! A chat request as a Messages request, for an upstream that is Anthropic's.
//!
//! Anthropic refuses members it does not know, so only those it has a word for are passed on; wishes about token ids,
//! logprobs, seeds and penalties have none.

use serde_json::{Map, Value, json};

use super::{TranslateError, input_of, list, object, string, unsupported, wrong};

/// Anthropic requires a limit; this is one that every current model takes.
const TOKENS_MAX: u64 = 8192;

/// Translates a request.
pub fn from_chat_request(chat: &[u8]) -> Result<Vec<u8>, TranslateError> {
    let chat = object(chat)?;
    let get = |name: &str| chat.get(name).filter(|value| !value.is_null());
    for name in ["functions", "function_call"] {
        if get(name).is_some() {
            return Err(unsupported(format!("the old member `{name}`")));
        }
    }
    let model = get("model").ok_or_else(|| wrong("model", "is missing"))?;
    let tokens_max = get("max_completion_tokens").or_else(|| get("max_tokens"));
    let mut turns = Turns::default();
    let messages = list(get("messages").unwrap_or(&Value::Null), "messages")?;
    for (at, message) in messages.iter().enumerate() {
        turns.message(message, &format!("messages[{at}]"))?;
    }
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
        if let Some(value) = get(name) {
            set(name, value.clone());
        }
    }
    match get("stop") {
        None => {}
        Some(Value::String(stop)) => _ = set("stop_sequences", json!([stop])),
        Some(stops) => _ = set("stop_sequences", stops.clone()),
    }
    if let Some(tools) = get("tools") {
        let tools = list(tools, "tools")?.iter().enumerate();
        let tools: Result<Vec<Value>, _> = tools
            .map(|(at, tool)| read_tool(tool, &format!("tools[{at}]")))
            .collect();
        let tools = tools?;
        if !tools.is_empty() {
            set("tools", tools.into());
            let is_single = get("parallel_tool_calls") == Some(&Value::Bool(false));
            if let Some(choice) = read_choice(get("tool_choice"), is_single)? {
                set("tool_choice", choice);
            }
        }
    }
    if let Some(schema) = get("response_format").and_then(|format| format.get("json_schema")) {
        let schema = schema.get("schema").cloned().unwrap_or_default();
        let format = json!({ "type": "json_schema", "schema": schema });
        set("output_config", json!({ "format": format }));
    }
    Ok(Value::Object(out).to_string().into_bytes())
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

/// Messages in the making. Anthropic's alternate, so what one side says in a row is one message.
#[derive(Debug, Default)]
struct Turns {
    system: Vec<String>,
    turns: Vec<(&'static str, Vec<Value>)>,
}

impl Turns {
    fn into_messages(self) -> Value {
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
                    // Not all models take the role here; Claude Code itself says it this way to those.
                    let text = format!("<system-reminder>\n{text}\n</system-reminder>");
                    self.add("user", vec![json!({ "type": "text", "text": text })]);
                }
            }
            "user" => self.add("user", blocks),
            "assistant" => {
                // Thoughts are left out: Anthropic takes them only with its own signature.
                let calls = message.get("tool_calls").and_then(Value::as_array);
                for call in calls.into_iter().flatten() {
                    blocks.push(read_call(call)?);
                }
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

    /// Anthropic wants results before all else in the message behind their calls.
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

/// Other models' servers make ids with signs that Anthropic refuses, such as `functions.bash:0`.
fn clean_id(id: &str) -> String {
    let is_fine = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '_' | '-');
    let clean = |sign: char| if is_fine(sign) { sign } else { '_' };
    id.chars().map(clean).collect()
}

/// The blocks of a content. Anthropic refuses texts that are only white space, so they are left out.
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
