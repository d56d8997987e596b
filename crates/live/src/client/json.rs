//! JSON of a server that its own agent may have replaced. A value in memory is many times as large as its text: one byte can
//! become a hundred, so an answer of the permitted length could still take gigabytes.

use serde_json::Value;

/// A transcript with ten thousand parts has fewer.
const VALUES_MAX: usize = 500_000;

/// `None` for what is no JSON, or holds too many values.
pub(super) fn parse(text: &[u8]) -> Option<Value> {
    if values_in(text) > VALUES_MAX {
        return None;
    }
    serde_json::from_slice(text).ok()
}

/// About as many as there are beginnings of objects and lists and separators outside of strings.
fn values_in(text: &[u8]) -> usize {
    let (mut is_string, mut is_escaped, mut count) = (false, false, 0);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            b'{' | b'[' | b',' if !is_string => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_and_their_texts_are_not() {
        let counted = |text: &str| values_in(text.as_bytes());
        assert_eq!(counted(r#"{"a": [1, 2, {}], "b,[": "\\\",{"}"#), 6);
        assert_eq!(counted(r#"["\\", 1]"#), 2);
    }

    #[test]
    fn an_answer_of_very_many_values_is_refused() {
        let many = format!("[{}0]", "0,".repeat(VALUES_MAX));
        assert_eq!(parse(many.as_bytes()), None);
        let long = format!("[\"{}\"]", ",".repeat(VALUES_MAX * 2));
        assert!(parse(long.as_bytes()).is_some());
    }
}
