//! Reads the head of a model request in any dialect: its route and its API key.

use http::Request;

use crate::{Dialect, Route};

/// `None` if it is not a request in any dialect.
pub fn route<B>(request: &Request<B>) -> Option<Route> {
    let uri = request.uri();
    let query = uri.query().unwrap_or_default();
    let route = Route::of(request.method().as_str(), uri.path(), query)?;
    if route != Route::Models(Dialect::Chat) {
        return Some(route);
    }
    // Three dialects list models at the same path; a header of the client tells them apart.
    let has = |name: &str| request.headers().contains_key(name);
    Some(Route::Models(if has("anthropic-version") {
        Dialect::Anthropic
    } else if has("x-goog-api-key") {
        Dialect::Gemini
    } else {
        Dialect::Chat
    }))
}

/// The API key, from the header that the client's dialect uses. The query parameter `key` is accepted only on Gemini's
/// routes, where Google's clients send it: URLs end up in logs and histories. `route` is `None` for other than model
/// requests.
pub fn key<'a, B>(request: &'a Request<B>, route: Option<&Route>) -> Option<&'a str> {
    let header = |name: &str| request.headers().get(name)?.to_str().ok();
    let bearer = header("authorization").and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key)
    });
    let mut named = ["x-api-key", "x-goog-api-key"].into_iter();
    let is_gemini = route.is_some_and(|route| route.dialect() == Dialect::Gemini);
    let query = request.uri().query().filter(|_| is_gemini);
    let mut query = query.unwrap_or_default().split('&');
    let key = bearer
        .or_else(|| named.find_map(header))
        .or_else(|| query.find_map(|pair| pair.strip_prefix("key=")))?;
    Some(key.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(method: &str, uri: &str, header: Option<&str>) -> Option<String> {
        let mut request = Request::builder().method(method).uri(uri);
        if let Some(header) = header {
            request = request.header(header, "k");
        }
        let request = request.body(()).unwrap();
        let route = route(&request);
        key(&request, route.as_ref()).map(str::to_owned)
    }

    #[test]
    fn only_geminis_key_may_be_in_the_query() {
        let in_query = |method: &str, uri: &str| key_of(method, uri, None).is_some();
        assert!(in_query("POST", "/v1beta/models/m:generateContent?key=k"));
        assert!(in_query(
            "POST",
            "/v1/models/m:streamGenerateContent?alt=sse&key=k"
        ));
        assert!(in_query("POST", "/v1beta/models/m:countTokens?key=k"));
        assert!(in_query("GET", "/v1beta/models?key=k"));
        for path in [
            "chat/completions",
            "responses",
            "messages",
            "messages/count_tokens",
        ] {
            assert!(!in_query("POST", &format!("/v1/{path}?key=k")), "{path}");
        }
        assert!(!in_query("GET", "/v1/models?key=k"));
        assert!(!in_query("POST", "/mcp/docs?key=k"));
        for header in ["x-api-key", "x-goog-api-key"] {
            let found = key_of("POST", "/v1/messages?key=other", Some(header));
            assert_eq!(found.as_deref(), Some("k"));
        }
    }
}
