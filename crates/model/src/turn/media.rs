//! Images, sound and files in prompts: the ids do not say what they show.

use serde_json::Value;

use crate::exchange::Exchange;

/// Parts of a content that are not text, in all dialects.
const KINDS: [&str; 14] = [
    "image_url",
    "image",
    "input_image",
    "image_embeds",
    "image_pil",
    "input_audio",
    "audio_url",
    "audio",
    "audio_embeds",
    "video_url",
    "video",
    "input_video",
    "file",
    "input_file",
];

/// What kind of thing a chat message shows beside its text.
pub(super) fn kind_of(message: &Value) -> Option<&'static str> {
    let parts = message["content"].as_array()?;
    parts.iter().find_map(|part| {
        let kind = part["type"].as_str()?;
        KINDS.into_iter().find(|known| *known == kind)
    })
}

/// How many images of an agent's request did not get into its translation.
pub(super) fn not_sent(exchange: &Exchange) -> usize {
    let Some(sent) = &exchange.sent else {
        return 0;
    };
    let own = &exchange.request.body;
    // Most requests have none, and need no reading for it.
    let may_have = |mark: &str| memchr::memmem::find(own, mark.as_bytes()).is_some();
    if !["image", "inlineData", "inline_data"]
        .into_iter()
        .any(may_have)
    {
        return 0;
    }
    images_in(own).saturating_sub(images_in(sent))
}

/// Counted in what is said, not in tools or settings.
fn images_in(body: &[u8]) -> usize {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let said = ["messages", "system", "input", "contents"];
    said.iter().map(|name| count(&body[*name])).sum()
}

fn count(value: &Value) -> usize {
    match value {
        Value::Array(values) => values.iter().map(count).sum(),
        Value::Object(members) => {
            let kind = members.get("type").and_then(Value::as_str);
            let is_image = matches!(kind, Some("image" | "image_url" | "input_image"));
            let data = ["inlineData", "inline_data", "fileData", "file_data"];
            let data = data.iter().find_map(|name| members.get(*name));
            let media = data.and_then(|data| data.get("mimeType").or(data.get("mime_type")));
            let is_image = is_image
                || media
                    .and_then(Value::as_str)
                    .is_some_and(|media| media.starts_with("image/"));
            match is_image {
                true => 1,
                false => members.values().map(count).sum(),
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::exchange::Request;
    use rollcage_dialect::Dialect;

    fn lost(dialect: Dialect, own: &Value, sent: &Value) -> usize {
        not_sent(&Exchange {
            request: Request {
                dialect,
                body: own.to_string().into(),
                ..Request::default()
            },
            sent: Some(sent.to_string().into()),
            response: None,
        })
    }

    #[test]
    fn an_image_that_is_lost_in_translation_is_counted() {
        let shown = json!({"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
        ]}]});
        let said = json!({"messages": [{"role": "user", "content": "see"}]});
        let gemini = json!({"contents": [{"parts": [
            {"inlineData": {"mimeType": "image/png", "data": "AA"}}, {"text": "see"},
        ]}]});
        assert_eq!(lost(Dialect::Gemini, &gemini, &shown), 0);
        assert_eq!(lost(Dialect::Gemini, &gemini, &said), 1);
        let result = json!({"type": "tool_result", "content": [{"type": "image", "source": {"type": "base64"}}]});
        let anthropic = json!({"messages": [{"role": "user", "content": [result]}]});
        assert_eq!(lost(Dialect::Anthropic, &anthropic, &said), 1);
        let tools = json!({"tools": [{"name": "view_image", "type": "image"}], "messages": []});
        assert_eq!(lost(Dialect::Anthropic, &tools, &said), 0);
    }

    #[test]
    fn what_is_shown_beside_text_is_seen() {
        let message = |kind: &str| json!({"role": "user", "content": [{"type": kind}]});
        assert_eq!(kind_of(&message("text")), None);
        assert_eq!(kind_of(&message("image_url")), Some("image_url"));
        assert_eq!(kind_of(&message("input_audio")), Some("input_audio"));
        assert_eq!(kind_of(&json!({"content": "image_url"})), None);
    }
}
