//! How much of one part's text was passed on. Pure.

/// A text or reasoning part of an answer.
#[derive(Debug, Default)]
pub(super) struct PartText {
    /// What was passed on. It is never taken back.
    sent: String,
    /// Where the stream's next delta belongs; unknown after a gap, until the whole text is seen again.
    at: Option<usize>,
    /// What was passed on is no longer the beginning of the text, so nothing can be added to it.
    is_changed: bool,
}

impl PartText {
    /// The whole text at this place of the event stream. Returns what was not passed on yet.
    pub(super) fn streamed(&mut self, whole: &str) -> Option<String> {
        self.at = Some(whole.len());
        self.whole(whole)
    }

    /// The whole text at some time. Returns what was not passed on yet.
    pub(super) fn whole(&mut self, whole: &str) -> Option<String> {
        if let Some(more) = whole.strip_prefix(self.sent.as_str()) {
            return self.send(more);
        }
        // It may be of earlier than what was passed on, or its end was trimmed.
        if !self.sent.starts_with(whole) && !self.is_changed {
            self.is_changed = true;
            tracing::debug!("a part's text is not what it was; the rest is not streamed");
        }
        None
    }

    /// More text at this place of the event stream. Returns what was not passed on yet.
    pub(super) fn delta(&mut self, delta: &str) -> Option<String> {
        let at = self.at?;
        let end = at + delta.len();
        self.at = Some(end);
        // A whole text that was read in between may reach beyond the stream's place.
        let known = self.sent.len().saturating_sub(at).min(delta.len());
        match delta.get(known..) {
            Some(more) if at <= self.sent.len() => self.send(more),
            _ => {
                self.at = None;
                None
            }
        }
    }

    /// Deltas may have been missed.
    pub(super) fn gap(&mut self) {
        self.at = None;
    }

    fn send(&mut self, more: &str) -> Option<String> {
        if more.is_empty() || self.is_changed {
            return None;
        }
        self.sent.push_str(more);
        Some(more.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::PartText;

    /// `=TEXT` is a whole text in the stream, `?TEXT` one that was read, `+TEXT` a delta and `!` a gap.
    #[track_caller]
    fn check(steps: &[&str], expected: &[&str]) {
        let mut part = PartText::default();
        let mut sent = Vec::new();
        for step in steps {
            let (kind, text) = step.split_at(1);
            sent.extend(match kind {
                "=" => part.streamed(text),
                "?" => part.whole(text),
                "+" => part.delta(text),
                _ => {
                    part.gap();
                    None
                }
            });
        }
        assert_eq!(sent, expected);
    }

    #[test]
    fn deltas_are_passed_on_once() {
        check(&["=", "+a", "+bc", "=abc", "?abc"], &["a", "bc"]);
    }

    #[test]
    fn after_a_gap_the_whole_text_brings_the_rest() {
        check(&["=", "+a", "!", "+c", "+d", "=abcd"], &["a", "bcd"]);
        check(
            &["=", "+a", "!", "+c", "?abcd", "+e", "=abcde"],
            &["a", "bcd", "e"],
        );
    }

    #[test]
    fn a_part_that_was_never_announced_waits_for_its_text() {
        check(&["+a", "+b", "=abc", "+d"], &["abc", "d"]);
    }

    #[test]
    fn deltas_that_a_whole_text_has_already_are_not_repeated() {
        check(&["?abcd", "=", "+ab", "+cde", "+f"], &["abcd", "e", "f"]);
        check(&["?ä", "=", "+ä", "+ö"], &["ä", "ö"]);
    }

    #[test]
    fn an_older_or_trimmed_text_changes_nothing() {
        check(&["=", "+ab ", "=ab", "?a"], &["ab "]);
    }

    #[test]
    fn a_text_that_changed_is_not_repeated() {
        check(&["=", "+ab", "=xb", "+c", "=xbc", "=abc"], &["ab"]);
    }

    proptest::proptest! {
        /// Whatever is missed and whenever the transcript is read, all of the text is passed on once.
        #[test]
        fn nothing_is_lost_or_repeated(
            pieces in proptest::collection::vec("[aä]{1,3}", 1..12),
            fates in proptest::collection::vec(0..5_u8, 12),
        ) {
            let whole = pieces.concat();
            let mut part = PartText::default();
            let mut sent = part.streamed("").unwrap_or_default();
            let mut so_far = String::new();
            for (piece, fate) in pieces.iter().zip(fates) {
                so_far.push_str(piece);
                let more = match fate {
                    // The stream broke off and came back after this delta.
                    0 => {
                        part.gap();
                        None
                    }
                    1 => {
                        part.gap();
                        part.whole(&so_far)
                    }
                    2 => part.streamed(&so_far),
                    _ => part.delta(piece),
                };
                sent.extend(more);
                proptest::prop_assert!(whole.starts_with(&sent));
            }
            sent.extend(part.whole(&whole));
            proptest::prop_assert_eq!(sent, whole);
        }
    }

    #[test]
    fn the_same_event_twice_is_harmless() {
        check(&["=ab", "=ab", "?ab"], &["ab"]);
    }
}
