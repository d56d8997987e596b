//! A value that must not show up in logs, errors or records.

use subtle::ConstantTimeEq;

/// An API key. Prints as `***`; [`Secret::expose`] is called where it goes into a request header and nowhere else.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(value: impl Into<String>) -> Self {
        Secret(value.into())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Replaces every occurrence in a text that came from outside, e.g. an upstream that echoes our header.
    pub fn scrub(&self, text: &str) -> String {
        // A very short value would match inside ordinary words, and cannot be a real secret.
        if self.0.len() < 8 {
            text.to_owned()
        } else {
            text.replace(&self.0, "***")
        }
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("***")
    }
}

/// Compares two keys in constant time.
pub fn is_same_key(left: &[u8], right: &[u8]) -> bool {
    left.ct_eq(right).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print_itself() {
        let secret = Secret::new("sk-very-secret");
        assert_eq!(format!("{secret:?}"), "***");
        assert_eq!(secret.scrub("bad key sk-very-secret."), "bad key ***.");
        assert_eq!(Secret::new("").scrub("text"), "text");
    }

    #[test]
    fn keys_compare_whole() {
        assert!(is_same_key(b"abc", b"abc"));
        assert!(!is_same_key(b"abc", b"abd"));
        assert!(!is_same_key(b"abc", b"ab"));
    }
}
