//! Web origins: whose pages may use a server.

use std::str::FromStr;

use axum::http::{HeaderMap, header};

use super::forwarded::{is_https, own_authority};
use super::host::is_loopback_authority;

/// Scheme, host and port of a web page, as browsers send them in `Origin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WebOrigin(String);

impl FromStr for WebOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, authority) = text.split_once("://").unwrap_or_default();
        let usual_port = match scheme {
            "http" => ":80",
            "https" => ":443",
            _ => "",
        };
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._:[]".contains(letter);
        match !usual_port.is_empty() && !authority.is_empty() && authority.chars().all(is_plain) {
            true => {
                let authority = authority.strip_suffix(usual_port).unwrap_or(authority);
                let authority = authority.to_ascii_lowercase();
                Ok(WebOrigin(format!("{scheme}://{authority}")))
            }
            false => Err(
                "must be an origin such as https://example.org or http://localhost:3000".to_owned(),
            ),
        }
    }
}

/// The origin that a browser says a page has. A page without one, as in a sandboxed frame, is nobody's.
pub(super) fn of(headers: &HeaderMap) -> Option<WebOrigin> {
    headers.get(header::ORIGIN)?.to_str().ok()?.parse().ok()
}

/// Whether it is this server's own, as the request calls it. A proxy that does not say whether browsers use TLS may do
/// either; on loopback there is none.
pub(super) fn is_own(origin: &WebOrigin, headers: &HeaderMap) -> bool {
    let Some(authority) = own_authority(headers) else {
        return false;
    };
    let schemes: &[&str] = match is_https(headers) {
        true => &["https"],
        false if is_loopback_authority(authority) => &["http"],
        false => &["http", "https"],
    };
    let named = |scheme: &&str| format!("{scheme}://{authority}").parse().ok();
    schemes
        .iter()
        .filter_map(named)
        .any(|own: WebOrigin| own == *origin)
}
