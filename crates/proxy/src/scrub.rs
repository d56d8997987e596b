//! Removes the endpoint's key from its answers. Some endpoints echo the request's headers, and a key must not reach
//! agents, records and traces. Good answers are searched only for keys of at least `KEY_BYTES_MIN` bytes, texts of
//! errors also for shorter ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use hyper::header::{HeaderMap, HeaderValue};
use memchr::memmem::Finder;

use crate::secret::Secret;

/// Replaces the key.
const MARK: &[u8] = b"***";
/// Real keys are longer. A shorter one is a placeholder for a server without authentication, and may be an ordinary
/// word that occurs in answers.
const KEY_BYTES_MIN: usize = 16;
const HEADER_BYTES_MIN: usize = 8;

/// Finds and replaces one key.
#[derive(Debug)]
pub(crate) struct KeyScrubber {
    finder: Finder<'static>,
    has_found: AtomicBool,
}

impl KeyScrubber {
    /// `None` for a placeholder key.
    pub(crate) fn of(key: &Secret) -> Option<Arc<Self>> {
        Self::with(key, KEY_BYTES_MIN)
    }

    /// Of a header's value, which is no placeholder even if it is short; a very short one would be found in ordinary words.
    pub(crate) fn of_header(value: &Secret) -> Option<Arc<Self>> {
        Self::with(value, HEADER_BYTES_MIN)
    }

    fn with(secret: &Secret, bytes_min: usize) -> Option<Arc<Self>> {
        let bytes = secret.expose().as_bytes();
        (bytes.len() >= bytes_min).then(|| {
            Arc::new(KeyScrubber {
                finder: Finder::new(bytes).into_owned(),
                has_found: AtomicBool::new(false),
            })
        })
    }

    /// Whether the key was found since the last call of this function.
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

    /// The position of a prefix of the key at the end of the bytes, if there is one.
    fn partial_key_at(&self, bytes: &[u8]) -> Option<usize> {
        let key = self.finder.needle();
        let window = bytes.len().saturating_sub(key.len() - 1);
        let starts = memchr::memchr_iter(key[0], &bytes[window..]);
        let mut starts = starts.map(|at| window + at);
        starts.find(|at| key.starts_with(&bytes[*at..]))
    }
}

/// Scrubs one body chunk by chunk, of any number of keys, also where one is split between chunks.
#[derive(Debug)]
pub(crate) struct ScrubbedBody {
    /// One after the other; what one lets through goes to the next.
    keys: Vec<KeyInBody>,
}

impl ScrubbedBody {
    pub(crate) fn new(scrubbers: impl IntoIterator<Item = Arc<KeyScrubber>>) -> Self {
        let keys = scrubbers.into_iter().map(|scrub| KeyInBody {
            scrub,
            held: Bytes::new(),
        });
        ScrubbedBody {
            keys: keys.collect(),
        }
    }

    /// Returns the bytes that may be passed on. Chunks without any part of a key are returned unchanged.
    pub(crate) fn push(&mut self, bytes: Bytes) -> Bytes {
        self.keys
            .iter_mut()
            .fold(bytes, |bytes, key| key.push(bytes))
    }

    /// The held-back bytes at the end of the body.
    pub(crate) fn finish(&mut self) -> Option<Bytes> {
        let rest = self.keys.iter_mut().fold(Bytes::new(), |bytes, key| {
            let passed = key.push(bytes);
            [passed, std::mem::take(&mut key.held)].concat().into()
        });
        (!rest.is_empty()).then_some(rest)
    }
}

/// One key, looked for in one body.
#[derive(Debug)]
struct KeyInBody {
    scrub: Arc<KeyScrubber>,
    /// Bytes held back because they may be the beginning of the key.
    held: Bytes,
}

impl KeyInBody {
    fn push(&mut self, bytes: Bytes) -> Bytes {
        let mut bytes = if self.held.is_empty() {
            bytes
        } else {
            [std::mem::take(&mut self.held), bytes].concat().into()
        };
        if self.scrub.finder.find(&bytes).is_some() {
            bytes = self.scrub.replace(&bytes).freeze();
        }
        if let Some(at) = self.scrub.partial_key_at(&bytes) {
            self.held = bytes.split_off(at);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "sk-sk-0123456789abcdef";

    fn scrubbed(chunks: &[&str]) -> (String, bool) {
        let scrub = KeyScrubber::of(&Secret::new(KEY)).unwrap();
        let mut body = ScrubbedBody::new([Arc::clone(&scrub)]);
        let mut seen = Vec::new();
        for chunk in chunks {
            seen.extend_from_slice(&body.push(Bytes::copy_from_slice(chunk.as_bytes())));
        }
        seen.extend(body.finish().unwrap_or_default());
        (String::from_utf8(seen).unwrap(), scrub.take_found())
    }

    fn split(text: &str, size: usize) -> Vec<&str> {
        let chunks = text.as_bytes().chunks(size);
        chunks.map(|chunk| str::from_utf8(chunk).unwrap()).collect()
    }

    #[test]
    fn a_key_is_found_however_it_is_split() {
        let text = format!("a {KEY} b {KEY}{KEY} sk-sk-sk-0123456789abcdef c");
        let expected = "a *** b ****** sk-*** c";
        for size in 1..text.len() {
            let chunks = split(&text, size);
            assert_eq!(scrubbed(&chunks), (expected.to_owned(), true), "{size}");
        }
    }

    #[test]
    fn bytes_without_the_key_are_unchanged() {
        let text = "sk-sk-0123456789abcde sk- s sk-sk-0123456789abcdEf tail sk-sk-0123";
        for size in 1..text.len() {
            let chunks = split(text, size);
            assert_eq!(scrubbed(&chunks), (text.to_owned(), false), "{size}");
        }
        assert!(KeyScrubber::of(&Secret::new("intercepted")).is_none());
    }

    #[test]
    fn several_keys_are_found_however_they_are_split() {
        let keys = ["Bearer sekrit-12345", "sekrit-12345", "other-67"];
        let text = "Bearer sekrit-12345 sekrit-12345 Bearer other-67, Bearer sekrit-1234";
        for size in 1..text.len() {
            let scrubbers = keys.map(|key| KeyScrubber::of_header(&Secret::new(key)).unwrap());
            let mut body = ScrubbedBody::new(scrubbers);
            let mut seen = Vec::new();
            for chunk in text.as_bytes().chunks(size) {
                seen.extend_from_slice(&body.push(Bytes::copy_from_slice(chunk)));
            }
            seen.extend(body.finish().unwrap_or_default());
            let seen = String::from_utf8(seen).unwrap();
            assert_eq!(seen, "*** *** Bearer ***, Bearer sekrit-1234", "{size}");
        }
        assert!(KeyScrubber::of_header(&Secret::new("1234567")).is_none());
    }

    #[test]
    fn headers_are_scrubbed_too() {
        let scrub = KeyScrubber::of(&Secret::new(KEY)).unwrap();
        let mut headers = HeaderMap::new();
        let value = format!("req for {KEY}");
        headers.insert("request-id", HeaderValue::from_str(&value).unwrap());
        headers.insert("other", HeaderValue::from_static("as it is"));
        scrub.headers(&mut headers);
        assert_eq!(headers["request-id"], "req for ***");
        assert_eq!(headers["other"], "as it is");
    }
}
