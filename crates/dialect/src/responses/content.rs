//! Translates the content parts of messages and tool results to chat parts.

use serde_json::{Value, json};

use super::super::TranslateError;
use super::wrong;

/// A message content as chat parts.
pub(super) fn parts(content: &Value, place: &str) -> Result<Vec<Value>, TranslateError> {
    match content {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => Ok(vec![text_part(text)]),
        Value::Array(parts) => parts.iter().map(|it| part(it, place)).collect(),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            Err(wrong(place, "is neither text nor a list of parts"))
        }
    }
}

fn part(part: &Value, place: &str) -> Result<Value, TranslateError> {
    let kind = part["type"].as_str().unwrap_or_default();
    let member = |name: &str| part.get(name).and_then(Value::as_str);
    match kind {
        "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text" => {
            let text = member("text").ok_or_else(|| wrong(place, "has a part without text"))?;
            Ok(text_part(text))
        }
        "refusal" => Ok(text_part(member("refusal").unwrap_or_default())),
        "input_image" => {
            let url = member("image_url").ok_or_else(|| unsupported("an image by its file id"))?;
            let mut image = json!({"url": url});
            // Chat supports only these; Codex sends others too.
            if let Some(detail @ ("auto" | "low" | "high")) = member("detail") {
                image["detail"] = detail.into();
            }
            Ok(json!({"type": "image_url", "image_url": image}))
        }
        "input_file" => {
            let data = member("file_data").ok_or_else(|| unsupported("a file by its id or URL"))?;
            let name = member("filename").unwrap_or("file");
            Ok(json!({"type": "file", "file": {"filename": name, "file_data": data}}))
        }
        "input_audio" if part.get("input_audio").is_some() => Ok(part.clone()),
        other => Err(unsupported(&format!("a content part of type `{other}`"))),
    }
}

pub(super) fn unsupported(what: &str) -> TranslateError {
    TranslateError::Unsupported {
        what: what.to_owned(),
    }
}

fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// A plain string if there is only one text: some endpoints accept nothing else.
pub(super) fn to_content(mut parts: Vec<Value>) -> Value {
    match parts.as_mut_slice() {
        [] => Value::String(String::new()),
        [part] if part["type"] == "text" => part["text"].take(),
        _ => Value::Array(parts),
    }
}

/// Separates the texts from the other parts.
pub(super) fn split(parts: Vec<Value>) -> (Vec<String>, Vec<Value>) {
    let (texts, others): (Vec<Value>, Vec<Value>) =
        parts.into_iter().partition(|part| part["type"] == "text");
    let texts = texts
        .iter()
        .filter_map(|part| part["text"].as_str().map(str::to_owned));
    (texts.collect(), others)
}
