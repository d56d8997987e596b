//! Parses Anthropic's content blocks as far as chat messages can represent them.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::{TranslateError, string, unsupported, wrong};

/// One content block.
pub(super) enum Block<'a> {
    Text(Cow<'a, str>),
    /// A URL, possibly a `data:` URL that contains the image.
    Image(String),
    Thinking(&'a str),
    Call(ToolUse),
    Result {
        id: &'a str,
        blocks: Vec<Block<'a>>,
        is_error: bool,
    },
    Dropped(&'a str),
}

/// What contains a block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockParent {
    Message,
    ToolResult,
}

#[derive(Debug)]
pub(super) struct ToolUse {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: String,
}

impl ToolUse {
    pub(super) fn into_value(self) -> Value {
        json!({
            "id": self.id,
            "type": "function",
            "function": { "name": self.name, "arguments": self.arguments },
        })
    }
}

pub(super) fn read_content<'a>(
    content: Option<&'a Value>,
    place: &str,
    parent: BlockParent,
) -> Result<Vec<Block<'a>>, TranslateError> {
    let mut blocks = Vec::new();
    match content {
        None | Some(Value::Null) if parent == BlockParent::ToolResult => {}
        Some(Value::String(text)) => blocks.push(Block::Text(text.into())),
        Some(Value::Array(list)) => {
            for (at, block) in list.iter().enumerate() {
                read_block(block, &format!("{place}[{at}]"), parent, &mut blocks)?;
            }
        }
        _ => return Err(wrong(place, "is neither a string nor a list of blocks")),
    }
    Ok(blocks)
}

fn read_block<'a>(
    block: &'a Value,
    place: &str,
    parent: BlockParent,
    out: &mut Vec<Block<'a>>,
) -> Result<(), TranslateError> {
    match string(block, "type", place)? {
        "text" => out.push(Block::Text(string(block, "text", place)?.into())),
        "image" => out.push(Block::Image(image_url(block, place)?)),
        "thinking" => out.push(Block::Thinking(string(block, "thinking", place)?)),
        // Encrypted; only Anthropic can read it.
        kind @ "redacted_thinking" => out.push(Block::Dropped(kind)),
        "tool_use" => out.push(Block::Call(ToolUse {
            id: string(block, "id", place)?.to_owned(),
            name: string(block, "name", place)?.to_owned(),
            arguments: match block.get("input") {
                None | Some(Value::Null) => "{}".to_owned(),
                Some(input) => input.to_string(),
            },
        })),
        "tool_result" => {
            let content = block.get("content");
            out.push(Block::Result {
                id: string(block, "tool_use_id", place)?,
                blocks: read_content(
                    content,
                    &format!("{place}.content"),
                    BlockParent::ToolResult,
                )?,
                is_error: block.get("is_error") == Some(&Value::Bool(true)),
            });
        }
        "document" => read_document(block, place, parent, out)?,
        // Search results, tool references and unknown types are passed on as JSON, which the model can read.
        _ => out.push(Block::Text(without_cache_mark(block).to_string().into())),
    }
    Ok(())
}

fn image_url(block: &Value, place: &str) -> Result<String, TranslateError> {
    let place = format!("{place}.source");
    let source = block.get("source").unwrap_or(&Value::Null);
    match string(source, "type", &place)? {
        "base64" => {
            let media_type = string(source, "media_type", &place)?;
            let data = string(source, "data", &place)?;
            Ok(format!("data:{media_type};base64,{data}"))
        }
        "url" => Ok(string(source, "url", &place)?.to_owned()),
        kind => Err(unsupported(format!("an image by `{kind}`"))),
    }
}

/// The text of a document. A document in another format is an error in a message, but a note to the model in a tool
/// result: every later request would repeat it, so an error would end the rollout.
fn read_document<'a>(
    block: &'a Value,
    place: &str,
    parent: BlockParent,
    out: &mut Vec<Block<'a>>,
) -> Result<(), TranslateError> {
    for name in ["title", "context"] {
        let text = block.get(name).and_then(Value::as_str);
        out.extend(text.map(|text| Block::Text(text.into())));
    }
    let place = format!("{place}.source");
    let source = block.get("source").unwrap_or(&Value::Null);
    match string(source, "type", &place)? {
        "text" => out.push(Block::Text(string(source, "data", &place)?.into())),
        "content" => {
            let content = source.get("content");
            out.extend(read_content(content, &format!("{place}.content"), parent)?);
        }
        kind => {
            let kind = source
                .get("media_type")
                .and_then(Value::as_str)
                .unwrap_or(kind);
            let what = format!("a document of type `{kind}`");
            if parent == BlockParent::Message {
                return Err(unsupported(what));
            }
            out.push(Block::Text(format!("[{what} cannot be shown]").into()));
        }
    }
    Ok(())
}

fn without_cache_mark(block: &Value) -> Value {
    let mut block = block.clone();
    if let Some(members) = block.as_object_mut() {
        members.shift_remove("cache_control");
    }
    block
}
