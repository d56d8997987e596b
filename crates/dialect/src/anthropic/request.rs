//! Translates an agent's Messages request to chat.

use serde_json::{Map, Value, json};

use super::answer::MessagesRenderer;
use super::content::read_messages;
use super::{TranslateError, list, object, string, unsupported, wrong};

/// A request translated to chat, and the renderer for its answer.
#[derive(Debug)]
pub struct Translation {
    /// The chat completions body.
    pub chat: Vec<u8>,
    pub is_stream: bool,
    /// The agent disabled thinking. A flag, because how to request that depends on the endpoint: hosted services refuse
    /// `chat_template_kwargs`.
    pub is_thinking_disabled: bool,
    /// What chat cannot express, for logs.
    pub dropped: Vec<String>,
    pub answer: MessagesRenderer,
}

/// Members that only Anthropic's own service understands.
const DROPPED: [&str; 12] = [
    "anthropic_beta",
    "anthropic_version",
    "betas",
    "cache_control",
    "container",
    "context_management",
    "diagnostics",
    "inference_geo",
    "metadata",
    "service_tier",
    "speed",
    "user_profile_id",
];

/// Translates a request. Unknown members are kept: agents can be configured to request token ids with them.
pub fn to_chat(body: &[u8]) -> Result<Translation, TranslateError> {
    let request = object(body)?;
    let model = request.get("model").and_then(Value::as_str);
    let model = model.ok_or_else(|| wrong("model", "is no string"))?;
    let read = read_messages(request.get("system"), request.get("messages"))?;
    let mut dropped = read.dropped.clone();
    let mut messages = Some(read.into_values());
    let mut is_thinking_disabled = false;
    let is_stream = match request.get("stream") {
        None | Some(Value::Null) => false,
        Some(value) => value
            .as_bool()
            .ok_or_else(|| wrong("stream", "is no bool"))?,
    };
    let mut chat = Map::new();
    for (name, value) in request.iter().filter(|(_, value)| !value.is_null()) {
        match name.as_str() {
            "system" => {}
            "messages" => {
                chat.insert("messages".to_owned(), messages.take().into());
            }
            "tools" => {
                let tools = read_tools(value)?;
                if !tools.is_empty() {
                    chat.insert("tools".to_owned(), tools.into());
                }
            }
            "tool_choice" => read_tool_choice(value, &mut chat)?,
            "stop_sequences" => {
                if !list(value, "stop_sequences")?.is_empty() {
                    chat.insert("stop".to_owned(), value.clone());
                }
            }
            "stream" => {
                chat.insert("stream".to_owned(), value.clone());
                if is_stream {
                    let options = json!({ "include_usage": true });
                    chat.insert("stream_options".to_owned(), options);
                }
            }
            "thinking" => {
                is_thinking_disabled = string(value, "type", "thinking")? == "disabled";
                dropped.push("thinking".to_owned());
            }
            "output_config" => {
                chat.extend(read_format(value)?);
                if let Some(effort) = value.get("effort").filter(|effort| effort.is_string()) {
                    chat.insert("reasoning_effort".to_owned(), effort.clone());
                }
                let other = value.as_object().into_iter().flat_map(Map::keys);
                let other = other.filter(|name| !["format", "effort"].contains(&name.as_str()));
                dropped.extend(other.map(|name| format!("output_config.{name}")));
            }
            "mcp_servers" if value.as_array().is_some_and(|list| !list.is_empty()) => {
                return Err(unsupported("an MCP server of the endpoint (`mcp_servers`)"));
            }
            "mcp_servers" => {}
            name if DROPPED.contains(&name) => dropped.push(name.to_owned()),
            _ => {
                chat.insert(name.clone(), value.clone());
            }
        }
    }
    Ok(Translation {
        chat: Value::Object(chat).to_string().into_bytes(),
        is_stream,
        is_thinking_disabled,
        dropped,
        answer: MessagesRenderer::new(model),
    })
}

/// The messages and tools of a request in chat's format, for the trace. Unlike `to_chat` it accepts tools that only
/// Anthropic runs, since it also reads requests that were sent to Anthropic; empty if the request cannot be parsed.
pub fn messages_of(body: &[u8]) -> (Vec<Value>, Option<Value>) {
    let Ok(request) = object(body) else {
        return (Vec::new(), None);
    };
    let read = read_messages(request.get("system"), request.get("messages"));
    let messages = read.map(|read| read.into_values()).unwrap_or_default();
    let tools = request.get("tools").and_then(Value::as_array);
    let tools = tools.filter(|tools| !tools.is_empty()).map(|tools| {
        let read = |tool: &Value| read_tool(tool, "tools").unwrap_or_else(|_| tool.clone());
        tools.iter().map(read).collect()
    });
    (messages, tools)
}

fn read_tools(tools: &Value) -> Result<Vec<Value>, TranslateError> {
    let tools = list(tools, "tools")?.iter().enumerate();
    tools
        .map(|(at, tool)| read_tool(tool, &format!("tools[{at}]")))
        .collect()
}

fn read_tool(tool: &Value, place: &str) -> Result<Value, TranslateError> {
    let name = string(tool, "name", place)?;
    match tool.get("type").and_then(Value::as_str) {
        None | Some("custom") => {}
        Some(kind) => return Err(unsupported(format!("the server tool `{kind}`"))),
    }
    let mut function = Map::new();
    function.insert("name".to_owned(), name.into());
    let mut copy = |from: &str, to: &str| {
        if let Some(value) = tool.get(from).filter(|value| !value.is_null()) {
            function.insert(to.to_owned(), value.clone());
        }
    };
    copy("description", "description");
    copy("input_schema", "parameters");
    copy("strict", "strict");
    Ok(json!({ "type": "function", "function": function }))
}

fn read_tool_choice(choice: &Value, chat: &mut Map<String, Value>) -> Result<(), TranslateError> {
    let value = match string(choice, "type", "tool_choice")? {
        "auto" => "auto".into(),
        "any" => "required".into(),
        "none" => "none".into(),
        "tool" => {
            let name = string(choice, "name", "tool_choice")?;
            json!({ "type": "function", "function": { "name": name } })
        }
        _ => return Err(wrong("tool_choice.type", "is no choice we know")),
    };
    chat.insert("tool_choice".to_owned(), value);
    if choice.get("disable_parallel_tool_use") == Some(&Value::Bool(true)) {
        chat.insert("parallel_tool_calls".to_owned(), false.into());
    }
    Ok(())
}

/// The requested output format as chat's `response_format`.
fn read_format(config: &Value) -> Result<Option<(String, Value)>, TranslateError> {
    let Some(format) = config.get("format").filter(|format| !format.is_null()) else {
        return Ok(None);
    };
    let place = "output_config.format";
    if string(format, "type", place)? != "json_schema" {
        return Err(wrong(format!("{place}.type"), "is no format we know"));
    }
    let schema = format.get("schema").cloned().unwrap_or_default();
    let schema = json!({ "name": "answer", "schema": schema, "strict": true });
    let format = json!({ "type": "json_schema", "json_schema": schema });
    Ok(Some(("response_format".to_owned(), format)))
}
