//! Converts Gemini's schemas, a variant of OpenAPI's, to JSON Schema.

use serde_json::{Map, Value, json};

/// Types become lower case, `nullable` becomes a second type, and counts in strings become numbers. The hint for the
/// order of properties is dropped: they are in that order already.
pub(super) fn to_json_schema(schema: &Value) -> Value {
    let Some(members) = schema.as_object() else {
        return schema.clone();
    };
    let mut out = Map::new();
    for (name, value) in members {
        let value = match (name.as_str(), value) {
            ("propertyOrdering" | "property_ordering" | "nullable", _) => continue,
            ("type", Value::String(kind)) => kind.to_ascii_lowercase().into(),
            ("properties", Value::Object(properties)) => properties
                .iter()
                .map(|(name, schema)| (name.clone(), to_json_schema(schema)))
                .collect(),
            ("items" | "additionalProperties", schema) => to_json_schema(schema),
            ("anyOf" | "any_of", Value::Array(schemas)) => {
                schemas.iter().map(to_json_schema).collect()
            }
            ("minItems" | "maxItems" | "minLength" | "maxLength", Value::String(count)) => {
                count.parse::<u64>().map_or(value.clone(), Value::from)
            }
            ("minProperties" | "maxProperties", Value::String(count)) => {
                count.parse::<u64>().map_or(value.clone(), Value::from)
            }
            _ => value.clone(),
        };
        let name = if name == "any_of" { "anyOf" } else { name };
        out.insert(name.to_owned(), value);
    }
    if members.get("nullable") == Some(&Value::Bool(true))
        && let Some(kind) = out.get_mut("type")
    {
        *kind = json!([kind, "null"]);
    }
    Value::Object(out)
}
