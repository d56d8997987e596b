//! Any chunking of any bytes gives the same events, and every byte is in one of them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rollcage_dialect::sse::{Splitter, SseEvent, Tail};

const EVENT_BYTES_MAX: usize = 512;

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (bytes, sizes) = input;
    let (whole, tail) = split(&bytes, &[]);
    let (pieces, piece_tail) = split(&bytes, &sizes);
    assert_eq!(whole, pieces);
    assert_eq!(tail, piece_tail);
    if let Some(tail) = tail {
        let mut raw: Vec<u8> = whole.iter().flat_map(|event| event.raw.clone()).collect();
        raw.extend(&tail.event.raw);
        assert_eq!(raw, bytes);
    }
});

/// The events, and what came after them unless an event was too long.
fn split(bytes: &[u8], sizes: &[u8]) -> (Vec<SseEvent>, Option<Tail>) {
    let mut splitter = Splitter::new(EVENT_BYTES_MAX);
    let mut events = Vec::new();
    let mut rest = bytes;
    for size in sizes {
        let (piece, after) = rest.split_at(usize::from(*size).min(rest.len()));
        events.extend(splitter.push(piece).unwrap_or_default());
        rest = after;
    }
    events.extend(splitter.push(rest).unwrap_or_default());
    (events, splitter.finish().ok())
}
