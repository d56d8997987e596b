//! The opening handshake of a WebSocket (RFC 6455, section 4). Extensions and subprotocols are declined.

use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::Response;
use base64::Engine;
use sha1::{Digest, Sha1};

/// Whether a request asks for an upgrade to a WebSocket.
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    let has = |name: header::HeaderName, wanted: &str| {
        let values = headers.get_all(name).into_iter();
        values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|word| word.trim().eq_ignore_ascii_case(wanted))
    };
    has(header::CONNECTION, "upgrade") && has(header::UPGRADE, "websocket")
}

/// The first value of a query parameter.
pub(crate) fn query_value(uri: &Uri, name: &str) -> Option<String> {
    let query = uri.query()?;
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.into_owned())
}

/// The response that completes the handshake, or what is wrong with the request.
pub(crate) fn answer(headers: &HeaderMap) -> Result<Response, &'static str> {
    let is_version_13 = headers
        .get(header::SEC_WEBSOCKET_VERSION)
        .is_some_and(|version| version == "13");
    let key = headers.get(header::SEC_WEBSOCKET_KEY);
    let Some(key) = key.filter(|_| is_version_13) else {
        return Err("a WebSocket handshake needs Sec-WebSocket-Key and Sec-WebSocket-Version: 13");
    };
    let accept = HeaderValue::from_str(&accept_key(key.as_bytes()))
        .map_err(|_| "Sec-WebSocket-Key cannot be read")?;
    let mut response = Response::default();
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    Ok(response)
}

/// The value of `Sec-WebSocket-Accept` for a client's key.
fn accept_key(key: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(key);
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    base64::engine::general_purpose::STANDARD.encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_key_matches_the_example_of_the_rfc() {
        let accept = accept_key(b"dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
