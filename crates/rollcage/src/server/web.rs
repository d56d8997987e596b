//! The page for people: the files of `ui/dist`, which are part of the program, below `/web/`.
//!
//! Its address is found relative to whatever leads here, so that it works below a prefix of a proxy. The page calls `/v1`
//! as every other client does; nothing here knows what it shows.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;

use super::{access, reply};

mod assets;
mod headers;

use assets::{Asset, Assets};
pub(crate) use headers::FrameAncestor;

/// OpenEnv's own routes below `/web/`.
const OF_OPENENV: [&str; 4] = ["/web/metadata", "/web/state", "/web/reset", "/web/step"];
const INDEX: &str = "index.html";
const DOCS: &str = "docs/index.html";
/// The directory of files that have a hash of their content in their names.
const HASHED: &str = "assets/";

/// A file that the user interface's build made, such as `index.html`.
pub(crate) fn file(path: &str) -> Option<Cow<'static, [u8]>> {
    assets::file(path)
}

/// How the page is served.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageOptions {
    /// Who may show the page in a frame, beside itself.
    pub(crate) frame_ancestors: Vec<FrameAncestor>,
}

/// What a path of the page stands for.
enum Target<'a> {
    /// The page has another address.
    Elsewhere,
    File(&'a str),
}

/// The page of one server.
pub(crate) struct Page {
    assets: Assets,
    /// Of every file.
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Whether other sites show the page, which may then be opened from their pages.
    is_framed: bool,
}

impl Page {
    pub(crate) fn new(options: &PageOptions) -> Self {
        Page::of(Assets::built_in(), options)
    }

    fn of(assets: Assets, options: &PageOptions) -> Self {
        Page {
            assets,
            headers: headers::of_page(&options.frame_ancestors),
            is_framed: !options.frame_ancestors.is_empty(),
        }
    }

    /// The answer to a request for the page or one of its files. Every other request is given back.
    pub(crate) async fn answer(&self, request: Request) -> Result<Response, Request> {
        let Some(target) = self.target(request.uri().path()) else {
            return Err(request);
        };
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Ok(reply::wrong_method(&Method::GET));
        }
        let name = match target {
            Target::Elsewhere => return Ok(redirect(request.uri().query())),
            Target::File(name) => name,
        };
        Ok(match self.assets.find(name) {
            Some(asset) => self.file(name, asset, request.headers()).await,
            None => reply::not_found(),
        })
    }

    fn target<'a>(&self, path: &'a str) -> Option<Target<'a>> {
        match path {
            "/" | "/web" => Some(Target::Elsewhere),
            "/web/" => Some(Target::File(INDEX)),
            "/docs" | "/redoc" => self.assets.find(DOCS).map(|_| Target::File(DOCS)),
            path if OF_OPENENV.contains(&path) => None,
            path => path.strip_prefix("/web/").map(Target::File),
        }
    }

    async fn file(&self, name: &str, asset: &Arc<Asset>, asked: &HeaderMap) -> Response {
        let is_gzip = asset.is_compressible && assets::takes_gzip(asked);
        let etag = asset.etag(is_gzip);
        let is_known = assets::is_known(asked, &etag);
        let mut response = Response::new(Body::empty());
        if is_known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        } else if is_gzip {
            *response.body_mut() = Body::from(asset.gzip().await);
        } else {
            *response.body_mut() = Body::from(asset.bytes.clone());
        }
        let headers = response.headers_mut();
        headers.extend(self.headers.iter().cloned());
        if !self.is_framed && access::is_trustworthy(asked) {
            headers.extend([headers::opener_policy()]);
        }
        let cache = match name.starts_with(HASHED) {
            true => "public, max-age=31536000, immutable",
            false => "no-cache",
        };
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
        if let Ok(etag) = HeaderValue::try_from(etag) {
            headers.insert(header::ETAG, etag);
        }
        if asset.is_compressible {
            let vary = HeaderValue::from_static("accept-encoding");
            headers.insert(header::VARY, vary);
        }
        if !is_known {
            let content_type = HeaderValue::from_static(asset.content_type);
            headers.insert(header::CONTENT_TYPE, content_type);
        }
        if is_gzip && !is_known {
            let gzip = HeaderValue::from_static("gzip");
            headers.insert(header::CONTENT_ENCODING, gzip);
        }
        response
    }
}

/// To the page, from `/` and `/web`. It is relative: a proxy may have removed a prefix that we do not know.
fn redirect(query: Option<&str>) -> Response {
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let Ok(location) = HeaderValue::try_from(format!("web/{query}")) else {
        return reply::not_found();
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    response.headers_mut().insert(header::LOCATION, location);
    response
}

#[cfg(test)]
mod tests;
