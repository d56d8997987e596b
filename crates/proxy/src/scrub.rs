//! Takes the endpoint's key out of what it answers. Some endpoints repeat the headers they got, and agents, records and
//! traces are no places for keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use hyper::header::{HeaderMap, HeaderValue};
use memchr::memmem::Finder;

use crate::secret::Secret;

/// What stands in for the key.
const MARK: &[u8] = b"***";
/// Keys are longer. What is shorter is a placeholder of a server that asks for none, and may be a word of an answer.
const KEY_BYTES_MIN: usize = 16;

/// Looks for one key.
#[derive(Debug)]
pub(crate) struct Scrub {
    finder: Finder<'static>,
    has_found: AtomicBool,
}

impl Scrub {
    /// `None` for what is no real key.
    pub(crate) fn of(key: &Secret) -> Option<Arc<Self>> {
        let key = key.expose().as_bytes();
        (key.len() >= KEY_BYTES_MIN).then(|| {
            Arc::new(Scrub {
                finder: Finder::new(key).into_owned(),
                has_found: AtomicBool::new(false),
            })
        })
    }

    /// Whether the key was found since this was last asked.
    pub(crate) fn take_found(&self) -> bool {
        self.has_found.load(Ordering::Relaxed) && self.has_found.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn headers(&self, headers: &mut HeaderMap) {
        for value in headers.values_mut() {
            if self.finder.find(value.as_bytes()).is_some() {
                let clean = self.replace(value.as_bytes());
                *value = HeaderValue::from_bytes(&clean).unwrap_or(HeaderValue::from_static("***"));
            }
        }
    }

    fn replace(&self, bytes: &[u8]) -> BytesMut {
        self.has_found.store(true, Ordering::Relaxed);
        let mut clean = BytesMut::with_capacity(bytes.len());
        let mut rest = bytes;
        while let Some(at) = self.finder.find(rest) {
            clean.extend_from_slice(&rest[..at]);
            clean.extend_from_slice(MARK);
            rest = &rest[at + self.finder.needle().len()..];
        }
        clean.extend_from_slice(rest);
        clean
    }

    /// Where the bytes end with the beginning of the key, if they do.
    fn torn_at(&self, bytes: &[u8]) -> Option<usize> {
        let key = self.finder.needle();
        let window = bytes.len().saturating_sub(key.len() - 1);
        let starts = memchr::memchr_iter(key[0], &bytes[window..]);
        let mut starts = starts.map(|at| window + at);
        starts.find(|at| key.starts_with(&bytes[*at..]))
    }
}

/// One body on its way.
#[derive(Debug)]
pub(crate) struct Scrubbed {
    scrub: Arc<Scrub>,
    /// What may be the beginning of the key, until it is known.
    held: Bytes,
}

impl Scrubbed {
    pub(crate) fn new(scrub: Arc<Scrub>) -> Self {
        Scrubbed {
            scrub,
            held: Bytes::new(),
        }
    }

    /// What of the body may go on. Bytes without a trace of the key are given back as they are.
    pub(crate) fn push(&mut self, bytes: Bytes) -> Bytes {
        let mut bytes = if self.held.is_empty() {
            bytes
        } else {
            [std::mem::take(&mut self.held), bytes].concat().into()
        };
        if self.scrub.finder.find(&bytes).is_some() {
            bytes = self.scrub.replace(&bytes).freeze();
        }
        if let Some(at) = self.scrub.torn_at(&bytes) {
            self.held = bytes.split_off(at);
        }
        bytes
    }

    /// What is left at the end of the body.
    pub(crate) fn finish(&mut self) -> Option<Bytes> {
        (!self.held.is_empty()).then(|| std::mem::take(&mut self.held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "sk-sk-0123456789abcdef";

    fn scrubbed(chunks: &[&str]) -> (String, bool) {
        let scrub = Scrub::of(&Secret::new(KEY)).unwrap();
        let mut body = Scrubbed::new(Arc::clone(&scrub));
        let mut seen = Vec::new();
        for chunk in chunks {
            seen.extend_from_slice(&body.push(Bytes::copy_from_slice(chunk.as_bytes())));
        }
        seen.extend(body.finish().unwrap_or_default());
        (String::from_utf8(seen).unwrap(), scrub.take_found())
    }

    fn torn(text: &str, size: usize) -> Vec<&str> {
        let chunks = text.as_bytes().chunks(size);
        chunks.map(|chunk| str::from_utf8(chunk).unwrap()).collect()
    }

    #[test]
    fn a_key_is_found_however_it_is_torn() {
        let text = format!("a {KEY} b {KEY}{KEY} sk-sk-sk-0123456789abcdef c");
        let expected = "a *** b ****** sk-*** c";
        for size in 1..text.len() {
            let chunks = torn(&text, size);
            assert_eq!(scrubbed(&chunks), (expected.to_owned(), true), "{size}");
        }
    }

    #[test]
    fn what_is_no_key_comes_through_byte_for_byte() {
        let text = "sk-sk-0123456789abcde sk- s sk-sk-0123456789abcdEf tail sk-sk-0123";
        for size in 1..text.len() {
            let chunks = torn(text, size);
            assert_eq!(scrubbed(&chunks), (text.to_owned(), false), "{size}");
        }
        assert!(Scrub::of(&Secret::new("intercepted")).is_none());
    }

    #[test]
    fn headers_are_looked_at_too() {
        let scrub = Scrub::of(&Secret::new(KEY)).unwrap();
        let mut headers = HeaderMap::new();
        let value = format!("req for {KEY}");
        headers.insert("request-id", HeaderValue::from_str(&value).unwrap());
        headers.insert("other", HeaderValue::from_static("as it is"));
        scrub.headers(&mut headers);
        assert_eq!(headers["request-id"], "req for ***");
        assert_eq!(headers["other"], "as it is");
    }
}
