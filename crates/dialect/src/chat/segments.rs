//! A request body as a list of byte slices, so that long values need not be copied: messages and tools are sent from
//! the agent's own bytes, and only the few members that we change are written anew.

use bytes::Bytes;

/// Consecutive parts of one body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodySegments(Vec<Bytes>);

impl BodySegments {
    /// The total length in bytes.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// The body as one slice; copies unless it is one already.
    pub fn concat(&self) -> Bytes {
        match self.0.as_slice() {
            [whole] => whole.clone(),
            segments => segments.concat().into(),
        }
    }
}

impl From<Bytes> for BodySegments {
    fn from(whole: Bytes) -> Self {
        BodySegments(vec![whole])
    }
}

impl IntoIterator for BodySegments {
    type Item = Bytes;
    type IntoIter = std::vec::IntoIter<Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Assembles a body: short texts are copied, long ones referenced.
pub(super) struct Joiner<'a> {
    /// The buffer that long texts are slices of.
    source: &'a Bytes,
    done: Vec<Bytes>,
    /// Text copied since the last long one.
    short: Vec<u8>,
}

impl<'a> Joiner<'a> {
    pub(super) fn new(source: &'a Bytes) -> Self {
        Joiner {
            source,
            done: Vec::new(),
            short: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, text: &str) {
        /// Typical total length of the short texts between two long ones.
        const SHORT: usize = 512;
        if self.short.capacity() == 0 {
            self.short.reserve(SHORT);
        }
        self.short.extend_from_slice(text.as_bytes());
    }

    /// Appends text that is a slice of `source`.
    pub(super) fn push_part(&mut self, text: &str) {
        /// Below this, copying is cheaper than referencing.
        const LONG: usize = 1 << 10;
        if text.len() < LONG {
            return self.push(text);
        }
        self.end_short();
        self.done.push(self.source.slice_ref(text.as_bytes()));
    }

    pub(super) fn finish(mut self) -> BodySegments {
        self.end_short();
        BodySegments(self.done)
    }

    fn end_short(&mut self) {
        if !self.short.is_empty() {
            self.done.push(std::mem::take(&mut self.short).into());
        }
    }
}
