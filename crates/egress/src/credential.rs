//! The machine's passwords for its package mirrors, which are added to plain HTTP requests here, so that they never enter a
//! sandbox. Whoever has one may do all that the machine may, so it is added to requests that read a package and to nothing
//! else: neither to other paths or methods of the same server, nor where a header could make it another request.

use hyper::body::Body;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, AUTHORIZATION, CACHE_CONTROL, HOST, HeaderMap,
    HeaderName, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, PRAGMA, RANGE, USER_AGENT,
};
use hyper::{Method, Request};
use rollcage_mirrors::{Reading, Reads, Search};
use rollcage_model::network::{Host, Target};

use crate::headers;

/// Of requests with a password, these headers are passed on. Others may replace the method or the path (such as
/// `X-HTTP-Method-Override` and `X-Original-URL`), and no package manager needs them.
const HARMLESS: [HeaderName; 12] = [
    ACCEPT,
    ACCEPT_ENCODING,
    ACCEPT_LANGUAGE,
    CACHE_CONTROL,
    HOST,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_RANGE,
    PRAGMA,
    RANGE,
    USER_AGENT,
    AUTHORIZATION,
];

/// What a page of an index may be. All indexes have it in this form.
const PAGES: &str = "application/vnd.pypi.simple.v1+html, text/html;q=0.9, */*;q=0.1";

/// A credential for the packages of one host.
#[derive(Clone, Debug)]
pub struct Credential {
    pub host: Host,
    pub port: u16,
    /// Paths that begin like this.
    pub path: String,
    pub reads: Reads,
    /// The value of `Authorization`; should be marked sensitive.
    pub authorization: HeaderValue,
}

impl Credential {
    /// Whether the credential is for a request.
    pub(crate) fn reading<B: Body>(&self, target: &Target, request: &Request<B>) -> Reading {
        let uri = request.uri();
        let is_meant = self.host == target.host
            && self.port == target.port
            && matches!(*request.method(), Method::GET | Method::HEAD)
            && request.body().is_end_stream()
            && uri.query().is_none()
            && uri.path().starts_with(&self.path)
            // Its own goes before ours.
            && !request.headers().contains_key(AUTHORIZATION);
        match is_meant {
            true => self.reads.reading(uri.path()),
            false => Reading::No,
        }
    }

    pub(crate) fn target(&self) -> Target {
        Target {
            host: self.host.clone(),
            port: self.port,
        }
    }

    /// A search for a path in the page of the index that would name it.
    pub(crate) fn search(&self, page: &str, path: &str) -> Option<Search> {
        let url = format!("http://{}{page}", self.target());
        self.reads.search(&url, path)
    }

    /// The request for that page.
    pub(crate) fn question(&self, page: &str) -> Option<Request<()>> {
        let mut request = Request::new(());
        *request.uri_mut() = page.parse().ok()?;
        let headers = request.headers_mut();
        headers.insert(HOST, headers::host_value(&self.target())?);
        headers.insert(ACCEPT, HeaderValue::from_static(PAGES));
        headers.insert(AUTHORIZATION, self.authorization.clone());
        Some(request)
    }

    pub(crate) fn add(&self, headers: &mut HeaderMap) {
        let others = headers.keys().filter(|name| !HARMLESS.contains(name));
        let others: Vec<HeaderName> = others.cloned().collect();
        for name in others {
            headers.remove(name);
        }
        headers.insert(AUTHORIZATION, self.authorization.clone());
    }
}
