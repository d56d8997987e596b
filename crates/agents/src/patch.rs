//! Merges an object into an agent's configuration file, in the file's own format.

use serde_json::{Map, Value};

use rollcage_model::task;

use super::LaunchError;

/// The format of a configuration file, from its extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Toml,
    /// Only the JSON subset of YAML, which our own files use.
    Yaml,
}

impl Format {
    pub(super) fn of(path: &str) -> Option<Self> {
        match path.rsplit_once('.')?.1 {
            "json" => Some(Format::Json),
            "toml" => Some(Format::Toml),
            "yaml" | "yml" => Some(Format::Yaml),
            _ => None,
        }
    }

    /// Parses a text into an object, or returns what is wrong with it.
    pub(super) fn read(self, text: &str) -> Result<Map<String, Value>, String> {
        match self {
            Format::Toml => {
                let table = read_toml(text)?;
                let members = table.into_iter();
                let member = |(key, value)| Ok((key, serde_json::to_value(value)?));
                let members: Result<_, serde_json::Error> = members.map(member).collect();
                members.map_err(|error| error.to_string())
            }
            Format::Json | Format::Yaml => read_json(text),
        }
    }
}

/// Merges an object into one of a launch's files: objects key by key; any other value replaces the old one. A file of
/// the pre-baked home directory (`home`) is copied into the launch first, and a missing file is created.
pub(super) fn merge(
    files: &mut Vec<(String, String)>,
    home: &[(String, String)],
    path: &str,
    addition: &Value,
) -> Result<(), LaunchError> {
    let place = files.iter().rposition(|(known, _)| known == path);
    let text = match place {
        Some(place) => files[place].1.as_str(),
        None => {
            let baked = home.iter().find(|(known, _)| known == path);
            baked.map_or("", |(_, text)| text.as_str())
        }
    };
    let merged = merged(text, path, addition).map_err(|problem| LaunchError::ConfigFile {
        path: path.to_owned(),
        problem,
    })?;
    match place {
        Some(place) => files[place].1 = merged,
        None => files.push((path.to_owned(), merged)),
    }
    Ok(())
}

fn merged(text: &str, path: &str, addition: &Value) -> Result<String, String> {
    let Value::Object(addition) = addition else {
        return Err("what is added must be a table of keys".to_owned());
    };
    match Format::of(path) {
        Some(Format::Toml) => {
            let mut table = read_toml(text)?;
            // Converted to TOML, because a table with a date does not survive a conversion to JSON.
            let addition = toml::Table::try_from(addition)
                .map_err(|error| format!("what is added does not fit into TOML: {error}"))?;
            add_toml(&mut table, addition);
            toml::to_string(&table).map_err(|error| error.to_string())
        }
        Some(Format::Json | Format::Yaml) => {
            let mut object = read_json(text)?;
            task::merge(&mut object, addition);
            serde_json::to_string_pretty(&object).map_err(|error| error.to_string())
        }
        None => Err("its name must end in .json, .toml or .yaml".to_owned()),
    }
}

fn read_toml(text: &str) -> Result<toml::Table, String> {
    toml::from_str(text).map_err(|error| format!("it is not valid TOML: {error}"))
}

fn read_json(text: &str) -> Result<Map<String, Value>, String> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(text).map_err(|error| format!("it is not a JSON object: {error}"))
}

fn add_toml(table: &mut toml::Table, addition: toml::Table) {
    for (key, value) in addition {
        match (table.get_mut(&key), value) {
            (Some(toml::Value::Table(inner)), toml::Value::Table(addition)) => {
                add_toml(inner, addition);
            }
            (_, value) => {
                table.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn file(path: &str, text: &str) -> (String, String) {
        (path.to_owned(), text.to_owned())
    }

    #[test]
    fn objects_are_merged_and_the_rest_replaces() {
        let mut files = vec![file("/h/a.json", r#"{"a": {"x": 1, "y": [1, 2]}, "b": 1}"#)];
        let addition = json!({"a": {"y": [3], "z": "\"é"}, "b": {"c": null}});
        merge(&mut files, &[], "/h/a.json", &addition).unwrap();
        let expected = json!({"a": {"x": 1, "y": [3], "z": "\"é"}, "b": {"c": null}});
        let found: Value = serde_json::from_str(&files[0].1).unwrap();
        assert_eq!((found, files.len()), (expected, 1));
    }

    #[test]
    fn toml_stays_toml() {
        let text = "since = 2026-01-02\nname = \"x\"\n[features]\napps = false\n";
        let mut files = vec![file("/h/c.toml", text)];
        let addition = json!({"features": {"plan": true}, "mcp": {"a": {"args": ["-x", 1]}}});
        merge(&mut files, &[], "/h/c.toml", &addition).unwrap();
        let expected = "since = 2026-01-02\nname = \"x\"\nfeatures = { apps = false, plan = true }\n\
                        mcp = { a = { args = [\"-x\", 1] } }\n";
        let found: toml::Table = toml::from_str(&files[0].1).unwrap();
        assert_eq!(found, toml::from_str(expected).unwrap());
        let error = merge(&mut files, &[], "/h/c.toml", &json!({"a": null})).unwrap_err();
        assert!(error.to_string().contains("does not fit into TOML"));
    }

    #[test]
    fn a_file_of_the_home_is_taken_over_and_a_new_one_made() {
        let home = [file("/h/a.yaml", r#"{"a": 1}"#)];
        let mut files = Vec::new();
        merge(&mut files, &home, "/h/a.yaml", &json!({"b": 2})).unwrap();
        merge(&mut files, &home, "/h/a.yaml", &json!({"c": 3})).unwrap();
        merge(&mut files, &home, "/h/new.toml", &json!({"d": 4})).unwrap();
        let found: Value = serde_json::from_str(&files[0].1).unwrap();
        assert_eq!(found, json!({"a": 1, "b": 2, "c": 3}));
        assert_eq!(files[1], file("/h/new.toml", "d = 4\n"));
    }

    #[test]
    fn what_cannot_be_merged_is_reported() {
        let mut files = vec![file("/h/a.yaml", "a: 1\n"), file("/h/a.ini", "")];
        let mut error = |path: &str, addition: &Value| {
            let error = merge(&mut files, &[], path, addition).unwrap_err();
            error.to_string()
        };
        let yaml = error("/h/a.yaml", &json!({}));
        assert!(yaml.starts_with("/h/a.yaml cannot be changed: it is not a JSON object"));
        assert!(error("/h/a.ini", &json!({})).contains("must end in .json"));
        assert!(error("/h/b.json", &json!([1])).contains("must be a table"));
    }
}
