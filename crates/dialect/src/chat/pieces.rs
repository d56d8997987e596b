//! A body in pieces, so that what is long in it need not be copied.

use bytes::Bytes;

/// Bytes that belong together, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces(Vec<Bytes>);

impl Pieces {
    /// How many bytes all of them are.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// All of them in one.
    pub fn concat(&self) -> Bytes {
        match self.0.as_slice() {
            [whole] => whole.clone(),
            pieces => pieces.concat().into(),
        }
    }
}

impl From<Bytes> for Pieces {
    fn from(whole: Bytes) -> Self {
        Pieces(vec![whole])
    }
}

impl IntoIterator for Pieces {
    type Item = Bytes;
    type IntoIter = std::vec::IntoIter<Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Puts pieces together: short ones by copying, long ones as they are.
pub(super) struct Joiner<'a> {
    /// What long pieces are parts of.
    source: &'a Bytes,
    done: Vec<Bytes>,
    /// What was copied since the last long piece.
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
        /// As much as there mostly is between two long pieces.
        const SHORT: usize = 512;
        if self.short.capacity() == 0 {
            self.short.reserve(SHORT);
        }
        self.short.extend_from_slice(text.as_bytes());
    }

    /// For text that is a part of the source.
    pub(super) fn push_part(&mut self, text: &str) {
        /// Shorter ones cost more to handle than to copy.
        const LONG: usize = 1 << 10;
        if text.len() < LONG {
            return self.push(text);
        }
        self.end_short();
        self.done.push(self.source.slice_ref(text.as_bytes()));
    }

    pub(super) fn finish(mut self) -> Pieces {
        self.end_short();
        Pieces(self.done)
    }

    fn end_short(&mut self) {
        if !self.short.is_empty() {
            self.done.push(std::mem::take(&mut self.short).into());
        }
    }
}
