//! Whether JSON can be read by whoever gets it.

use memchr::memmem;
use serde::de::IgnoredAny;
use serde_json::Value;

pub(crate) const NO_JSON: &str = "it is not valid JSON";

/// Whether every agent's parser reads this as JSON. Half a surrogate pair is valid to parsers that skip the string or
/// keep UTF-16; the others refuse it.
pub(crate) fn is_json(text: &str) -> bool {
    let mut escapes = memmem::find_iter(text.as_bytes(), b"\\u");
    let may_be_half = escapes.any(|at| matches!(text.as_bytes().get(at + 2), Some(b'd' | b'D')));
    match may_be_half {
        true => serde_json::from_str::<Value>(text).is_ok(),
        false => serde_json::from_str::<IgnoredAny>(text).is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_surrogate_pair_is_not_json() {
        for text in [
            r#"{"a":"\ud83d\ude00"}"#,
            r#"{"a":"\\ud800"}"#,
            r#"{"a":"\u00e9"}"#,
            "[1]",
        ] {
            assert!(is_json(text), "{text}");
        }
        for text in [
            r#"{"a":"\ud800"}"#,
            r#"{"a":"\uDE00"}"#,
            r#"{"a":"\ud83dx"}"#,
            r#"{"a":NaN}"#,
            r#"{"a":"#,
            "",
        ] {
            assert!(!is_json(text), "{text}");
        }
    }
}
