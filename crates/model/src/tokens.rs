//! Lists of token ids with structural sharing: a thousand prompts that each repeat the last one take the memory of what is
//! new in them.

mod store;

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};

pub use store::TokenStore;

/// An immutable list of token ids, cheap to clone. Reading it whole costs its length, however much of it is shared.
#[derive(Clone, Default)]
pub struct Tokens {
    whole: Arc<Pieces>,
    from: usize,
    to: usize,
}

/// A list as its new ids and references to earlier lists.
#[derive(Default)]
struct Pieces {
    list: Vec<Piece>,
}

enum Piece {
    New(Box<[u32]>),
    Old(Tokens),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::New(ids) => ids.len(),
            Piece::Old(tokens) => tokens.len(),
        }
    }
}

/// Each list may repeat the one before it, so dropping the last one would recurse through all of them.
impl Drop for Pieces {
    fn drop(&mut self) {
        let mut rest = std::mem::take(&mut self.list);
        while let Some(piece) = rest.pop() {
            if let Piece::Old(tokens) = piece
                && let Some(mut pieces) = Arc::into_inner(tokens.whole)
            {
                rest.append(&mut pieces.list);
            }
        }
    }
}

impl Tokens {
    fn of_pieces(list: Vec<Piece>) -> Self {
        let to = list.iter().map(Piece::len).sum();
        let whole = Arc::new(Pieces { list });
        Tokens { whole, from: 0, to }
    }

    pub fn len(&self) -> usize {
        self.to - self.from
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ids from `from` to `to`, counted in this list; bounds past its end are cut.
    pub(crate) fn slice(&self, from: usize, to: usize) -> Self {
        let to = to.min(self.len());
        let from = from.min(to);
        let mut whole = &self.whole;
        let (mut from, mut to) = (self.from + from, self.from + to);
        // A slice of one repeated piece is one of what it repeats: chains of references stay short.
        while let Some((start, tokens)) = whole.repeated(from, to) {
            whole = &tokens.whole;
            (from, to) = (tokens.from + from - start, tokens.from + to - start);
        }
        Tokens {
            whole: whole.clone(),
            from,
            to,
        }
    }

    /// The whole list that this one is a slice of.
    pub(crate) fn whole(&self) -> Self {
        Tokens {
            whole: self.whole.clone(),
            from: 0,
            to: self.whole.list.iter().map(Piece::len).sum(),
        }
    }

    /// The address of the list's memory, for a list that starts at its beginning.
    pub(crate) fn memory(&self) -> Option<usize> {
        (self.from == 0).then(|| Arc::as_ptr(&self.whole).addr())
    }

    /// The address of the list that this one starts with, and how many ids of it.
    pub(crate) fn start(&self) -> Option<(usize, usize)> {
        match self.whole.list.first()? {
            Piece::Old(tokens) if self.from == 0 => {
                Some((tokens.memory()?, tokens.len().min(self.to)))
            }
            Piece::Old(_) | Piece::New(_) => None,
        }
    }

    /// The list as runs of ids, in order. Runs are never empty.
    pub fn runs(&self) -> Runs<'_> {
        let mut runs = Runs { rest: Vec::new() };
        runs.open(&self.whole, self.from, self.to);
        runs
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.runs().flatten().copied()
    }

    pub fn first(&self) -> Option<u32> {
        self.runs().next()?.first().copied()
    }

    pub fn to_vec(&self) -> Vec<u32> {
        let mut ids = Vec::with_capacity(self.len());
        self.runs().for_each(|run| ids.extend_from_slice(run));
        ids
    }

    /// How many ids both start with.
    pub fn common_start(&self, other: &Tokens) -> usize {
        self.cursor().pass_common(other)
    }

    pub(crate) fn cursor(&self) -> Cursor<'_> {
        let mut runs = self.runs();
        let run = runs.next().unwrap_or_default();
        Cursor { runs, run }
    }

    /// Bytes that no other list holds. What is shared counts for the list that had it first.
    fn new_bytes(&self) -> usize {
        let bytes = |piece: &Piece| match piece {
            Piece::New(ids) => size_of_val::<[u32]>(ids),
            Piece::Old(_) => 0,
        };
        let list = &self.whole.list;
        size_of::<Pieces>()
            + list.len() * size_of::<Piece>()
            + list.iter().map(bytes).sum::<usize>()
    }
}

impl Pieces {
    /// The repeated piece that the range lies in, and where it starts.
    fn repeated(&self, from: usize, to: usize) -> Option<(usize, &Tokens)> {
        let mut start = 0;
        for piece in &self.list {
            let end = start + piece.len();
            match piece {
                Piece::Old(tokens) if start <= from && to <= end && from < to => {
                    return Some((start, tokens));
                }
                Piece::New(_) | Piece::Old(_) => start = end,
            }
        }
        None
    }
}

/// A place in a list, moving to its end.
pub(crate) struct Cursor<'a> {
    runs: Runs<'a>,
    /// Empty only at the end.
    run: &'a [u32],
}

impl Cursor<'_> {
    pub(crate) fn peek(&self) -> Option<u32> {
        self.run.first().copied()
    }

    /// Moves on by as many ids as `other` starts with, and says how many.
    pub(crate) fn pass_common(&mut self, other: &Tokens) -> usize {
        let mut common = 0;
        for mut run in other.runs() {
            while !run.is_empty() {
                let len = run.len().min(self.run.len());
                let same = common_start(&run[..len], &self.run[..len]);
                common += same;
                self.pass(same);
                if len == 0 || same < len {
                    return common;
                }
                run = &run[len..];
            }
        }
        common
    }

    fn pass(&mut self, len: usize) {
        self.run = &self.run[len..];
        if self.run.is_empty() {
            self.run = self.runs.next().unwrap_or_default();
        }
    }
}

/// How many ids both lists start with, at the speed of memory.
pub(crate) fn common_start(left: &[u32], right: &[u32]) -> usize {
    // Shared runs are the same memory, which needs no look.
    if std::ptr::eq(left.as_ptr(), right.as_ptr()) {
        return left.len().min(right.len());
    }
    const BLOCK: usize = 256;
    let blocks = left.chunks_exact(BLOCK).zip(right.chunks_exact(BLOCK));
    let whole = blocks.take_while(|(left, right)| left == right).count() * BLOCK;
    let rest = left[whole..].iter().zip(&right[whole..]);
    whole + rest.take_while(|(left, right)| left == right).count()
}

/// The runs of a list. Walks shared pieces with an explicit stack, since they nest as deep as there are turns.
pub struct Runs<'a> {
    rest: Vec<(&'a Piece, usize, usize)>,
}

impl<'a> Runs<'a> {
    /// What of each piece lies in the range, the first on top.
    fn open(&mut self, pieces: &'a Pieces, from: usize, to: usize) {
        let first = self.rest.len();
        let mut start = 0;
        for piece in &pieces.list {
            let end = start + piece.len();
            let (here, there) = (from.max(start), to.min(end));
            if here < there {
                self.rest.push((piece, here - start, there - start));
            }
            start = end;
        }
        self.rest[first..].reverse();
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = &'a [u32];

    fn next(&mut self) -> Option<&'a [u32]> {
        loop {
            match self.rest.pop()? {
                (Piece::New(ids), from, to) => return Some(&ids[from..to]),
                (Piece::Old(tokens), from, to) => {
                    self.open(&tokens.whole, tokens.from + from, tokens.from + to);
                }
            }
        }
    }
}

impl From<Vec<u32>> for Tokens {
    fn from(ids: Vec<u32>) -> Self {
        if ids.is_empty() {
            return Tokens::default();
        }
        Tokens::of_pieces(vec![Piece::New(ids.into_boxed_slice())])
    }
}

impl PartialEq for Tokens {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.common_start(other) == self.len()
    }
}

impl Eq for Tokens {}

impl fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

impl Serialize for Tokens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Tokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Tokens::from)
    }
}

#[cfg(test)]
mod tests;
