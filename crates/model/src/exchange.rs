//! A rollout's append-only file `exchanges.rec`: what was asked and what was answered, as bytes.
//!
//! A request is written before anything is sent upstream, a response before the reply to the agent ends. A request
//! without a response is a hole and stays visible as one. Everything else (turns, graph, traces) is computed from this
//! file. Each frame is one line of JSON, the new bytes of its body, a checksum of both, and a line feed; the rest of the body
//! is in earlier frames (see `delta`), so the file grows with what is new.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use rollcage_dialect::sampling::LogprobsMode;
use rollcage_dialect::{Dialect, EndpointDialect};

mod delta;
mod index;
mod resume;

use delta::{Part, Recent};
pub use index::Index;

/// Written into every frame; a reader stops at a frame of a later version. Frames of version 1 have no checksum.
pub const VERSION: u32 = 2;

/// A frame without its body.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    Request(Request),
    /// What was sent upstream, where that is a translation of the request.
    Sent(Sent),
    Response(Response),
}

/// What the agent sent, and how we changed it on its way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Counts from 1 in order of arrival; a response carries the same number.
    pub exchange: u64,
    /// Unix seconds.
    pub at: f64,
    pub path: String,
    pub dialect: Dialect,
    /// What the endpoint speaks, hence how the response is to be read.
    #[serde(default, skip_serializing_if = "EndpointDialect::is_chat")]
    pub endpoint_dialect: EndpointDialect,
    /// Lower-case names; never credentials.
    pub headers: BTreeMap<String, String>,
    /// Top-level members set in what was sent upstream, whether added or replaced.
    pub set: serde_json::Map<String, serde_json::Value>,
    /// Top-level members removed from what was sent upstream.
    pub removed: Vec<String>,
    /// What of the request has no counterpart in the endpoint's dialect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<String>,
    /// Members that the endpoint was found not to take, so that it was not asked for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// What the endpoint's logprobs are of, where tokens were asked for. Records from before this was measured have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs_of: Option<LogprobsMode>,
    /// The agent's body, byte for byte.
    #[serde(skip)]
    pub body: Bytes,
}

/// The request in the endpoint's dialect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    pub exchange: u64,
    #[serde(skip)]
    pub body: Bytes,
}

/// A try that the proxy made again by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Unix seconds.
    pub at: f64,
    pub status: Option<u16>,
    pub error: String,
}

/// What came back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Response {
    pub exchange: u64,
    /// Unix seconds, when the last byte was there.
    pub at: f64,
    /// The upstream's HTTP status; `None` when there was no answer.
    pub status: Option<u16>,
    /// Whether `body` is a server-sent event stream.
    pub is_stream: bool,
    /// Seconds from sending the request to the first byte of the body, and to its end.
    pub first_byte_s: Option<f64>,
    pub total_s: f64,
    /// Why the exchange did not finish: the connection broke, the agent hung up, a deadline passed.
    pub error: Option<String>,
    /// Tries before the one that this is the answer to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// Whether the agent got a stream made from a whole answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_replayed: bool,
    /// The upstream's body as received, nothing stripped.
    #[serde(skip)]
    pub body: Bytes,
}

impl Exchange {
    /// The request in the endpoint's dialect.
    pub fn endpoint_body(&self) -> &[u8] {
        self.sent.as_deref().unwrap_or(&self.request.body)
    }
}

impl Request {
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }
}

impl Response {
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }
}

/// One model call: what was asked, and what was answered if an answer was stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    pub request: Request,
    pub sent: Option<Bytes>,
    pub response: Option<Response>,
}

/// A frame's line as it is written.
#[derive(Serialize)]
struct Head<'a> {
    version: u32,
    #[serde(flatten)]
    line: &'a Line,
    parts: &'a [Part],
}

/// A frame's line as it is read.
#[derive(Deserialize)]
struct ReadHead {
    #[serde(flatten)]
    line: Line,
    parts: Vec<Part>,
}

/// Bodies that later frames may refer to.
#[derive(Debug, Default)]
struct Known {
    requests: Recent,
    sent: Recent,
    responses: Recent,
}

impl Known {
    fn of(&mut self, line: &Line) -> &mut Recent {
        match line {
            Line::Request(_) => &mut self.requests,
            Line::Sent(_) => &mut self.sent,
            Line::Response(_) => &mut self.responses,
        }
    }
}

impl Line {
    fn exchange(&self) -> u64 {
        match self {
            Line::Request(request) => request.exchange,
            Line::Sent(sent) => sent.exchange,
            Line::Response(response) => response.exchange,
        }
    }

    fn body_mut(&mut self) -> &mut Bytes {
        match self {
            Line::Request(request) => &mut request.body,
            Line::Sent(sent) => &mut sent.body,
            Line::Response(response) => &mut response.body,
        }
    }
}

/// Turns exchanges into the bytes of the file, in the order in which they are to be written.
#[derive(Debug, Default)]
pub struct Encoder {
    known: Known,
}

/// A copy of the bodies that a frame may refer to, taken so that comparing needs no lock.
#[derive(Debug)]
pub struct Earlier(Recent);

/// A frame that is ready to be written.
#[derive(Debug)]
pub struct Frame {
    /// Without its body.
    line: Line,
    body: Bytes,
    parts: Vec<Part>,
    bytes: Vec<u8>,
}

impl Encoder {
    /// What a frame is compared with. Comparing takes time, and can be done while others use the encoder.
    pub fn earlier(&mut self, line: &Line) -> Earlier {
        Earlier(self.known.of(line).clone())
    }

    /// The bytes of a frame. Each one must be written, in this order, since later ones may refer to it. Bodies that are
    /// not needed any more come with it: freeing them takes time, too.
    pub fn encode(&mut self, frame: Frame) -> Result<(Vec<u8>, Vec<Bytes>), serde_json::Error> {
        let Frame {
            line,
            body,
            mut parts,
            mut bytes,
        } = frame;
        let known = self.known.of(&line);
        // Others may have written so much meanwhile that what it refers to is forgotten.
        if !known.has_all(&parts) {
            parts = known.split(&body);
            bytes = written(&line, &body, &parts)?;
        }
        let mut gone = known.take_outdated(&parts);
        gone.extend(known.push(line.exchange(), body));
        Ok((bytes, gone))
    }
}

impl Earlier {
    pub fn frame(&self, mut line: Line) -> Result<Frame, serde_json::Error> {
        let body = std::mem::take(line.body_mut());
        let parts = self.0.split(&body);
        let bytes = written(&line, &body, &parts)?;
        Ok(Frame {
            line,
            body,
            parts,
            bytes,
        })
    }
}

fn written(line: &Line, body: &[u8], parts: &[Part]) -> Result<Vec<u8>, serde_json::Error> {
    const HEAD_BYTES: usize = 512;
    let new = delta::new_bytes(parts).unwrap_or(0);
    let mut bytes = Vec::with_capacity(HEAD_BYTES + new);
    let head = Head {
        version: VERSION,
        line,
        parts,
    };
    serde_json::to_writer(&mut bytes, &head)?;
    bytes.push(b'\n');
    delta::write_new(parts, body, &mut bytes);
    let checksum = checksum(&bytes);
    bytes.extend_from_slice(&checksum);
    bytes.push(b'\n');
    Ok(bytes)
}

const CHECKSUM_BYTES: usize = 8;

/// CRC-32 in hexadecimal digits: it tells every flipped bit, and costs nothing beside the comparing of bodies.
fn checksum(frame: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let sum = crc32fast::hash(frame);
    let digit = |at: usize| (sum >> (4 * (CHECKSUM_BYTES - 1 - at))) & 0xf;
    std::array::from_fn(|at| b"0123456789abcdef"[digit(at) as usize])
}

/// Reads a whole file, as far as it can be read: the exchanges by number, and in words what could not be read.
pub fn read(bytes: &[u8]) -> (Vec<Exchange>, Vec<String>) {
    let mut reader = Reader::new(bytes);
    let mut exchanges: Vec<Exchange> = reader.by_ref().collect();
    exchanges.sort_by_key(|exchange| exchange.request.exchange);
    (exchanges, reader.problems)
}

/// Gives each exchange of a file once it is whole, and those without a response at the end, so that no more bodies are
/// in memory than are needed.
///
/// Reading stops at the first frame that is torn, as a killed process leaves one, that is damaged, since nothing in it can be
/// trusted, its length neither, or that is of a later version, which may mean something else than it seems to.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    frames: usize,
    known: Known,
    open: BTreeMap<u64, Exchange>,
    given: BTreeSet<u64>,
    /// What could not be read so far, in words.
    pub problems: Vec<String>,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader {
            bytes,
            frames: 0,
            known: Known::default(),
            open: BTreeMap::new(),
            given: BTreeSet::new(),
            problems: Vec::new(),
        }
    }

    /// The next frame with its body. The error says why there are no more.
    fn line(&mut self) -> Result<Line, String> {
        let Read {
            head, new, rest, ..
        } = read_frame(self.bytes)?;
        let mut line = head.line;
        let recent = self.known.of(&line);
        let body = recent.join(&head.parts, new).map(Bytes::from);
        let body = body.ok_or("refers to bytes that are not there")?;
        recent.push(line.exchange(), body.clone());
        *line.body_mut() = body;
        self.bytes = rest;
        Ok(line)
    }

    /// Puts a frame where it belongs; gives the exchange that it ends.
    fn place(&mut self, line: Line) -> Result<Option<Exchange>, String> {
        let number = line.exchange();
        match line {
            Line::Request(request) => {
                if self.given.contains(&number) || self.open.contains_key(&number) {
                    return Err(format!("a second request {number}, left out"));
                }
                let exchange = Exchange {
                    request,
                    sent: None,
                    response: None,
                };
                self.open.insert(number, exchange);
                Ok(None)
            }
            Line::Sent(sent) => match self.open.get_mut(&number) {
                Some(exchange) => {
                    exchange.sent = Some(sent.body);
                    Ok(None)
                }
                None => Err(format!(
                    "what was sent without a request {number}, left out"
                )),
            },
            Line::Response(response) => match self.open.remove(&number) {
                Some(mut exchange) => {
                    self.given.insert(number);
                    exchange.response = Some(response);
                    Ok(Some(exchange))
                }
                None if self.given.contains(&number) => {
                    Err(format!("a second response {number}, left out"))
                }
                None => Err(format!("a response without a request {number}, left out")),
            },
        }
    }
}

impl Iterator for Reader<'_> {
    type Item = Exchange;

    fn next(&mut self) -> Option<Exchange> {
        while !self.bytes.is_empty() {
            self.frames += 1;
            let line = match self.line() {
                Ok(line) => line,
                Err(problem) => {
                    self.problems
                        .push(format!("frame {}: {problem}", self.frames));
                    self.bytes = &[];
                    break;
                }
            };
            match self.place(line) {
                Ok(None) => {}
                Ok(Some(exchange)) => return Some(exchange),
                Err(problem) => {
                    self.problems
                        .push(format!("frame {}: {problem}", self.frames));
                }
            }
        }
        self.open.pop_first().map(|(_, exchange)| exchange)
    }
}

/// A frame as it stands in the file.
struct Read<'a> {
    head: ReadHead,
    /// Where its new bytes begin.
    new_at: usize,
    new: &'a [u8],
    rest: &'a [u8],
}

fn read_frame(bytes: &[u8]) -> Result<Read<'_>, String> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let torn = || format!("torn after {} bytes, left out", bytes.len());
    let end = bytes
        .iter()
        .position(|byte| *byte == b'\n')
        .ok_or_else(torn)?;
    let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
    let unreadable = |error| format!("not an exchange ({error})");
    let Version { version } = serde_json::from_slice(line).map_err(unreadable)?;
    if version > VERSION {
        return Err(format!(
            "version {version} is later than {VERSION}, the latest this program reads"
        ));
    }
    let head: ReadHead = serde_json::from_slice(line).map_err(unreadable)?;
    let count = delta::new_bytes(&head.parts).ok_or_else(torn)?;
    let (new, mut rest) = rest.split_at_checked(count).ok_or_else(torn)?;
    let new_at = end + 1;
    if version != 1 {
        let (sum, behind) = rest.split_at_checked(CHECKSUM_BYTES).ok_or_else(torn)?;
        if sum != checksum(&bytes[..new_at + count]) {
            return Err("damaged: its checksum is that of other bytes".to_owned());
        }
        rest = behind;
    }
    let rest = rest.strip_prefix(b"\n").ok_or_else(torn)?;
    Ok(Read {
        head,
        new_at,
        new,
        rest,
    })
}

#[cfg(test)]
mod tests;
