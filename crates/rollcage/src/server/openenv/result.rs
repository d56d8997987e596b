//! The result of a tool call in the formats of the different clients.

use serde_json::{Map, Value, json};

/// A longer string is sent twice instead of three times: clients refuse messages over 100 MiB.
const THREE_COPIES_BYTES_MAX: usize = 1 << 20;

/// Which clients read a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultFormat {
    /// OpenEnv clients, in the observation of a step.
    Step,
    /// OpenEnv and MCP clients at once: the answer to `tools/call`.
    Both,
    /// MCP clients only, for a client that identifies itself as one.
    Mcp,
}

/// The result object around a value.
pub(crate) fn render(value: Value, format: ResultFormat) -> Value {
    let content: Vec<Value> = text_of(&value)
        .map(|text| match format {
            ResultFormat::Step => {
                json!({"type": "text", "text": text, "annotations": null, "meta": null})
            }
            // Strict MCP clients refuse null for optional members.
            ResultFormat::Both | ResultFormat::Mcp => json!({"type": "text", "text": text}),
        })
        .into_iter()
        .collect();
    let is_wrapped = !value.is_object();
    let is_large = value
        .as_str()
        .is_some_and(|text| text.len() > THREE_COPIES_BYTES_MAX);
    let structured = |value: &Value| match is_wrapped {
        true => json!({"result": value}),
        false => value.clone(),
    };
    let meta = match is_wrapped {
        true => json!({"fastmcp": {"wrap_result": true}}),
        false => Value::Null,
    };
    let mut result = Map::new();
    result.insert("content".to_owned(), content.into());
    if matches!(format, ResultFormat::Both | ResultFormat::Mcp) {
        if format == ResultFormat::Mcp || !is_large {
            result.insert("structuredContent".to_owned(), structured(&value));
        }
        result.insert("isError".to_owned(), false.into());
        if is_wrapped {
            result.insert("_meta".to_owned(), meta.clone());
        }
    }
    if matches!(format, ResultFormat::Both | ResultFormat::Step) {
        let structured = match is_large {
            true => Value::Null,
            false => structured(&value),
        };
        result.insert("structured_content".to_owned(), structured);
        result.insert("meta".to_owned(), meta);
        result.insert("data".to_owned(), value);
        result.insert("is_error".to_owned(), false.into());
    }
    Value::Object(result)
}

/// A failure as a result, for MCP clients, whose model reads it.
pub(crate) fn failure(message: &str) -> Value {
    json!({"content": [{"type": "text", "text": message}], "isError": true})
}

/// A string unchanged, `None` for null, anything else as compact JSON.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            Some(value.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_carries_the_originals_object() {
        assert_eq!(
            render(json!("hi"), ResultFormat::Step),
            json!({
                "content": [{"type": "text", "text": "hi", "annotations": null, "meta": null}],
                "structured_content": {"result": "hi"},
                "meta": {"fastmcp": {"wrap_result": true}},
                "data": "hi",
                "is_error": false,
            })
        );
        let object = render(json!({"a": [1]}), ResultFormat::Step);
        assert_eq!(object["structured_content"], json!({"a": [1]}));
        assert_eq!(object["content"][0]["text"], r#"{"a":[1]}"#);
        assert_eq!(object["meta"], Value::Null);
        let nothing = render(Value::Null, ResultFormat::Step);
        assert_eq!(nothing["content"], json!([]));
        assert_eq!(nothing["structured_content"], json!({"result": null}));
    }

    #[test]
    fn a_large_string_travels_twice() {
        let text = "x".repeat(THREE_COPIES_BYTES_MAX + 1);
        for format in [ResultFormat::Step, ResultFormat::Both, ResultFormat::Mcp] {
            let bytes = render(json!(text), format).to_string().len();
            assert!(bytes < 2 * text.len() + 400, "{format:?}: {bytes}");
        }
    }

    #[test]
    fn an_mcp_client_meets_no_null_members() {
        let result = render(json!("hi"), ResultFormat::Mcp);
        assert_eq!(
            result,
            json!({
                "content": [{"type": "text", "text": "hi"}],
                "structuredContent": {"result": "hi"},
                "isError": false,
                "_meta": {"fastmcp": {"wrap_result": true}},
            })
        );
    }
}
