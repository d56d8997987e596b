//! Small functions on texts that people read.

/// An error and its causes as one sentence.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

/// The last `count` characters.
pub fn tail(text: &str, count: usize) -> String {
    let skipped = text.chars().count().saturating_sub(count);
    text.chars().skip(skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_counted_in_characters() {
        assert_eq!(tail("añb", 2), "ñb");
        assert_eq!(tail("a", 2), "a");
    }
}
