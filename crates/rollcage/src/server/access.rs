//! Access control: tokens, a browser's sign-in, the checks of a server without tokens, and a limit on concurrent requests
//! per client.
//!
//! A token in a header always counts. The same token in a cookie, which browsers send whoever makes them ask, counts for
//! requests of our own page only: see [`Access::admit`].

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::Body as _;

use rollcage_model::network::address::Block;
use rollcage_proxy::secret::{Secret, is_same_key};

use super::client_limit::ClientLimit;
use super::reply;

pub(crate) mod cookie;
mod denied;
mod forwarded;
mod host;
mod origin;
mod requester;
mod tries;

pub(crate) use denied::AccessDenied;
pub(crate) use host::HostName;
use host::is_loopback_authority;
pub(crate) use origin::WebOrigin;
use requester::{Requester, only_reads};
pub(crate) use tries::Tries;

/// A trainer makes hundreds of concurrent calls from one machine; more than this is a mistake or an attack.
const REQUESTS_PER_CLIENT_MAX: usize = 1024;

/// The owner of a request: in the extensions of every admitted request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner(pub(crate) Arc<str>);

/// Where a request comes from: in the extensions of every request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// A token and the owner it authenticates.
#[derive(Clone, Debug)]
pub(crate) struct AccessToken {
    pub(crate) owner: String,
    pub(crate) value: Secret,
}

/// How a server authenticates its callers.
pub(crate) enum AccessPolicy {
    /// By any one of these tokens.
    Tokens(Vec<AccessToken>),
    /// Not at all: only this machine can connect. Web pages in its browsers can connect too; they are recognised by
    /// their headers and refused.
    Loopback,
    /// Not at all: whoever can reach the port may call, by an address or by one of these names.
    Anyone(Vec<HostName>),
}

pub(crate) struct Access {
    policy: AccessPolicy,
    /// Whose pages may use a server without tokens, beside our own.
    origins: Vec<WebOrigin>,
    /// Whether the page is served, whose files need no token.
    has_page: bool,
    requests: ClientLimit<RequestSource>,
    tries: Tries,
}

/// Why a sign-in is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SignInError {
    WrongToken,
    /// Too many tries; how long to wait.
    Wait(Duration),
}

/// The client that a request is counted for.
#[derive(Clone, PartialEq, Eq, Hash)]
enum RequestSource {
    Owner(Arc<str>),
    Address(IpAddr),
}

impl Access {
    pub(crate) fn new(policy: AccessPolicy, has_page: bool) -> Self {
        Access {
            policy,
            origins: Vec::new(),
            has_page,
            requests: ClientLimit::new(REQUESTS_PER_CLIENT_MAX),
            tries: Tries::default(),
        }
    }

    /// The same with what the operator knows of the web around it: whose pages may use it, and its own proxies.
    pub(crate) fn with_web(self, origins: Vec<WebOrigin>, proxies: Vec<Block>) -> Self {
        Access {
            origins,
            tries: Tries::behind(proxies),
            ..self
        }
    }

    pub(crate) fn needs_token(&self) -> bool {
        matches!(self.policy, AccessPolicy::Tokens(_))
    }

    /// The owner of a request, or why it is refused.
    ///
    /// Browsers attach a cookie to what any page makes them send. A request with nothing but the cookie counts if our
    /// own page made it; if it only reads, also if the user did, or if the browser says nothing, as over plain HTTP:
    /// what it reads is shown to no other page. WebSockets are for our own page only.
    pub(crate) fn admit(&self, request: &Request) -> Result<Owner, AccessDenied> {
        let requester = Requester::of(request.headers());
        match &self.policy {
            AccessPolicy::Anyone(names) if !host::is_own(request.headers(), names) => {
                Err(AccessDenied::UnknownHost)
            }
            AccessPolicy::Anyone(_) => match requester {
                Requester::OtherPage
                    if !only_reads(request) && !is_among(request.headers(), &self.origins) =>
                {
                    Err(AccessDenied::ForeignPage)
                }
                _ => Ok(local_owner()),
            },
            AccessPolicy::Loopback => {
                check_local_caller(request, &self.origins).map(|()| local_owner())
            }
            AccessPolicy::Tokens(tokens) => {
                if let Some(owner) = self.owner_by_header(tokens, request)? {
                    return Ok(owner);
                }
                let owner = owner_of(tokens, &cookie::tokens(request.headers()));
                let owner = owner.ok_or(AccessDenied::NoToken)?;
                match requester {
                    Requester::OwnPage => Ok(owner),
                    Requester::User | Requester::Unknown if only_reads(request) => Ok(owner),
                    _ => Err(AccessDenied::CookieAlone),
                }
            }
        }
    }

    /// The owner of a token that a program sent, if it sent a right one. Wrong ones are counted.
    fn owner_by_header(
        &self,
        tokens: &[AccessToken],
        request: &Request,
    ) -> Result<Option<Owner>, AccessDenied> {
        let offered = offered_tokens(request);
        if offered.is_empty() {
            return Ok(None);
        }
        let owner = owner_of(tokens, &offered);
        let peer = request.extensions().get::<Peer>().map(|peer| peer.0.ip());
        let client = self.tries.client(peer, request.headers());
        let name = owner.as_ref().map(|Owner(name)| &**name);
        let judged = self.tries.judge(client, name, Instant::now());
        judged.map_err(AccessDenied::Wait)?;
        Ok(owner)
    }

    /// The owner of a token that a browser wants to keep.
    pub(crate) fn sign_in(
        &self,
        token: &str,
        peer: Option<Peer>,
        headers: &HeaderMap,
    ) -> Result<Owner, SignInError> {
        let AccessPolicy::Tokens(tokens) = &self.policy else {
            return Ok(local_owner());
        };
        let client = self.tries.client(peer.map(|peer| peer.0.ip()), headers);
        let now = Instant::now();
        if let Some(wait) = self.tries.wait(client, now) {
            return Err(SignInError::Wait(wait));
        }
        owner_of(tokens, &[token.to_owned()]).ok_or_else(|| {
            self.tries.add(client, now);
            SignInError::WrongToken
        })
    }

    /// Whether a request needs no token: the page's files, which hold no secrets, and its sign-in.
    fn is_public(&self, request: &Request) -> bool {
        match request.uri().path() {
            "/v1/session" => {
                only_reads(request) || Requester::of(request.headers()) != Requester::OtherPage
            }
            "/web/metadata" | "/web/state" => false,
            path => {
                let is_page = path == "/" || path == "/web" || path.starts_with("/web/");
                self.has_page && is_page && only_reads(request)
            }
        }
    }
}

fn owner_of(tokens: &[AccessToken], offered: &[String]) -> Option<Owner> {
    let mut found = None;
    // Every token is compared, so that timing does not reveal which one matched.
    for token in tokens {
        let expected = token.value.expose().as_bytes();
        if offered
            .iter()
            .any(|offer| is_same_key(offer.as_bytes(), expected))
        {
            found = Some(Owner(token.owner.as_str().into()));
        }
    }
    found
}

/// Middleware: admits a request to its handler, or refuses it.
pub(crate) async fn check(
    State(access): State<Arc<Access>>,
    mut request: Request,
    next: Next,
) -> Response {
    // These reveal no secrets, and load balancers that poll them have no token.
    if matches!(request.uri().path(), "/health" | "/ready") {
        request.extensions_mut().insert(local_owner());
        return next.run(request).await;
    }
    let admitted = access.admit(&request);
    let is_known = admitted.is_ok() && access.needs_token();
    let owner = match admitted {
        Ok(owner) => owner,
        Err(AccessDenied::NoToken | AccessDenied::CookieAlone) if access.is_public(&request) => {
            local_owner()
        }
        Err(refused) => return refused.response(request.uri().path()),
    };
    let client = match request.extensions().get::<Peer>() {
        Some(peer) if !is_known => RequestSource::Address(peer.0.ip()),
        _ => RequestSource::Owner(Arc::clone(&owner.0)),
    };
    let Some(slot) = access.requests.take(&client) else {
        let text = format!("more than {REQUESTS_PER_CLIENT_MAX} requests at once; wait for some");
        let mut response = reply::detail(StatusCode::TOO_MANY_REQUESTS, &text);
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        return response;
    };
    request.extensions_mut().insert(owner);
    let response = next.run(request).await;
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    // A streamed body holds the client's slot until its end.
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _held = &slot;
            frame
        }))
    })
}

fn local_owner() -> Owner {
    Owner("local".into())
}

/// Every token that a request carries. Browsers cannot set headers on a WebSocket, so its query may carry one too.
fn offered_tokens(request: &Request) -> Vec<String> {
    let header = |name: &str| {
        let value = request.headers().get(name)?;
        value.to_str().ok()
    };
    let mut offered = Vec::new();
    if let Some((scheme, token)) = header("authorization").and_then(|value| value.split_once(' '))
        && scheme.eq_ignore_ascii_case("bearer")
    {
        offered.push(token.trim().to_owned());
    }
    offered.extend(header("x-api-key").map(str::to_owned));
    if super::websocket::handshake::is_websocket(request.headers()) {
        offered.extend(super::websocket::handshake::query_value(
            request.uri(),
            "token",
        ));
    }
    offered
}

/// Refuses web pages of other origins, also those of other ports. They can make a browser on this machine call us, across
/// origins or under a name that resolves to loopback (DNS rebinding); the `Host` and `Origin` headers reveal it. A link to
/// us on another page only reads, and has no `Origin`.
pub(crate) fn check_local_caller<B>(
    request: &axum::http::Request<B>,
    origins: &[WebOrigin],
) -> Result<(), AccessDenied> {
    let headers = request.headers();
    let host = headers.get(header::HOST).map(|value| value.to_str());
    if let Some(host) = host
        && !host.is_ok_and(is_loopback_authority)
    {
        return Err(AccessDenied::ForeignHost);
    }
    let is_link = only_reads(request) && !headers.contains_key(header::ORIGIN);
    match Requester::of(headers) {
        Requester::OtherPage if !is_link && !is_among(headers, origins) => {
            Err(AccessDenied::ForeignOrigin)
        }
        _ => Ok(()),
    }
}

fn is_among(headers: &HeaderMap, origins: &[WebOrigin]) -> bool {
    origin::of(headers).is_some_and(|origin| origins.contains(&origin))
}

/// Whether the browser's connection is one that others cannot listen to: TLS, or this machine's own.
pub(crate) fn is_trustworthy(headers: &HeaderMap) -> bool {
    let authority = forwarded::own_authority(headers);
    forwarded::is_https(headers) || authority.is_some_and(is_loopback_authority)
}

/// Whether the content type is JSON. Browsers do not let a page of another origin send these types without a preflight.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let essence = content_type.and_then(|value| value.split(';').next());
    let essence = essence.unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json"
        || essence.starts_with("application/") && essence.ends_with("+json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(tokens: &[(&str, &str)]) -> Access {
        let token = |(owner, value): &(&str, &str)| AccessToken {
            owner: (*owner).to_owned(),
            value: Secret::new(*value),
        };
        Access::new(
            AccessPolicy::Tokens(tokens.iter().map(token).collect()),
            true,
        )
    }

    fn request(uri: &str, headers: &[(&str, &str)]) -> Request {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    fn owner(access: &Access, uri: &str, headers: &[(&str, &str)]) -> Option<String> {
        let admitted = access.admit(&request(uri, headers)).ok();
        admitted.map(|owner| owner.0.to_string())
    }

    #[test]
    fn a_token_says_whose_call_it_is() {
        let access = access(&[("TEAM_A", "alpha-token"), ("TEAM_B", "beta-token")]);
        let who = |headers: &[(&str, &str)]| owner(&access, "/mcp", headers);
        assert_eq!(
            who(&[("authorization", "Bearer beta-token")]).as_deref(),
            Some("TEAM_B")
        );
        assert_eq!(
            who(&[("authorization", "bearer alpha-token")]).as_deref(),
            Some("TEAM_A")
        );
        assert_eq!(
            who(&[("x-api-key", "alpha-token")]).as_deref(),
            Some("TEAM_A")
        );
        assert_eq!(who(&[("authorization", "Basic alpha-token")]), None);
        assert_eq!(who(&[("x-api-key", "alpha-toke")]), None);
        assert_eq!(who(&[]), None);
    }

    #[test]
    fn a_query_token_counts_for_websockets_alone() {
        let access = access(&[("T", "a+b c")]);
        let uri = "/ws?token=a%2Bb+c";
        let upgrade = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
        ];
        assert_eq!(owner(&access, uri, &upgrade).as_deref(), Some("T"));
        assert_eq!(owner(&access, uri, &[]), None);
    }

    #[test]
    fn a_web_page_of_another_origin_cannot_use_a_server_without_tokens() {
        let access = Access::new(AccessPolicy::Loopback, true);
        let is_in = |headers: &[(&str, &str)]| owner(&access, "/mcp", headers).is_some();
        assert!(is_in(&[("host", "127.0.0.1:8000")]));
        assert!(is_in(&[("host", "LOCALHOST")]));
        assert!(is_in(&[
            ("host", "[::1]:8000"),
            ("origin", "http://[::1]:8000")
        ]));
        assert!(!is_in(&[("host", "evil.example:8000")]));
        assert!(!is_in(&[("host", "127.0.0.1.evil.example")]));
        assert!(!is_in(&[
            ("host", "localhost:8000"),
            ("origin", "https://evil.example")
        ]));
        assert!(!is_in(&[("host", "localhost:8000"), ("origin", "null")]));
    }

    #[test]
    fn a_page_of_another_port_is_another_origin() {
        let plain = Access::new(AccessPolicy::Loopback, true);
        let allowing = Access::new(AccessPolicy::Loopback, true)
            .with_web(vec!["http://LOCALHOST:3000".parse().unwrap()], Vec::new());
        let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
        for (origin, own, allowed) in [
            ("http://localhost:8000", true, true),
            ("http://localhost:3000", false, true),
            ("http://127.0.0.1:8000", false, false),
            ("https://localhost:8000", false, false),
            ("http://localhost", false, false),
            ("null", false, false),
            ("file://", false, false),
        ] {
            let headers = [("host", "localhost:8000"), ("origin", origin)];
            let socket = [&headers[..], &upgrade[..]].concat();
            for (access, expected) in [(&plain, own), (&allowing, allowed)] {
                for headers in [&headers[..], &socket[..]] {
                    let is_in = owner(access, "/ws", headers).is_some();
                    assert_eq!(is_in, expected, "{origin} {headers:?}");
                }
            }
        }
        // A link to the page, and an image on another page.
        let link = [("host", "localhost:8000"), ("sec-fetch-site", "cross-site")];
        assert!(owner(&plain, "/web/", &link).is_some());
        let socket = [&link[..], &upgrade[..]].concat();
        assert_eq!(owner(&plain, "/ws", &socket), None);
    }

    #[test]
    fn an_origin_is_an_origin_alone() {
        for wrong in [
            "",
            "localhost:3000",
            "ftp://a",
            "http://",
            "http://a/b",
            "https://*.a.example",
        ] {
            assert!(wrong.parse::<WebOrigin>().is_err(), "{wrong}");
        }
    }
}
