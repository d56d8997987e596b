//! A path prefix below which the server is shown, such as `/tools/rollcage`. Most proxies remove it from requests; from
//! those of others it is removed here.

use std::str::FromStr;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;

/// Begins with a slash and ends with none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathPrefix(String);

impl FromStr for PathPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.strip_suffix('/').unwrap_or(text);
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.~".contains(letter);
        let is_part = |part: &str| {
            !part.is_empty() && part != "." && part != ".." && part.chars().all(is_plain)
        };
        let rest = text.strip_prefix('/');
        match rest.is_some_and(|rest| rest.split('/').all(is_part)) {
            true => Ok(PathPrefix(text.to_owned())),
            false => Err("must be a path such as /tools/rollcage".to_owned()),
        }
    }
}

impl PathPrefix {
    /// The router, for requests with and without the prefix.
    pub(crate) fn around(self, router: Router) -> Router {
        // Layers come before a router's own routes only around another router.
        Router::new()
            .fallback_service(router)
            .layer(from_fn_with_state(self, remove))
    }

    /// The address without the prefix; `None` if it has none.
    fn without(&self, uri: &Uri) -> Option<Uri> {
        let path = uri.path_and_query()?.as_str().strip_prefix(&self.0)?;
        let path = path.starts_with('/').then_some(path)?;
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::try_from(path).ok()?);
        Uri::from_parts(parts).ok()
    }
}

async fn remove(State(prefix): State<PathPrefix>, mut request: Request, next: Next) -> Response {
    if request.uri().path() == prefix.0 {
        return with_slash(&prefix);
    }
    if let Some(shorter) = prefix.without(request.uri()) {
        *request.uri_mut() = shorter;
    }
    next.run(request).await
}

/// Relative addresses need the slash.
fn with_slash(prefix: &PathPrefix) -> Response {
    let last = prefix.0.rsplit('/').next().unwrap_or_default();
    let mut response = Response::new(Body::empty());
    if let Ok(location) = HeaderValue::try_from(format!("{last}/")) {
        *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_plain_path() {
        let read = |text: &str| text.parse::<PathPrefix>().map(|prefix| prefix.0);
        assert_eq!(read("/rollcage").as_deref(), Ok("/rollcage"));
        assert_eq!(read("/a/b.c/").as_deref(), Ok("/a/b.c"));
        for wrong in ["", "/", "a", "//a", "/a//b", "/../a", "/a b", "/%61"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn it_is_removed_where_it_is_whole() {
        let prefix: PathPrefix = "/tool".parse().unwrap();
        let without = |uri: &str| {
            let shorter = prefix.without(&uri.parse().unwrap());
            shorter.map(|uri| uri.to_string())
        };
        assert_eq!(without("/tool/").as_deref(), Some("/"));
        assert_eq!(without("/tool/web/?a=%2F").as_deref(), Some("/web/?a=%2F"));
        assert_eq!(without("/tool//a").as_deref(), Some("//a"));
        assert_eq!(without("/tools/a"), None);
        assert_eq!(without("/web/tool/"), None);
    }
}
