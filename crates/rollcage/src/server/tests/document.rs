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

/// Everything has a schema; what is sent has one with a name, and an example.
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
            assert!(media["schema"].is_object(), "{id} {status}: {media_type}");
        }
    }
}

/// What holds anything, or objects and arrays of anything. It is another's to say what is in there: an agent's, a
/// model's, a tool's, a trainer's format, or OpenEnv's.
const FREE: &[&str] = &[
    "AgentOptions.config",
    "AgentView.options",
    "Call.message",
    "Call.requested_sampling_params",
    "Call.sampling_params",
    "Call.tools",
    "Call.upstream_error",
    "CallToolAction.arguments",
    "CallToolAction.metadata",
    "CallToolObservation.metadata",
    "CallToolObservation.result",
    "EnvironmentSchemas.action",
    "EnvironmentSchemas.observation",
    "EnvironmentSchemas.reset_observation",
    "EnvironmentSchemas.state",
    "JsonRpcAnswer.error.data",
    "JsonRpcAnswer.result",
    "JsonRpcRequest.params",
    "LiveMessages.messages",
    "LiveRequest.agent_options.config",
    "LiveRequest.mcp",
    "LiveRequest.solution",
    "Messages.new",
    "Preset.request",
    "Reply.input",
    "Reply.questions",
    "ResetAnswer.metadata",
    "ResetObservation.metadata",
    "RolloutMessages.messages",
    "RolloutRequest.agent_options.config",
    "RolloutRequest.mcp",
    "RolloutRequest.solution",
    "Step.arguments",
    "StepAnswer.metadata",
    "TurnDetail.message",
    "TurnDetail.messages",
    "TurnDetail.requested_sampling_params",
    "TurnDetail.sampling_params",
    "TurnDetail.tools",
    "TurnDetail.upstream_error",
    "rolloutTrace",
];

/// Everything says what it holds, not just that it is "an object".
#[test]
fn only_what_is_listed_holds_anything() {
    let document = document();
    let mut free = BTreeSet::new();
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        add_free(schema, name, &mut free);
    }
    for item in document["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values() {
            let id = operation["operationId"].as_str().unwrap();
            let responses = operation["responses"].as_object().unwrap().values();
            for holder in responses.chain(operation.get("requestBody")) {
                let json = &holder["content"]["application/json"];
                if json.is_object() {
                    add_free(&json["schema"], id, &mut free);
                }
            }
        }
    }
    let listed: BTreeSet<_> = FREE.iter().map(|place| (*place).to_owned()).collect();
    assert_eq!(free, listed);
}

/// Adds the places below a schema that may hold anything.
fn add_free(schema: &Value, place: &str, free: &mut BTreeSet<String>) {
    if is_free(schema) {
        free.insert(place.to_owned());
        return;
    }
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        add_free(member, &format!("{place}.{name}"), free);
    }
    let has_members = schema.get("properties").is_some();
    let values = schema.get("additionalProperties").filter(|_| !has_members);
    for part in values.into_iter().chain(schema.get("items")) {
        add_free(part, place, free);
    }
    for several in ["anyOf", "oneOf", "allOf", "prefixItems"] {
        for part in schema[several].as_array().into_iter().flatten() {
            add_free(part, place, free);
        }
    }
}

fn is_free(schema: &Value) -> bool {
    let Value::Object(members) = schema else {
        return *schema == Value::Bool(true);
    };
    let has = |names: &[&str]| names.iter().any(|name| members.contains_key(*name));
    let is_a = |kind: &str| match &schema["type"] {
        Value::String(only) => only == kind,
        Value::Array(kinds) => kinds.contains(&json!(kind)),
        _ => false,
    };
    let is_told = has(&["$ref", "enum", "const", "anyOf", "oneOf", "allOf"]);
    let is_any = !has(&["type", "properties", "items"]);
    let is_any_object = is_a("object") && !has(&["properties", "additionalProperties"]);
    let is_any_array = is_a("array") && !has(&["items", "prefixItems"]);
    !is_told && (is_any || is_any_object || is_any_array)
}

fn contents(holder: Option<&Value>) -> Vec<(String, Value)> {
    let content = holder.and_then(|holder| holder["content"].as_object());
    content.cloned().into_iter().flatten().collect()
}
