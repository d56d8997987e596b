//! The documents that are made of the types: JSON Schemas, and the tables of `docs/results.md`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use schemars::generate::SchemaSettings;
use schemars::schema_for;
use serde_json::{Map, Value, json};

use super::*;
use crate::task::Task;

/// Set it to write what is found instead of comparing with it.
const UPDATE: &str = "ROLLCAGE_UPDATE_DOCS";

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name)
}

/// Compares a file with what it should hold, or writes it.
#[track_caller]
fn check(name: &str, wanted: &str) {
    let path = docs(name);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "docs/{name} is not what the types say: run the tests of rollcage-model with {UPDATE}=1"
    );
}

fn result_schema() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let schema = settings
        .into_generator()
        .into_root_schema_for::<View<'static>>();
    let mut schema = schema.to_value();
    schema["title"] = json!("RolloutResult");
    schema["$id"] = json!("rollcage:result");
    schema
}

fn task_schema() -> Value {
    let mut schema = schema_for!(Task).to_value();
    schema["$id"] = json!("rollcage:task");
    // What the type cannot say: everything has a default, but an empty instruction is refused.
    schema["required"] = json!(["instruction"]);
    for (original, ours) in [
        ("task_id", "id"),
        ("upload_files", "files"),
        ("agent_options", "agent"),
    ] {
        let mut member = schema["properties"][ours].clone();
        member["description"] = json!(format!("The original's name for `{ours}`."));
        schema["properties"][original] = member;
    }
    schema
}

#[test]
fn the_schemas_are_those_of_the_types() {
    for (name, schema) in [("result", result_schema()), ("task", task_schema())] {
        let text = serde_json::to_string_pretty(&schema).unwrap();
        check(&format!("schemas/{name}.json"), &format!("{text}\n"));
    }
}

#[test]
fn the_schema_of_a_task_knows_every_name_that_is_read() {
    let schema = task_schema();
    for (name, member) in schema["properties"].as_object().unwrap() {
        assert!(!about(member).is_empty(), "{name} is not explained");
        let mut task = Map::new();
        task.insert(name.clone(), Value::Null);
        let refused = serde_json::from_value::<Task>(task.into()).err();
        let refused = refused.map(|error| error.to_string()).unwrap_or_default();
        assert!(!refused.contains("unknown field"), "{refused}");
    }
    for example in ["hello.toml", "fix-the-bug.toml"] {
        let path = docs("../examples").join(example);
        let task = Task::from_toml(&std::fs::read_to_string(path).unwrap()).unwrap();
        let written = serde_json::to_value(&task).unwrap();
        for name in written.as_object().unwrap().keys() {
            assert!(schema["properties"].get(name).is_some(), "{name}");
        }
    }
}

#[test]
fn every_field_is_explained_once() {
    let text = std::fs::read_to_string(docs("results.md")).unwrap();
    let (start, end) = ("<!-- fields -->\n", "<!-- end -->");
    let (before, rest) = text.split_once(start).unwrap();
    let (_, after) = rest.split_once(end).unwrap();
    let schema = result_schema();
    let mut tables = String::new();
    let types = schema["$defs"].as_object().unwrap();
    table(&mut tables, "RolloutResult", &schema, types);
    for (name, schema) in types {
        table(&mut tables, name, schema, types);
    }
    check(
        "results.md",
        &format!("{before}{start}{tables}\n{end}{after}"),
    );
}

/// The members of an object, or the values of an enumeration.
fn table(out: &mut String, name: &str, schema: &Value, types: &Map<String, Value>) {
    let about = about(schema);
    let nothing = Map::new();
    let members = schema["properties"].as_object().unwrap_or(&nothing);
    let values = schema["oneOf"].as_array().into_iter().flatten();
    let values: Vec<&Value> = values
        .filter(|value| value.get("const").is_some())
        .collect();
    if members.is_empty() && values.is_empty() {
        return;
    }
    writeln!(out, "\n### {name}\n").unwrap();
    if !about.is_empty() && name != "RolloutResult" {
        writeln!(out, "{about}\n").unwrap();
    }
    if !values.is_empty() {
        writeln!(out, "| value | |\n|---|---|").unwrap();
    }
    for value in values {
        let meaning = self::about(value);
        let shown = value["const"].as_str().unwrap_or_default();
        assert!(!meaning.is_empty(), "{name}::{shown} is not explained");
        writeln!(out, "| `{shown}` | {meaning} |").unwrap();
    }
    if !members.is_empty() {
        writeln!(out, "| field | type | |\n|---|---|---|").unwrap();
    }
    for (field, member) in members {
        let meaning = self::about(member);
        assert!(!meaning.is_empty(), "{name}.{field} is not explained");
        writeln!(out, "| `{field}` | {} | {meaning} |", kind(member, types)).unwrap();
    }
}

fn about(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // Links to other items mean something to rustdoc alone.
    while let Some(at) = text.find("](crate::") {
        let end = text[at..].find(')').map_or(text.len(), |end| at + end + 1);
        text.replace_range(at..end, "");
        if let Some(open) = text[..at].rfind('[') {
            text.remove(open);
        }
    }
    text.replace('|', "\\|")
}

/// A schema's type in a word or two; types with a table of their own are linked.
fn kind(schema: &Value, types: &Map<String, Value>) -> String {
    let kind = |schema: &Value| kind(schema, types);
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap_or_default();
        let own = &types[name];
        return match own.get("properties").or(own.get("oneOf")) {
            Some(_) => format!("[{name}](#{})", name.to_lowercase()),
            None => kind(own),
        };
    }
    if let Some(options) = schema["anyOf"].as_array() {
        let kinds: Vec<String> = options.iter().map(kind).collect();
        return kinds.join(" or ");
    }
    match &schema["type"] {
        Value::String(name) if name == "array" => format!("list of {}", kind(&schema["items"])),
        Value::String(name) if name == "object" => match schema.get("additionalProperties") {
            Some(values) if values.is_object() => format!("{} by name", kind(values)),
            _ => "object".to_owned(),
        },
        Value::String(name) => name.clone(),
        Value::Array(names) => {
            let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
            let list = schema
                .get("items")
                .map(|items| format!("list of {}", kind(items)));
            match (names.as_slice(), list) {
                (["array", "null"], Some(list)) => format!("{list} or null"),
                _ => names.join(" or "),
            }
        }
        _ => "anything".to_owned(),
    }
}
