//! Texts of messages, for people.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// The start of a text on one line.
pub(super) fn line_of(text: &str, chars_max: usize) -> String {
    let mut line = String::new();
    let mut count = 0;
    for word in text.split_whitespace() {
        if count > 0 {
            line.push(' ');
            count += 1;
        }
        for letter in word.chars() {
            if count >= chars_max {
                line.push('…');
                return line;
            }
            line.push(letter);
            count += 1;
        }
    }
    line
}

/// What the model thought, of the members that endpoints tell it in.
pub(super) fn reasoning_of(members: &Map<String, Value>) -> Option<&str> {
    let names = ["reasoning_content", "reasoning"];
    let mut texts = names.iter().filter_map(|name| members.get(*name)?.as_str());
    texts.find(|text| !text.is_empty())
}

/// The text of a message's content, and how many parts of it are none.
pub(super) fn content_of(content: &Value) -> (Cow<'_, str>, usize) {
    match content {
        Value::String(text) => (text.into(), 0),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts
                .iter()
                .filter_map(|part| part.get("text")?.as_str())
                .collect();
            (texts.join("\n").into(), parts.len() - texts.len())
        }
        Value::Null => ("".into(), 0),
        other => (other.to_string().into(), 0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_is_the_start_of_a_text() {
        assert_eq!(line_of(" a\n\tb  c", 9), "a b c");
        assert_eq!(line_of("äöüxyz", 3), "äöü…");
        assert_eq!(line_of("ab cd", 3), "ab …");
        assert_eq!(line_of("  ", 3), "");
    }

    #[test]
    fn what_is_no_text_is_counted() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "image_url"}, {"text": "b"}]);
        assert_eq!(content_of(&parts), ("a\nb".into(), 1));
        assert_eq!(content_of(&Value::Null), ("".into(), 0));
        assert_eq!(content_of(&json!({"a": 1})), ("{\"a\":1}".into(), 0));
    }
}
