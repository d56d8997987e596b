//! Fills in the placeholders of manifests: `{model}` and the like, in commands, variables and files.

use rollcage_sandbox::guest::{AGENT_LOGS, BUNDLE_DIR, HOME, NODE_DIR, WORKDIR};

use crate::bundle::Bundle;

use super::patch::Format;
use super::{LaunchRequest, ModelAccess};

/// Placeholders whose values depend on the bundle only.
const BUNDLE_NAMES: [&str; 7] = [
    "bundle", "program", "node", "python", "home", "workdir", "logs",
];
/// Placeholders whose values depend on the rollout.
const ROLLOUT_NAMES: [&str; 8] = [
    "instruction",
    "base_url",
    "root_url",
    "key",
    "model",
    "context_tokens",
    "output_tokens",
    "patience_ms",
];

/// How a value is escaped when it is filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quoting {
    /// Unchanged.
    Plain,
    /// For the inside of a double-quoted string in JSON, TOML or YAML.
    Escaped,
}

impl Quoting {
    pub(super) fn of_file(path: &str) -> Self {
        match Format::of(path) {
            Some(_) => Quoting::Escaped,
            None => Quoting::Plain,
        }
    }

    fn write(self, value: &str) -> String {
        match self {
            Quoting::Plain => value.to_owned(),
            Quoting::Escaped => {
                let quoted = serde_json::Value::from(value).to_string();
                quoted[1..quoted.len() - 1].to_owned()
            }
        }
    }
}

/// Every `{name}` in a text. Braces around anything else are literal.
pub(super) fn names(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('{') {
        rest = &rest[start + 1..];
        let end = rest.find(|letter: char| !(letter.is_ascii_lowercase() || letter == '_'));
        if let Some(end) = end
            && end > 0
            && rest[end..].starts_with('}')
        {
            names.push(&rest[..end]);
        }
    }
    names
}

/// The names in a text that are not common placeholders.
pub(super) fn unknown(text: &str) -> Vec<&str> {
    let is_known = |name: &&str| BUNDLE_NAMES.contains(name) || ROLLOUT_NAMES.contains(name);
    let names = names(text).into_iter();
    names.filter(|name| !is_known(name)).collect()
}

/// Whether a text has a placeholder whose value depends on the rollout.
pub(super) fn depends_on_rollout(text: &str) -> bool {
    names(text).iter().any(|name| ROLLOUT_NAMES.contains(name))
}

/// The values of the placeholders that depend on the bundle only.
pub(super) fn bundle_values(bundle: Option<&Bundle>) -> Vec<(&'static str, String)> {
    let program = bundle.and_then(|bundle| bundle.program.strip_prefix(&bundle.path).ok());
    let program = program.map(|program| format!("{BUNDLE_DIR}/{}", program.display()));
    let python = bundle.and_then(|bundle| bundle.interpreter.as_ref());
    let python = python.map_or("/usr/bin/python3".to_owned(), |path| {
        path.display().to_string()
    });
    vec![
        ("bundle", BUNDLE_DIR.to_owned()),
        ("program", program.unwrap_or_else(|| BUNDLE_DIR.to_owned())),
        ("node", format!("{NODE_DIR}/bin/node")),
        ("python", python),
        ("home", HOME.to_owned()),
        ("workdir", WORKDIR.to_owned()),
        ("logs", AGENT_LOGS.to_owned()),
    ]
}

/// The proxy's URL without the API version.
pub(super) fn root_url(access: &ModelAccess) -> &str {
    let base_url = &access.base_url;
    base_url.strip_suffix("/v1").unwrap_or(base_url)
}

/// The values of all placeholders in one rollout.
pub(super) fn rollout_values(request: &LaunchRequest<'_>) -> Vec<(&'static str, String)> {
    let access = request.access;
    let mut values = bundle_values(Some(request.bundle));
    values.extend([
        ("instruction", request.task.instruction.clone()),
        ("base_url", access.base_url.clone()),
        ("root_url", root_url(access).to_owned()),
        ("key", access.key.clone()),
        ("model", access.model.clone()),
        ("context_tokens", access.context_tokens.to_string()),
        ("output_tokens", access.output_tokens.to_string()),
        ("patience_ms", access.patience_ms.to_string()),
    ]);
    values
}

/// The same value for every placeholder, to check the text around them.
pub(super) fn uniform_values(value: &str) -> Vec<(&'static str, String)> {
    let names = BUNDLE_NAMES.into_iter().chain(ROLLOUT_NAMES);
    names.map(|name| (name, value.to_owned())).collect()
}

/// The values of a hypothetical other rollout: each that depends on the rollout is different.
pub(super) fn other_rollout_values(
    values: &[(&'static str, String)],
) -> Vec<(&'static str, String)> {
    let change = |(name, value): &(&'static str, String)| {
        let other = match (ROLLOUT_NAMES.contains(name), value.as_str()) {
            (false, value) => value,
            (true, "0") => "1",
            (true, _) => "0",
        };
        (*name, other.to_owned())
    };
    values.iter().map(change).collect()
}

/// A file of the home directory with its placeholders filled in, and its absolute path.
pub(super) fn home_file(
    path: &str,
    text: &str,
    values: &[(&'static str, String)],
) -> (String, String) {
    let filled = fill(text, values, Quoting::of_file(path));
    (format!("{HOME}/{path}"), filled)
}

/// Replaces every placeholder in one pass: a value that looks like a placeholder is not replaced again.
pub(super) fn fill(text: &str, values: &[(&'static str, String)], quoting: Quoting) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('{') {
        filled.push_str(&rest[..start]);
        rest = &rest[start..];
        let found = values.iter().find_map(|(name, value)| {
            let after = rest[1..].strip_prefix(name)?.strip_prefix('}')?;
            Some((value, after))
        });
        match found {
            Some((value, after)) => {
                filled.push_str(&quoting.write(value));
                rest = after;
            }
            None => {
                filled.push('{');
                rest = &rest[1..];
            }
        }
    }
    filled.push_str(rest);
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_names_in_braces_are_filled_in_and_only_once() {
        let values = [("model", "{key} \"x\"".to_owned()), ("key", "k".to_owned())];
        let plain = fill("a {model} {\"key\":1} {key", &values, Quoting::Plain);
        assert_eq!(plain, "a {key} \"x\" {\"key\":1} {key");
        let escaped = fill(r#"{"m":"{model}"}"#, &values, Quoting::Escaped);
        assert_eq!(escaped, r#"{"m":"{key} \"x\""}"#);
    }

    #[test]
    fn a_name_that_means_nothing_is_found() {
        assert_eq!(unknown("{model} {env:X} {} {modle}"), ["modle"]);
        assert!(depends_on_rollout("x{key}") && !depends_on_rollout("{home}"));
    }
}
