//! The OpenAPI document as a whole: what it refers to is there, and the committed one is up to date.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::server::openenv::openapi;

const UPDATE: &str = "ROLLCAGE_UPDATE_DOCS";

fn document() -> Value {
    openapi(api::document(), Mode::Simulation)
}

/// `docs/openapi.json`, from which the page's types are made.
#[test]
fn the_committed_document_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let fresh = serde_json::to_string_pretty(&document()).unwrap() + "\n";
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, &fresh).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == fresh,
        "docs/openapi.json is out of date: run this test with {UPDATE}=1, then `npm run types` in ui/"
    );
}

#[test]
fn what_is_referred_to_is_there() {
    let document = document();
    let mut used = BTreeSet::new();
    references(&document, &mut used);
    for place in &used {
        let pointer = place.strip_prefix('#').expect("only within the document");
        assert!(document.pointer(pointer).is_some(), "{place}");
    }
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for name in schemas.keys() {
        // A second type of the same name would be called so.
        let is_second = name.ends_with(|letter: char| letter.is_ascii_digit());
        assert!(!is_second, "{name}: give one of the types another name");
    }
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::String(place) if name == "$ref" => {
                        found.insert(place.clone());
                    }
                    member => references(member, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_operation_says_what_it_does() {
    let document = document();
    let mut ids = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "{id} stands for two operations");
            let summary = operation["summary"].as_str().unwrap();
            assert!(summary.len() > 5, "{id}");
            check_parameters(path, operation);
            check_bodies(id, operation);
            let needs_body = ["post", "put"].contains(&method.as_str());
            let has_body = operation.get("requestBody").is_some();
            assert!(needs_body || !has_body, "{id}: {method} with a body");
        }
    }
}

fn check_parameters(path: &str, operation: &Value) {
    let parameters = operation["parameters"].as_array().unwrap();
    let mut of_path = BTreeSet::new();
    for parameter in parameters {
        let name = parameter["name"].as_str().unwrap();
        let about = parameter["description"].as_str().unwrap_or_default();
        assert!(about.len() > 5, "{path}: {name}");
        if parameter["in"] == "path" {
            of_path.insert(name.to_owned());
        }
    }
    let named: BTreeSet<_> = path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(str::to_owned)
        .collect();
    assert_eq!(of_path, named, "{path}");
}

/// Everything has a schema of its own, not just "an object"; what is sent has an example.
fn check_bodies(id: &str, operation: &Value) {
    let responses = operation["responses"].as_object().unwrap();
    assert!(
        responses.keys().any(|status| status.starts_with('2')),
        "{id} has no good answer"
    );
    let body = operation.get("requestBody");
    for (media_type, media) in contents(body) {
        let is_json = media_type == "application/json";
        assert!(
            !is_json || (media["schema"]["$ref"].is_string() && !media["example"].is_null()),
            "{id}: the body"
        );
    }
    for (status, response) in responses {
        assert!(response["description"].is_string(), "{id} {status}");
        for (media_type, media) in contents(Some(response)) {
            let schema = media["schema"].as_object().unwrap();
            let is_open = media_type == "application/json" && schema.is_empty();
            assert!(!is_open, "{id} {status}");
        }
    }
}

fn contents(holder: Option<&Value>) -> Vec<(String, Value)> {
    let content = holder.and_then(|holder| holder["content"].as_object());
    content.cloned().into_iter().flatten().collect()
}
