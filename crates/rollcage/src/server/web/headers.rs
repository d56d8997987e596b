//! The headers of the page: what it may load, and who may show it.

use std::str::FromStr;

use axum::http::{HeaderName, HeaderValue, header};

/// Nothing but our own files: no inline code, no other host, no plug-ins.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'";

/// A site that may show the page in a frame, such as `https://huggingface.co` or `https://*.example.org:8443`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrameAncestor(String);

impl FrameAncestor {
    /// Where a hosted Space is shown. Other Spaces are other people's.
    pub(crate) fn of_spaces() -> Self {
        FrameAncestor("https://huggingface.co".to_owned())
    }
}

impl FromStr for FrameAncestor {
    type Err = String;

    /// It becomes part of a header, so nothing but a scheme, a host and a port is taken.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim_end_matches('/');
        let (scheme, authority) = text.split_once("://").unwrap_or_default();
        let (host, port) = authority.split_once(':').unwrap_or((authority, "1"));
        let name = host.strip_prefix("*.").unwrap_or(host);
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-.".contains(letter);
        let is_site = matches!(scheme, "http" | "https")
            && !name.is_empty()
            && name.chars().all(is_plain)
            && port.parse::<u16>().is_ok();
        match is_site {
            true => Ok(FrameAncestor(text.to_owned())),
            false => Err(
                "must be a site such as https://example.org or https://*.example.org".to_owned(),
            ),
        }
    }
}

/// The headers of every file.
pub(super) fn of_page(ancestors: &[FrameAncestor]) -> Vec<(HeaderName, HeaderValue)> {
    let mut policy = POLICY.to_owned();
    for FrameAncestor(site) in ancestors {
        policy.push(' ');
        policy.push_str(site);
    }
    let mut headers = vec![
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
        (
            header::REFERRER_POLICY,
            HeaderValue::from_static("no-referrer"),
        ),
    ];
    if let Ok(policy) = HeaderValue::try_from(policy) {
        headers.push((header::CONTENT_SECURITY_POLICY, policy));
    }
    headers
}

/// Keeps pages that open this one apart from it. Browsers heed it over TLS and on loopback, and complain elsewhere.
pub(super) fn opener_policy() -> (HeaderName, HeaderValue) {
    let name = HeaderName::from_static("cross-origin-opener-policy");
    (name, HeaderValue::from_static("same-origin"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sites_may_show_the_page() {
        let read = |text: &str| text.parse::<FrameAncestor>().map(|site| site.0);
        for site in [
            "https://example.org",
            "http://localhost:3000",
            "https://*.example.org:8443",
        ] {
            assert_eq!(read(site).as_deref(), Ok(site));
        }
        assert_eq!(
            read("https://example.org/").as_deref(),
            Ok("https://example.org")
        );
        for wrong in [
            "",
            "*",
            "example.org",
            "https://",
            "https://*",
            "https://a b",
            "https://a;script-src *",
            "https://a:port",
            "javascript://a",
            "https://a/path",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
