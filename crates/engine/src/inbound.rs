//! What the head of a model request says, in any dialect: where it goes, and whose key it has.

use hyper::Request;

use rollcage_model::dialect::{Dialect, Route};

/// `None` for what is no request of any dialect.
pub(crate) fn route<B>(request: &Request<B>) -> Option<Route> {
    let uri = request.uri();
    let query = uri.query().unwrap_or_default();
    let route = Route::of(request.method().as_str(), uri.path(), query)?;
    if route != Route::Models(Dialect::Chat) {
        return Some(route);
    }
    // Three dialects list models at the same path; each client has a header that the others do not send.
    let has = |name: &str| request.headers().contains_key(name);
    Some(Route::Models(if has("anthropic-version") {
        Dialect::Anthropic
    } else if has("x-goog-api-key") {
        Dialect::Gemini
    } else {
        Dialect::Chat
    }))
}

/// Agents send their key in the header, or the parameter, of the dialect they speak.
pub(crate) fn key<B>(request: &Request<B>) -> Option<&str> {
    let header = |name: &str| request.headers().get(name)?.to_str().ok();
    let bearer = header("authorization").and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key)
    });
    let mut named = ["x-api-key", "x-goog-api-key"].into_iter();
    let mut query = request.uri().query().unwrap_or_default().split('&');
    let key = bearer
        .or_else(|| named.find_map(header))
        .or_else(|| query.find_map(|pair| pair.strip_prefix("key=")))?;
    Some(key.trim())
}
