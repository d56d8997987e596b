//! Translates the tools and settings of a request.

use serde_json::{Map, Value, json};

use super::super::TranslateError;
use super::schema::to_json_schema;
use super::{inside, member, text, unsupported, wrong};

/// Google's hosted tools cannot run here; they are dropped without failing the request.
pub(super) fn tools(
    request: &Map<String, Value>,
    chat: &mut Map<String, Value>,
    dropped: &mut Vec<String>,
) -> Result<(), TranslateError> {
    let mut offered = Vec::new();
    let list = member(request, "tools").and_then(Value::as_array);
    for tool in list.into_iter().flatten() {
        for name in tool.as_object().into_iter().flat_map(Map::keys) {
            if !matches!(
                name.as_str(),
                "functionDeclarations" | "function_declarations"
            ) {
                dropped.push(format!("tool {name}"));
            }
        }
        let declarations = inside(tool, "functionDeclarations").and_then(Value::as_array);
        for declaration in declarations.into_iter().flatten() {
            offered.push(function(declaration)?);
        }
    }
    // Endpoints refuse a `tool_choice` without tools.
    if !offered.is_empty() {
        if let Some(choice) = choice(request, dropped) {
            chat.insert("tool_choice".to_owned(), choice);
        }
        chat.insert("tools".to_owned(), offered.into());
    }
    Ok(())
}

fn function(declaration: &Value) -> Result<Value, TranslateError> {
    let place = "tools.functionDeclarations.name";
    let name = text(declaration, "name").ok_or_else(|| wrong(place, "is missing"))?;
    let schema = inside(declaration, "parametersJsonSchema").cloned();
    let schema = schema.or_else(|| inside(declaration, "parameters").map(to_json_schema));
    let function = json!({
        "name": name,
        "description": text(declaration, "description").unwrap_or_default(),
        "parameters": schema.unwrap_or_else(|| json!({"type": "object", "properties": {}})),
    });
    Ok(json!({"type": "function", "function": function}))
}

fn choice(request: &Map<String, Value>, dropped: &mut Vec<String>) -> Option<Value> {
    let config = inside(member(request, "toolConfig")?, "functionCallingConfig")?;
    let allowed = inside(config, "allowedFunctionNames").and_then(Value::as_array);
    match (text(config, "mode")?, allowed.map(Vec::as_slice)) {
        ("ANY", Some([name])) => Some(json!({"type": "function", "function": {"name": name}})),
        ("ANY", allowed) => {
            if allowed.is_some_and(|allowed| !allowed.is_empty()) {
                dropped.push("allowedFunctionNames".to_owned());
            }
            Some("required".into())
        }
        ("NONE", _) => Some("none".into()),
        _ => Some("auto".into()),
    }
}

pub(super) fn generation(
    request: &Map<String, Value>,
    chat: &mut Map<String, Value>,
    dropped: &mut Vec<String>,
) -> Result<(), TranslateError> {
    let Some(config) = member(request, "generationConfig").and_then(Value::as_object) else {
        return Ok(());
    };
    let candidates = member(config, "candidateCount").and_then(Value::as_u64);
    if candidates.is_some_and(|n| n > 1) {
        return Err(unsupported("more than one candidate"));
    }
    for (name, chat_name) in [
        ("temperature", "temperature"),
        ("topP", "top_p"),
        ("maxOutputTokens", "max_tokens"),
        ("stopSequences", "stop"),
        ("seed", "seed"),
        ("presencePenalty", "presence_penalty"),
        ("frequencyPenalty", "frequency_penalty"),
    ] {
        // Endpoints refuse an empty list of stop sequences.
        let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
        if let Some(value) = member(config, name).filter(|value| !is_empty(value)) {
            chat.insert(chat_name.to_owned(), value.clone());
        }
    }
    // `top_k` is not standard in chat: vLLM and SGLang accept it, hosted endpoints refuse the request.
    if member(config, "topK").is_some() {
        dropped.push("topK".to_owned());
    }
    if let Some(format) = response_format(config) {
        chat.insert("response_format".to_owned(), format);
    }
    if let Some(thinking) = member(config, "thinkingConfig") {
        if let Some(level) = text(thinking, "thinkingLevel") {
            let effort = level.to_ascii_lowercase();
            chat.insert("reasoning_effort".to_owned(), effort.into());
        }
        if inside(thinking, "thinkingBudget").is_some() {
            dropped.push("thinkingBudget".to_owned());
        }
    }
    Ok(())
}

fn response_format(config: &Map<String, Value>) -> Option<Value> {
    let kind = member(config, "responseMimeType")?.as_str()?;
    if kind != "application/json" {
        return None;
    }
    let schema = member(config, "responseJsonSchema").cloned();
    let schema = schema.or_else(|| member(config, "responseSchema").map(to_json_schema));
    Some(match schema {
        Some(schema) => {
            json!({"type": "json_schema", "json_schema": {"name": "response", "schema": schema}})
        }
        None => json!({"type": "json_object"}),
    })
}
