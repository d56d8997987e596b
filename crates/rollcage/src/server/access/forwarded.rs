//! How a browser reaches this server, as the request tells, also behind proxies.

use axum::http::{HeaderMap, header};

/// The host and port that the browser connects to, also behind a proxy.
pub(super) fn own_authority(headers: &HeaderMap) -> Option<&str> {
    let forwarded = first_value(headers, "x-forwarded-host");
    forwarded.or_else(|| headers.get(header::HOST)?.to_str().ok())
}

/// Whether the browser connects over TLS, be it to a proxy.
pub(super) fn is_https(headers: &HeaderMap) -> bool {
    let forwarded = first_value(headers, "forwarded");
    let mut pairs = forwarded.into_iter().flat_map(|value| value.split(';'));
    let is_said = pairs.any(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or_default();
        name.trim().eq_ignore_ascii_case("proto")
            && value.trim().trim_matches('"').eq_ignore_ascii_case("https")
    });
    let proto = first_value(headers, "x-forwarded-proto");
    is_said || proto.is_some_and(|proto| proto.eq_ignore_ascii_case("https"))
}

/// The first of the values that proxies append to; it is of the one that the browser talks to.
fn first_value<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let value = headers.get(name)?.to_str().ok()?;
    let first = value.split(',').next()?.trim();
    Some(first).filter(|first| !first.is_empty())
}
