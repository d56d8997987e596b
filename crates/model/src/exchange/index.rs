//! Finds single exchanges in a file. A body refers to earlier ones, those to still earlier ones, and so on to the start;
//! only the ranges that the wanted body needs are followed, so its cost is its own length, and for each of its runs the
//! number of frames that the run was handed down through.

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;

use super::delta::Part;
use super::{Exchange, Line, Read, read_frame};

/// Where the frames of a file stand.
#[derive(Debug, Default)]
pub struct Index {
    frames: Vec<Placed>,
    /// By kind and exchange: the first such frame, which is the one that counts.
    places: HashMap<(Kind, u64), usize>,
}

#[derive(Debug)]
struct Placed {
    /// Without its body.
    line: Line,
    runs: Vec<Run>,
}

/// A piece of a body.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Where it stands in the body.
    start: usize,
    end: usize,
    source: Source,
}

/// Where a run begins.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// In the file.
    File(usize),
    /// In the body of an earlier exchange.
    Body { exchange: u64, from: usize },
}

/// What is still to be written of a body.
enum Wanted {
    /// These bytes of the file.
    File(Range<usize>),
    /// This range of a frame's body.
    Body(usize, Range<usize>),
}

/// Bodies refer to others of their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Request,
    Sent,
    Response,
}

impl Line {
    fn kind(&self) -> Kind {
        match self {
            Line::Request(_) => Kind::Request,
            Line::Sent(_) => Kind::Sent,
            Line::Response(_) => Kind::Response,
        }
    }
}

impl Index {
    /// Reads the heads of all frames, as far as they can be read.
    pub fn new(bytes: &[u8]) -> Self {
        let mut index = Index::default();
        let mut rest = bytes;
        while let Ok(Read {
            head,
            new_at,
            rest: behind,
            ..
        }) = read_frame(rest)
        {
            let key = (head.line.kind(), head.line.exchange());
            index.places.entry(key).or_insert(index.frames.len());
            index.frames.push(Placed {
                line: head.line,
                runs: runs(&head.parts, bytes.len() - rest.len() + new_at),
            });
            rest = behind;
        }
        index
    }

    /// The exchange of this number with its bodies; `bytes` is the file that the index was made of.
    pub fn exchange(&self, bytes: &[u8], number: u64) -> Option<Exchange> {
        let Line::Request(request) = self.line(bytes, Kind::Request, number)? else {
            return None;
        };
        let sent = match self.line(bytes, Kind::Sent, number) {
            Some(Line::Sent(sent)) => Some(sent.body),
            _ => None,
        };
        let response = match self.line(bytes, Kind::Response, number) {
            Some(Line::Response(response)) => Some(response),
            _ => None,
        };
        Some(Exchange {
            request,
            sent,
            response,
        })
    }

    fn line(&self, bytes: &[u8], kind: Kind, number: u64) -> Option<Line> {
        let at = *self.places.get(&(kind, number))?;
        let mut line = self.frames[at].line.clone();
        *line.body_mut() = Bytes::from(self.body(bytes, at)?);
        Some(line)
    }

    /// `None` when a part refers to what is not there.
    fn body(&self, bytes: &[u8], at: usize) -> Option<Vec<u8>> {
        let whole = self.frames[at].runs.last().map_or(0, |run| run.end);
        let mut body = Vec::new();
        // The next one on top: chains are as long as the conversation.
        let mut wanted = vec![Wanted::Body(at, 0..whole)];
        while let Some(next) = wanted.pop() {
            match next {
                Wanted::File(range) => body.extend_from_slice(bytes.get(range)?),
                Wanted::Body(at, range) => {
                    let first = wanted.len();
                    self.follow(at, range, &mut wanted)?;
                    wanted[first..].reverse();
                }
            }
        }
        Some(body)
    }

    /// Adds where the bytes of a range of a frame's body come from, in their order.
    fn follow(&self, at: usize, range: Range<usize>, wanted: &mut Vec<Wanted>) -> Option<()> {
        let frame = &self.frames[at];
        if frame.runs.last().map_or(0, |run| run.end) < range.end {
            return None;
        }
        let first = frame.runs.partition_point(|run| run.end <= range.start);
        let runs = frame.runs[first..].iter();
        let runs = runs.take_while(|run| run.start < range.end);
        for run in runs.filter(|run| run.start < run.end) {
            let skip = range.start.saturating_sub(run.start);
            let len = range.end.min(run.end) - run.start - skip;
            let from = |start: usize| {
                let start = start.checked_add(skip)?;
                Some(start..start.checked_add(len)?)
            };
            wanted.push(match run.source {
                Source::File(start) => Wanted::File(from(start)?),
                Source::Body {
                    exchange,
                    from: start,
                } => {
                    let old = *self.places.get(&(frame.line.kind(), exchange))?;
                    // Only earlier ones, so this comes to an end.
                    Wanted::Body(Some(old).filter(|old| *old < at)?, from(start)?)
                }
            });
        }
        Some(())
    }
}

/// The parts of a frame whose new bytes begin at `new_at`. Lengths are the file's word: what is not there is noticed when it
/// is wanted.
fn runs(parts: &[Part], mut new_at: usize) -> Vec<Run> {
    let mut start = 0_usize;
    let place = |part: &Part| {
        let end = start.saturating_add(part.len());
        let source = match *part {
            Part::New(len) => {
                let at = new_at;
                new_at = new_at.saturating_add(len);
                Source::File(at)
            }
            Part::Old { exchange, from, .. } => Source::Body { exchange, from },
        };
        let run = Run { start, end, source };
        start = end;
        run
    };
    parts.iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::exchange::{Encoder, Reader, Request, Response, Sent};

    /// What a recorder writes of conversations that take turns, some of them translated and some without an answer.
    fn file(calls: usize) -> Vec<u8> {
        let words = |from: usize, to: usize| -> String {
            let words = (from..to).map(|at| format!("{},", at * 7919 % 100_000));
            words.collect()
        };
        let mut encoder = Encoder::default();
        let mut bytes = Vec::new();
        for call in 1..=calls {
            let talk = call % 2;
            let clock = "x".repeat(call % 3);
            let number = call as u64;
            let said = words(talk * 5000, talk * 5000 + 200 + call * 30);
            let request = Request {
                exchange: number,
                body: format!("{{\"messages\":[\"{clock}\",{said}],\"tools\":[1]}}").into(),
                ..Request::default()
            };
            let sent = Sent {
                exchange: number,
                body: format!("{{\"model\":\"{clock}\",\"messages\":[{said}]}}").into(),
            };
            let response = Response {
                exchange: number,
                body: format!("{{\"id\":{call},\"prompt_token_ids\":[{said}1],\"end\":[]}}").into(),
                ..Response::default()
            };
            let mut lines = vec![Line::Request(request)];
            if call % 5 == 0 {
                lines.push(Line::Sent(sent));
            }
            if call % 7 != 0 {
                lines.push(Line::Response(response));
            }
            for line in lines {
                let frame = encoder.earlier(&line).frame(line).unwrap();
                bytes.extend(encoder.encode(frame).unwrap().0);
            }
        }
        bytes
    }

    #[test]
    fn single_exchanges_are_those_of_the_whole_file() {
        let bytes = file(60);
        let index = Index::new(&bytes);
        let exchanges: Vec<Exchange> = Reader::new(&bytes).collect();
        assert_eq!(exchanges.len(), 60);
        for exchange in exchanges {
            let number = exchange.request.exchange;
            assert_eq!(index.exchange(&bytes, number), Some(exchange));
        }
        assert_eq!(index.exchange(&bytes, 61), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// A record that was damaged or is being written gives less, and never something else or an endless search.
        #[test]
        fn a_torn_or_damaged_file_gives_what_is_there(cut in 0_usize..60_000, at in 0_usize..60_000, byte: u8) {
            let mut bytes = file(20);
            let index = Index::new(&bytes[..cut.min(bytes.len())]);
            let whole = Index::new(&bytes);
            for number in 1..=20 {
                if let Some(found) = index.exchange(&bytes, number) {
                    let full = whole.exchange(&bytes, number).unwrap();
                    prop_assert_eq!(found.request, full.request);
                }
            }
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            let index = Index::new(&bytes);
            (1..=20).for_each(|number| drop(index.exchange(&bytes, number)));
        }
    }
}
