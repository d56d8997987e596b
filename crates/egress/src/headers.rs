//! Headers of forwarded requests: the `Host` check and hop-by-hop headers. Pure.

use hyper::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::uri::Authority;
use rollcage_model::network::{Host, Target};

/// Headers that are not forwarded. Framing headers are generated again for the actual body.
const BETWEEN_NEIGHBOURS: [HeaderName; 8] = [
    CONNECTION,
    EXPECT,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];
const MORE_BETWEEN_NEIGHBOURS: [&str; 2] = ["keep-alive", "proxy-connection"];

pub(crate) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in BETWEEN_NEIGHBOURS.iter().chain(&named) {
        headers.remove(name);
    }
    for name in MORE_BETWEEN_NEIGHBOURS {
        headers.remove(name);
    }
}

/// `Content-Length` is generated again for the body that was parsed.
pub(crate) fn strip_request(headers: &mut HeaderMap) {
    strip(headers);
    headers.remove(CONTENT_LENGTH);
}

/// Whether a WebSocket upgrade is requested. No other upgrade is forwarded: requests over `h2c` would not be inspected.
pub(crate) fn wants_websocket(headers: &HeaderMap) -> bool {
    let text = |value: &HeaderValue| value.to_str().unwrap_or_default().to_ascii_lowercase();
    let mut connection = headers.get_all(CONNECTION).iter().map(text);
    let is_upgrade = connection.any(|value| value.split(',').any(|it| it.trim() == "upgrade"));
    let to: Vec<String> = headers.get_all(UPGRADE).iter().map(text).collect();
    is_upgrade && to == ["websocket"]
}

pub(crate) fn websocket(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// Why a request does not match the target of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misdirected {
    #[error("there is more than one Host header")]
    TwoHosts,
    #[error("its Host header is for another host")]
    Host,
    #[error("its URL is for another host")]
    Url,
}

/// Checks that `Host` and URL of a request match the target.
pub(crate) fn check_host(
    headers: &HeaderMap,
    url: Option<&Authority>,
    target: &Target,
) -> Result<(), Misdirected> {
    let mut hosts = headers.get_all(HOST).iter();
    if let Some(host) = hosts.next() {
        let host = host.to_str().ok().and_then(|host| host.parse().ok());
        if !host.is_some_and(|host: Authority| is_target(&host, target)) {
            return Err(Misdirected::Host);
        }
    }
    if hosts.next().is_some() {
        return Err(Misdirected::TwoHosts);
    }
    match url {
        Some(url) if !is_target(url, target) => Err(Misdirected::Url),
        _ => Ok(()),
    }
}

/// A missing port matches; a given one must be the target's.
fn is_target(authority: &Authority, target: &Target) -> bool {
    let host = Host::parse(authority.host());
    let has_user = authority.as_str().contains('@');
    let rest = authority.as_str().strip_prefix(authority.host());
    let has_port = rest != Some("");
    let is_port = !has_port || authority.port_u16() == Some(target.port);
    !has_user && is_port && host.as_ref() == Some(&target.host)
}

/// The value of `Host` for a target.
pub(crate) fn host_value(target: &Target) -> Option<HeaderValue> {
    let whole = target.to_string();
    let text = match target.port {
        80 => whole.strip_suffix(":80").unwrap_or(&whole),
        _ => &whole,
    };
    HeaderValue::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let headers = headers.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        headers.collect()
    }

    #[track_caller]
    fn check(hosts: &[&'static str], url: Option<&str>, expect: Result<(), Misdirected>) {
        let target = Target {
            host: Host::parse("a.example").unwrap(),
            port: 8080,
        };
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, HeaderValue::from_static(host));
        }
        let url = url.map(|url| url.parse().unwrap());
        assert_eq!(check_host(&headers, url.as_ref(), &target), expect);
    }

    #[test]
    fn a_request_is_for_the_host_of_its_connection() {
        check(&[], None, Ok(()));
        check(&["A.example."], None, Ok(()));
        check(&["a.example:8080"], Some("a.example"), Ok(()));
        check(&["a.example:80"], None, Err(Misdirected::Host));
        check(&["a.example:"], None, Err(Misdirected::Host));
        check(&["b.example"], None, Err(Misdirected::Host));
        check(&["a.example@b.example"], None, Err(Misdirected::Host));
        check(&["b.example@a.example"], None, Err(Misdirected::Host));
        check(&["a.example/b"], None, Err(Misdirected::Host));
        check(&[""], None, Err(Misdirected::Host));
        check(
            &["a.example", "a.example"],
            None,
            Err(Misdirected::TwoHosts),
        );
        check(
            &["a.example", "b.example"],
            None,
            Err(Misdirected::TwoHosts),
        );
        check(&["a.example"], Some("b.example"), Err(Misdirected::Url));
    }

    #[test]
    fn what_is_between_neighbours_ends_here() {
        let mut headers = map(&[
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("proxy-authorization", "Basic x"),
            ("proxy-connection", "keep-alive"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("upgrade", "h2c"),
            ("accept", "*/*"),
        ]);
        strip_request(&mut headers);
        assert_eq!(headers, map(&[("accept", "*/*")]));
    }

    #[test]
    fn only_a_websocket_replaces_http() {
        let asks = |value| {
            wants_websocket(&map(&[
                ("connection", "keep-alive, Upgrade"),
                ("upgrade", value),
            ]))
        };
        assert!(asks("WebSocket"));
        assert!(!asks("h2c") && !asks("h2c, websocket"));
        assert!(!wants_websocket(&map(&[("upgrade", "websocket")])));
    }
}
