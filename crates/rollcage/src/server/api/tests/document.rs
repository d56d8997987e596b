//! The OpenAPI document and the router describe the same routes, and answers are as the document says.

use std::collections::BTreeSet;
use std::path::Path as FilePath;

use super::*;

const METHODS: [Method; 5] = [
    Method::GET,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
];
/// Answered by other routers of the server.
const ELSEWHERE: &[&str] = &["/ready", "/v1/server", "/v1/session"];

fn documented() -> Vec<(String, Value)> {
    let document = document();
    let paths = document["paths"].as_object().unwrap().clone();
    let here = |path: &String| !ELSEWHERE.contains(&path.as_str());
    paths.into_iter().filter(|(path, _)| here(path)).collect()
}

/// Every answer of these tests is compared with the document.
#[track_caller]
pub(super) fn check_answer(method: &Method, path: &str, answer: &Answer) {
    let document = document();
    let paths = document["paths"].as_object().unwrap();
    // A path without parameters before one with.
    let mut matching: Vec<_> = paths.keys().filter(|it| is_at(it, path)).collect();
    matching.sort_by_key(|template| template.matches('{').count());
    let operation = matching
        .first()
        .map(|template| &paths[*template][method.as_str().to_lowercase()]);
    let Some(operation) = operation.filter(|operation| operation.is_object()) else {
        assert!(!answer.status.is_success(), "{method} {path}");
        return;
    };
    let status = answer.status.as_u16().to_string();
    let response = &operation["responses"][&status];
    assert!(response.is_object(), "{method} {path} answers {status}");
    let kind = answer.content_type.split(';').next().unwrap_or_default();
    if kind.is_empty() {
        assert!(response.get("content").is_none() && answer.body.is_empty());
        return;
    }
    let media = &response["content"][kind];
    assert!(media.is_object(), "{method} {path} {status} answers {kind}");
    if kind == "application/json" {
        crate::server::harness::check_schema(&document, &media["schema"], &answer.json());
    }
}

/// Whether a path is that of a template. The last parameter may hold slashes where it is called so.
fn is_at(template: &str, path: &str) -> bool {
    let (mut parts, mut given) = (template.split('/'), path.split('/'));
    loop {
        match (parts.next(), given.next()) {
            (None, None) => return true,
            (Some("{path}"), Some(_)) => return true,
            (Some(part), Some(given)) if part == given || part.starts_with('{') => {}
            _ => return false,
        }
    }
}

/// The router's own words for "no such route" and "no such method".
fn is_routed(answer: &Answer) -> bool {
    let text = String::from_utf8_lossy(&answer.body);
    answer.status != StatusCode::METHOD_NOT_ALLOWED && !text.contains("no such route")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_of_a_path_is_documented_and_nothing_else_is() {
    let client = Client::new().await;
    for (path, item) in documented() {
        let place = path
            .replace("{id}", "01a1e4dd-d346-7035-8af4-5d04480d2465")
            .replace(['{', '}'], "");
        // A stream has no end; a refusal has.
        let place = match path.as_str() {
            "/v1/events" => format!("{place}?watch=x"),
            _ => place,
        };
        for method in METHODS {
            let answer = client.ask(method.clone(), &place).await;
            let is_documented = item.get(method.as_str().to_lowercase()).is_some();
            assert_eq!(is_routed(&answer), is_documented, "{method} {path}");
        }
    }
    client.close().await;
}

/// Routes stand in the sources as `.route("PATH", …)`; the router itself cannot be asked for them.
#[test]
fn every_path_of_the_router_is_documented() {
    let sources = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("src/server");
    let mut routes = BTreeSet::new();
    add_routes(&sources.join("api.rs"), &mut routes);
    add_routes_below(&sources.join("api"), &mut routes);
    routes.remove("/v1/{*rest}");
    routes.retain(|route| !ELSEWHERE.contains(&route.as_str()));
    assert!(routes.len() > 25, "{routes:?}");
    let documented: BTreeSet<_> = documented().into_iter().map(|(path, _)| path).collect();
    // The document has no name for a parameter that may hold slashes.
    let routes: BTreeSet<_> = routes
        .iter()
        .map(|route| route.replace("{*", "{"))
        .collect();
    assert_eq!(routes, documented);
}

fn add_routes_below(folder: &FilePath, routes: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.file_name().and_then(|name| name.to_str()) {
            Some("tests" | "tests.rs") => {}
            _ if path.is_dir() => add_routes_below(&path, routes),
            _ => add_routes(&path, routes),
        }
    }
}

fn add_routes(file: &FilePath, routes: &mut BTreeSet<String>) {
    let source = std::fs::read_to_string(file).unwrap();
    for rest in source.split(".route(").skip(1) {
        let path = rest.trim_start().strip_prefix('"');
        let path = path.and_then(|path| path.split('"').next());
        routes.insert(path.expect("a path in quotes").to_owned());
    }
}
