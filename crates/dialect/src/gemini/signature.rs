//! Encodes the model's thoughts in the signature of a function call.
//!
//! Gemini CLI drops thoughts from its history but returns signatures unchanged. With the thoughts before a call in its
//! signature, the next prompt begins with exactly the previous prompt and what the model wrote.

/// Identifies our own signatures, since the CLI also creates some.
const MARK: &str = "rollcage";

/// A byte that never occurs in UTF-8.
const PADDING: &str = "ff";

/// Hexadecimal, padded to a multiple of four characters: that is also valid base64, which some SDKs decode and
/// re-encode.
pub(super) fn write(thoughts: &str) -> String {
    let mut out = format!(
        "{MARK}{}",
        base16ct::lower::encode_string(thoughts.as_bytes())
    );
    if !thoughts.len().is_multiple_of(2) {
        out.push_str(PADDING);
    }
    out
}

/// `None` for a signature that is not ours.
pub(super) fn read(signature: &str) -> Option<String> {
    let digits = signature.strip_prefix(MARK)?;
    let mut bytes = base16ct::mixed::decode_vec(digits).ok()?;
    if digits.ends_with(PADDING) {
        bytes.pop();
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_survive_a_round_trip_through_the_signature() {
        for thoughts in ["", "a", "ab", "\0", "a\0", "h\u{e9}\n\u{1f600}"] {
            let signature = write(thoughts);
            assert!(signature.len().is_multiple_of(4), "{signature}");
            assert_eq!(read(&signature).as_deref(), Some(thoughts));
        }
        assert_eq!(read("skip_thought_signature_validator"), None);
        assert_eq!(read("rollcagezz"), None);
        assert_eq!(read("rollcage+1"), None);
        assert_eq!(read("rollcage616"), None);
    }
}
