//! Checks a task's configuration and variables for an agent. They are applied last and never filled in, but the
//! settings that lead the agent to the proxy, the model and the instruction are protected and may not be replaced.
//! These are found by filling in the same file for two rollouts: what differs depends on the rollout.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::LaunchError;
use super::fill::{self, Quoting};
use super::patch::Format;

/// Refuses a variable whose value in the manifest depends on the rollout, and those of the agent's server.
pub(super) fn check_env(
    env: &BTreeMap<String, String>,
    of_agent: &BTreeMap<String, String>,
    of_server: &[String],
) -> Result<(), LaunchError> {
    let is_kept = |name: &&String| {
        let text = of_agent.get(*name);
        text.is_some_and(|text| fill::depends_on_rollout(text)) || of_server.contains(name)
    };
    match env.keys().find(is_kept) {
        None => Ok(()),
        Some(name) => Err(LaunchError::Protected {
            what: "the variable",
            name: name.clone(),
        }),
    }
}

/// Refuses a key that the manifest protects, or whose value in the file depends on the rollout.
pub(super) fn check_config(
    config: &Map<String, Value>,
    kept: &[String],
    (path, template): (&str, &str),
    values: &[(&'static str, String)],
) -> Result<(), LaunchError> {
    let read = |values: &[(&'static str, String)]| {
        let text = fill::fill(template, values, Quoting::of_file(path));
        let format = Format::of(path).ok_or_else(|| "no configuration file".to_owned());
        format
            .and_then(|format| format.read(&text))
            .map_err(|problem| LaunchError::ConfigFile {
                path: path.to_owned(),
                problem,
            })
    };
    // Settings that depend on the rollout are those that differ between two rollouts.
    let (here, other) = (read(values)?, read(&fill::other_rollout_values(values))?);
    let refused = replaced(config, &here, &other, "");
    let refused = refused.or_else(|| kept.iter().find(|key| has(config, key)).cloned());
    match refused {
        None => Ok(()),
        Some(name) => Err(LaunchError::Protected {
            what: "the key",
            name,
        }),
    }
}

/// The first key of an addition that would replace a value that depends on the rollout.
fn replaced(
    addition: &Map<String, Value>,
    here: &Map<String, Value>,
    other: &Map<String, Value>,
    above: &str,
) -> Option<String> {
    let nothing = Map::new();
    addition.iter().find_map(|(key, value)| {
        let path = match above {
            "" => key.clone(),
            above => format!("{above}.{key}"),
        };
        let there = other.get(key);
        match (value, here.get(key)?) {
            (Value::Object(addition), Value::Object(here)) => {
                let there = there.and_then(Value::as_object).unwrap_or(&nothing);
                replaced(addition, here, there, &path)
            }
            (_, here) => (there != Some(here)).then_some(path),
        }
    })
}

/// Whether an addition sets a dotted key, a key below it, or one of its parents.
fn has(addition: &Map<String, Value>, key: &str) -> bool {
    let (first, rest) = key.split_once('.').unwrap_or((key, ""));
    match addition.get(first) {
        None => false,
        Some(Value::Object(inner)) if !rest.is_empty() => has(inner, rest),
        Some(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TEMPLATE: &str = r#"{"model": "x/{model}", "snapshot": false, "home": "{home}",
        "provider": {"own": {"npm": "a", "url": "{base_url}", "wait": {patience_ms},
                             "models": {"{model}": {"limit": {context_tokens}}}}},
        "list": [{"id": "{model}"}]}"#;

    fn refused(config: Value) -> Option<String> {
        let mut values = fill::uniform_values("7");
        values.retain(|(name, _)| *name != "model");
        values.push(("model", "m".to_owned()));
        let kept = ["provider.own.npm".to_owned(), "env".to_owned()];
        let config = config.as_object().unwrap();
        let checked = check_config(config, &kept, ("c.json", TEMPLATE), &values);
        checked.err().map(|error| error.to_string())
    }

    #[test]
    fn settings_that_lead_to_the_proxy_are_protected() {
        let fine = json!({
            "snapshot": true, "home": "/x", "new": {"a": 1},
            "provider": {"own": {"more": 1, "models": {"m": {"thinks": true}}}, "other": {}},
        });
        assert_eq!(refused(fine), None);
        for (config, key) in [
            (json!({"model": "other"}), "model"),
            (json!({"list": []}), "list"),
            (json!({"provider": null}), "provider"),
            (
                json!({"provider": {"own": {"url": {"a": 1}}}}),
                "provider.own.url",
            ),
            (
                json!({"provider": {"own": {"wait": 1}}}),
                "provider.own.wait",
            ),
            (
                json!({"provider": {"own": {"models": {"m": {"limit": 1}}}}}),
                "provider.own.models.m.limit",
            ),
            (
                json!({"provider": {"own": {"npm": "b"}}}),
                "provider.own.npm",
            ),
            (json!({"env": {"A": "b"}}), "env"),
        ] {
            let error = refused(config).unwrap_or_default();
            assert!(error.contains(&format!("the key `{key}`")), "{error}");
        }
    }

    #[test]
    fn variables_of_the_rollout_are_protected() {
        let map = |pairs: [(&str, &str); 2]| {
            BTreeMap::from(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())))
        };
        let of_agent = map([("KEY", "{key}"), ("QUIET", "1")]);
        assert!(check_env(&map([("QUIET", "0"), ("NEW", "{key}")]), &of_agent, &[]).is_ok());
        let error = check_env(&map([("QUIET", "0"), ("KEY", "x")]), &of_agent, &[]).unwrap_err();
        assert!(error.to_string().contains("the variable `KEY`"), "{error}");
        let kept = ["PASSWORD".to_owned()];
        let given = map([("QUIET", "0"), ("PASSWORD", "x")]);
        let error = check_env(&given, &of_agent, &kept).unwrap_err();
        assert!(error.to_string().contains("`PASSWORD`"), "{error}");
    }
}
