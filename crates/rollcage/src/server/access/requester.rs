//! Who makes a request, as its browser tells: our own page, another page, or the user. Scripts of a page cannot set
//! these headers.

use axum::http::{HeaderMap, Method, Request, header};

use super::origin;
use crate::server::websocket::handshake;

/// The maker of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requester {
    /// A page of this server.
    OwnPage,
    /// A page of any other origin.
    OtherPage,
    /// Whoever uses the browser: an address that was typed, a bookmark.
    User,
    /// No browser; or one that tells nothing when it reads over plain HTTP.
    Unknown,
}

impl Requester {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        if let Some(site) = headers.get("sec-fetch-site") {
            return match site.as_bytes() {
                b"same-origin" => Requester::OwnPage,
                b"none" => Requester::User,
                _ => Requester::OtherPage,
            };
        }
        match origin::of(headers) {
            Some(origin) if origin::is_own(&origin, headers) => Requester::OwnPage,
            None if !headers.contains_key(header::ORIGIN) => Requester::Unknown,
            Some(_) | None => Requester::OtherPage,
        }
    }
}

/// Whether a request can change nothing. Its answer cannot be read by pages of other origins either, since we send no
/// CORS headers; those do not concern WebSockets.
pub(crate) fn only_reads<B>(request: &Request<B>) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD)
        && !handshake::is_websocket(request.headers())
}

#[cfg(test)]
mod tests {
    use super::super::forwarded::is_https;
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (name.parse().unwrap(), value.parse().unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn browsers_tell_who_asks() {
        let of = |pairs: &[_]| Requester::of(&headers(pairs));
        assert_eq!(of(&[("sec-fetch-site", "same-origin")]), Requester::OwnPage);
        assert_eq!(of(&[("sec-fetch-site", "none")]), Requester::User);
        for site in ["same-site", "cross-site", "", "Same-Origin"] {
            let origin = ("origin", "http://a.example");
            let both = [("sec-fetch-site", site), ("host", "a.example"), origin];
            assert_eq!(of(&both), Requester::OtherPage, "{site}");
        }
        assert_eq!(of(&[("host", "a.example")]), Requester::Unknown);
    }

    #[test]
    fn older_browsers_tell_by_the_origin() {
        for (origin, host, forwarded, is_own) in [
            ("http://a.example", "a.example", "", true),
            ("http://A.example:80", "a.EXAMPLE", "", true),
            ("https://a.example", "a.example:443", "", true),
            ("http://127.0.0.1:8000", "127.0.0.1:8000", "", true),
            ("http://[::1]:8000", "[::1]:8000", "", true),
            ("https://a.example", "10.0.0.1:8000", "a.example", true),
            ("https://a.example", "10.0.0.1", "a.example, inner", true),
            ("https://a.example", "a.example", "b.example", false),
            ("http://a.example:8001", "a.example:8000", "", false),
            ("http://b.example", "a.example", "", false),
            ("http://a.example.b.example", "a.example", "", false),
            ("null", "a.example", "", false),
            ("file://", "", "", false),
        ] {
            let pairs = [
                ("origin", origin),
                ("host", host),
                ("x-forwarded-host", forwarded),
            ];
            let expected = match is_own {
                true => Requester::OwnPage,
                false => Requester::OtherPage,
            };
            let of = Requester::of(&headers(&pairs));
            assert_eq!(of, expected, "{origin} {host} {forwarded}");
        }
    }

    #[test]
    fn proxies_tell_whether_the_browser_uses_tls() {
        for (name, value, expected) in [
            ("x-forwarded-proto", "https", true),
            ("x-forwarded-proto", "HTTPS, http", true),
            ("x-forwarded-proto", "http, https", false),
            ("forwarded", "for=1.2.3.4;proto=https;host=a", true),
            ("forwarded", "Proto=\"https\"", true),
            ("forwarded", "proto=http, proto=https", false),
            ("host", "a.example:443", false),
        ] {
            assert_eq!(is_https(&headers(&[(name, value)])), expected, "{value}");
        }
    }
}
