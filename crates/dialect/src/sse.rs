//! Splits bytes, however they are chunked, into server-sent events.
//!
//! Every input byte is in exactly one event's `raw` or in the tail, in order, so a proxy can forward unchanged events
//! byte for byte. Fields other than `event` and `data` are ignored.

use thiserror::Error;

/// One block of a stream, including the empty line that ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseEvent {
    /// The `event` field, empty when there is none.
    pub name: String,
    /// The `data` lines joined by line feeds; `None` for a block without any (comments, keep-alives, stray empty
    /// lines), which has no meaning but must be forwarded. Invalid UTF-8 is replaced.
    pub data: Option<String>,
    pub raw: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SseError {
    #[error("a server-sent event is longer than {bytes_max} bytes")]
    TooLong { bytes_max: usize },
}

/// The bytes after the last complete event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The stream ended inside an event.
    pub is_torn: bool,
    /// The tail parsed as if its event were complete; the last line may be truncated anywhere.
    pub event: SseEvent,
}

/// Splits a stream into events. Buffers at most one unfinished event.
#[derive(Debug)]
pub struct Splitter {
    event_bytes_max: usize,
    pending: Vec<u8>,
    is_line_empty: bool,
    /// The last byte was a CR, so a following LF belongs to the same line end.
    is_after_cr: bool,
    is_first_event: bool,
    is_failed: bool,
}

impl Splitter {
    pub fn new(event_bytes_max: usize) -> Self {
        Splitter {
            event_bytes_max,
            pending: Vec::new(),
            is_line_empty: true,
            is_after_cr: false,
            is_first_event: true,
            is_failed: false,
        }
    }

    /// Consumes bytes and returns the events that they complete. Events before one that is too long are still returned;
    /// the next call and all later ones then return the error.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<SseEvent>, SseError> {
        let mut events = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() && !self.is_failed {
            // Through the next line end. Lines are long: one may hold the token ids of a whole prompt.
            let end = memchr::memchr2(b'\r', b'\n', rest).map_or(rest.len(), |at| at + 1);
            let (line, behind) = rest.split_at(end);
            rest = behind;
            self.is_failed = self.pending.len() + line.len() > self.event_bytes_max;
            if self.is_failed {
                // It is never returned, so its memory can go.
                self.pending = Vec::new();
                break;
            }
            self.pending.extend_from_slice(line);
            if line.len() > 1 {
                self.is_line_empty = false;
                self.is_after_cr = false;
            }
            if line.last().is_some_and(|byte| self.ends_event(*byte)) {
                events.push(self.take_event());
            }
        }
        if events.is_empty() {
            self.check()?
        }
        Ok(events)
    }

    /// Returns the rest at the end of the stream.
    pub fn finish(mut self) -> Result<Tail, SseError> {
        self.check()?;
        let event = self.take_event();
        let is_torn = event.raw.iter().any(|byte| !matches!(byte, b'\r' | b'\n'));
        Ok(Tail { is_torn, event })
    }

    fn check(&self) -> Result<(), SseError> {
        if self.is_failed {
            return Err(SseError::TooLong {
                bytes_max: self.event_bytes_max,
            });
        }
        Ok(())
    }

    fn ends_event(&mut self, byte: u8) -> bool {
        // An event that ends with a CR is returned at once. The LF of a CRLF then comes first in the next event's
        // `raw`, where it must not count as an empty line.
        let is_second_half = self.is_after_cr && byte == b'\n';
        self.is_after_cr = byte == b'\r';
        if is_second_half {
            return false;
        }
        if !matches!(byte, b'\r' | b'\n') {
            self.is_line_empty = false;
            return false;
        }
        std::mem::replace(&mut self.is_line_empty, true)
    }

    fn take_event(&mut self) -> SseEvent {
        let raw = std::mem::take(&mut self.pending);
        self.is_line_empty = true;
        let text = match raw.strip_prefix(b"\xEF\xBB\xBF") {
            Some(rest) if self.is_first_event => rest,
            _ => raw.as_slice(),
        };
        self.is_first_event = false;
        let (name, data) = read_fields(text);
        SseEvent { name, data, raw }
    }
}

fn read_fields(text: &[u8]) -> (String, Option<String>) {
    let mut name = String::new();
    let mut data: Option<String> = None;
    for line in text.split(|byte| matches!(byte, b'\r' | b'\n')) {
        let (field, value) = match line.iter().position(|&byte| byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &line[line.len()..]),
        };
        let value = String::from_utf8_lossy(value.strip_prefix(b" ").unwrap_or(value));
        match field {
            b"event" => name = value.into_owned(),
            b"data" => match &mut data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(&value);
                }
                None => data = Some(value.into_owned()),
            },
            _ => {}
        }
    }
    (name, data)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES_MAX: usize = 1 << 20;

    fn split(chunks: &[&[u8]]) -> (Vec<SseEvent>, Tail) {
        let mut splitter = Splitter::new(BYTES_MAX);
        let events = chunks
            .iter()
            .flat_map(|chunk| splitter.push(chunk).unwrap())
            .collect();
        (events, splitter.finish().unwrap())
    }

    /// The tests below are data for this one function.
    #[track_caller]
    fn check(stream: &str, expect: &str) {
        let (events, tail) = split(&[stream.as_bytes()]);
        let mut got: Vec<String> = events
            .iter()
            .map(|event| {
                format!(
                    "{}|{}",
                    event.name,
                    event.data.as_deref().unwrap_or("(none)")
                )
            })
            .collect();
        if tail.is_torn {
            got.push("torn".to_owned());
        }
        assert_eq!(got.join(" / "), expect);
    }

    #[test]
    fn all_line_endings_are_accepted() {
        check(
            "data: 1\n\ndata: 2\r\n\r\ndata: 3\r\rdata: 4\n\r\n",
            "|1 / |2 / |3 / |4",
        );
    }

    #[test]
    fn a_torn_tail_is_separate() {
        check("data: 1\n\ndata: 2", "|1 / torn");
        check("data: 1\n\ndata: 2\n", "|1 / torn");
        check("data: 1\r\n\r\n", "|1");
    }

    #[test]
    fn joins_data_lines_and_keeps_names() {
        check("event: ping\ndata: a\ndata:  b\ndata\n\n", "ping|a\n b\n");
    }

    #[test]
    fn comments_and_other_fields_are_ignored() {
        check(
            ": keep-alive\n\nid: 7\nretry: 1\n\n\ndata:\n\n",
            "|(none) / |(none) / |(none) / |",
        );
    }

    #[test]
    fn a_byte_order_mark_counts_only_at_the_start() {
        check("\u{feff}data: 1\n\n\u{feff}data: 2\n\n", "|1 / |(none)");
    }

    #[test]
    fn an_event_above_the_limit_is_a_permanent_error() {
        let mut splitter = Splitter::new(12);
        let events = splitter.push(b"data: 1\n\ndata: 123456789").unwrap();
        assert_eq!(events.len(), 1);
        let error = SseError::TooLong { bytes_max: 12 };
        assert_eq!(splitter.push(b"\n\ndata: 2\n\n"), Err(error.clone()));
        assert_eq!(splitter.finish(), Err(error));
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_same_events(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "data: ", "data:", "event: x", "\n", "\n", "\r", "\r\n", "é€😀", "{\"a\":1}", ": c", "\u{feff}",
                ]),
                0..40,
            ),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let stream = parts.concat().into_bytes();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
            let (events, tail) = split(&chunks);
            let raw: Vec<u8> = events.iter().chain([&tail.event]).flat_map(|event| event.raw.clone()).collect();
            prop_assert_eq!(raw, stream.clone());
            prop_assert_eq!((events, tail), split(&[&stream]));
        }
    }
}
