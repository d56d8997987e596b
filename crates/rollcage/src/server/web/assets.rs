//! The page's files. They are looked up in a table, so no path leads out of it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use axum::http::{HeaderMap, header};
use flate2::Compression;
use flate2::write::GzEncoder;

/// What the build of `ui/` made. A development build of the program reads the files when it starts.
#[derive(rust_embed::RustEmbed)]
#[folder = "../../ui/dist"]
struct Built;

/// A smaller file is not worth compressing.
const GZIP_BYTES_MIN: usize = 1024;
/// Of a file's hash, in its tag.
const TAG_BYTES: usize = 16;

pub(super) fn file(path: &str) -> Option<Cow<'static, [u8]>> {
    Built::get(path).map(|file| file.data)
}

/// One file.
pub(super) struct Asset {
    pub(super) content_type: &'static str,
    pub(super) bytes: Bytes,
    pub(super) is_compressible: bool,
    tag: String,
    gzip: OnceLock<Bytes>,
}

impl Asset {
    pub(super) fn new(path: &str, data: Cow<'static, [u8]>, hash: &[u8]) -> Self {
        let bytes = match data {
            Cow::Borrowed(data) => Bytes::from_static(data),
            Cow::Owned(data) => Bytes::from(data),
        };
        let (content_type, is_text) = content_type(path);
        let mut tag = String::new();
        for byte in hash.iter().take(TAG_BYTES) {
            // Writing to a string cannot fail.
            let _ = write!(tag, "{byte:02x}");
        }
        Asset {
            content_type,
            is_compressible: is_text && bytes.len() >= GZIP_BYTES_MIN,
            bytes,
            tag,
            gzip: OnceLock::new(),
        }
    }

    /// Strong, so it is another one for the compressed bytes.
    pub(super) fn etag(&self, is_gzip: bool) -> String {
        match is_gzip {
            true => format!("\"{}-gzip\"", self.tag),
            false => format!("\"{}\"", self.tag),
        }
    }

    /// Compressed when it is first asked for, on a thread that may take its time.
    pub(super) async fn gzip(self: &Arc<Self>) -> Bytes {
        if let Some(known) = self.gzip.get() {
            return known.clone();
        }
        let this = Arc::clone(self);
        let made = tokio::task::spawn_blocking(move || {
            let made = this.gzip.get_or_init(|| compress(&this.bytes));
            made.clone()
        });
        made.await.unwrap_or_else(|_| compress(&self.bytes))
    }
}

fn compress(bytes: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // Writing to memory cannot fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default().into()
}

/// All files by path.
#[derive(Default)]
pub(super) struct Assets(HashMap<String, Arc<Asset>>);

impl Assets {
    pub(super) fn built_in() -> Self {
        let files = Built::iter().filter_map(|path| {
            let file = Built::get(&path)?;
            let asset = Asset::new(&path, file.data, &file.metadata.sha256_hash());
            Some((path.into_owned(), Arc::new(asset)))
        });
        Assets(files.collect())
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &'static [u8])]) -> Self {
        use sha2::Digest;
        let asset = |(path, data): &(&str, &'static [u8])| {
            let hash = sha2::Sha256::digest(data);
            let asset = Asset::new(path, Cow::Borrowed(*data), &hash);
            ((*path).to_owned(), Arc::new(asset))
        };
        Assets(files.iter().map(asset).collect())
    }

    pub(super) fn find(&self, path: &str) -> Option<&Arc<Asset>> {
        self.0.get(path)
    }
}

/// The type, and whether it is text that compresses well.
fn content_type(path: &str) -> (&'static str, bool) {
    match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => ("text/html; charset=utf-8", true),
        Some("js" | "mjs") => ("text/javascript; charset=utf-8", true),
        Some("css") => ("text/css; charset=utf-8", true),
        Some("json" | "map") => ("application/json", true),
        Some("svg") => ("image/svg+xml", true),
        Some("txt") => ("text/plain; charset=utf-8", true),
        Some("png") => ("image/png", false),
        Some("ico") => ("image/x-icon", false),
        Some("woff2") => ("font/woff2", false),
        _ => ("application/octet-stream", false),
    }
}

/// Whether a request's `Accept-Encoding` allows gzip.
pub(super) fn takes_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).into_iter();
    let mut of_any = false;
    for part in values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
    {
        let (name, weight) = part.split_once(';').unwrap_or((part, ""));
        let weight = weight.trim().trim_start_matches("q=").parse::<f32>();
        let is_taken = weight.is_err() || weight.is_ok_and(|weight| weight > 0.0);
        match name.trim() {
            name if name.eq_ignore_ascii_case("gzip") => return is_taken,
            "*" => of_any = is_taken,
            _ => {}
        }
    }
    of_any
}

/// Whether the client has the file with this tag already.
pub(super) fn is_known(headers: &HeaderMap, etag: &str) -> bool {
    let values = headers.get_all(header::IF_NONE_MATCH).into_iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|tag| tag.trim().trim_start_matches("W/"))
        .any(|tag| tag == etag || tag == "*")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_sent_to_those_who_take_it() {
        for (accepted, expected) in [
            ("gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("br, *", true),
            ("gzip;q=0, *", false),
            ("*;q=0", false),
            ("br", false),
            ("gzipped", false),
            ("", false),
        ] {
            let pair = (header::ACCEPT_ENCODING, accepted.parse().unwrap());
            let headers = HeaderMap::from_iter([pair]);
            assert_eq!(takes_gzip(&headers), expected, "{accepted}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }
}
