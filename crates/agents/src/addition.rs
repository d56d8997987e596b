//! What a task's option adds to a launch, as described by `[options.NAME]` in a manifest: arguments, variables, files,
//! or settings in the agent's configuration file (merged by `patch`).

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use rollcage_model::task::OptionValue;

use super::error::ManifestError;
use super::fill::{self, Quoting};
use super::{Launch, LaunchError, patch};

/// The placeholder for the option's value: a text, or the names of a list joined with commas.
const VALUE: &str = "value";
/// The placeholder for the names as a JSON list, or spliced into a longer list.
const LIST: &str = "{list}";
/// Options whose value is a list.
const LISTS: [&str; 2] = ["tools", "disabled_tools"];

/// Changes to a launch, in which `{value}` is replaced by the task's value.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LaunchAddition {
    /// Arguments removed from the agent's own command.
    pub(super) drop: Vec<String>,
    command: Vec<String>,
    env: BTreeMap<String, String>,
    files: BTreeMap<String, String>,
    /// Merged into the agent's configuration file.
    config: Map<String, Value>,
    /// All values that the agent knows, for a text; others are refused. Empty if it takes any.
    values: Vec<String>,
    /// All valid names, for an agent that only accepts the complement: the value becomes the names that the task does
    /// not list.
    all: Vec<String>,
    /// Applied once for each name of a list.
    each: Option<Box<LaunchAddition>>,
    /// Applied for particular names of a list; other names are then refused.
    named: BTreeMap<String, LaunchAddition>,
}

/// An option that a task sets, and what it adds to a launch.
pub(super) struct WantedOption<'a> {
    pub(super) name: &'static str,
    pub(super) value: OptionValue<'a>,
    pub(super) addition: Cow<'a, LaunchAddition>,
}

/// The context that an addition is applied in.
pub(super) struct AdditionContext<'a> {
    pub(super) agent: &'a str,
    pub(super) option: &'static str,
    /// The path of the agent's configuration file in the sandbox.
    pub(super) config: Option<&'a str>,
    pub(super) home: &'a [(String, String)],
    pub(super) values: &'a [(&'static str, String)],
}

impl LaunchAddition {
    /// Checks that every placeholder is known and every file path is allowed.
    pub(super) fn check(&self, option: &str, has_config: bool) -> Result<(), ManifestError> {
        let texts = self.command.iter().chain(self.env.values());
        let mut texts: Vec<&str> = texts
            .chain(self.files.values())
            .map(String::as_str)
            .collect();
        let in_config = self.config.iter().flat_map(|(key, value)| {
            let mut texts = vec![key.as_str()];
            add_texts(value, &mut texts);
            texts
        });
        texts.extend(in_config.filter(|text| *text != LIST));
        let mut names = texts.into_iter().flat_map(fill::unknown);
        if let Some(unknown) = names.find(|name| *name != VALUE) {
            return Err(ManifestError::Placeholder {
                placeholder: format!("{{{unknown}}}"),
                place: format!("`options.{option}`"),
            });
        }
        let has_list = self.each.is_some() || !self.named.is_empty() || !self.all.is_empty();
        if has_list && !LISTS.contains(&option) {
            return Err(ManifestError::NoList(option.to_owned()));
        }
        if !self.values.is_empty() && LISTS.contains(&option) {
            return Err(ManifestError::NoText(option.to_owned()));
        }
        if self
            .command
            .iter()
            .any(|argument| fill::names(argument).contains(&"key"))
        {
            return Err(ManifestError::KeyInCommand);
        }
        if !self.config.is_empty() && !has_config {
            return Err(ManifestError::NoConfig {
                option: option.to_owned(),
            });
        }
        let mut inner = self.each.as_deref().into_iter().chain(self.named.values());
        inner.try_for_each(|addition| {
            if !addition.drop.is_empty() || !addition.all.is_empty() {
                return Err(ManifestError::Inner(option.to_owned()));
            }
            addition.check(option, has_config)
        })
    }

    /// What it adds beside the arguments.
    pub(super) fn without_command(&self) -> Self {
        LaunchAddition {
            command: Vec::new(),
            ..self.clone()
        }
    }

    /// The paths of all its files, relative to the home directory.
    pub(super) fn paths(&self) -> Vec<&String> {
        let inner = self.each.as_deref().into_iter().chain(self.named.values());
        let inner = inner.flat_map(LaunchAddition::paths);
        self.files.keys().chain(inner).collect()
    }

    /// Applies the changes to a launch.
    pub(super) fn apply(
        &self,
        launch: &mut Launch,
        value: OptionValue<'_>,
        cx: &AdditionContext<'_>,
    ) -> Result<(), LaunchError> {
        let list = self.names(value, cx.agent, cx.option)?;
        let mut values = cx.values.to_vec();
        values.push(match value {
            OptionValue::Text(text) => (VALUE, text.to_owned()),
            OptionValue::List(_) => (VALUE, list.join(",")),
        });
        let plain = |text: &String| fill::fill(text, &values, Quoting::Plain);
        launch.argv.extend(self.command.iter().map(plain));
        let env = self.env.iter();
        launch
            .env
            .extend(env.map(|(name, text)| (name.clone(), plain(text))));
        let files = self.files.iter();
        launch
            .files
            .extend(files.map(|(path, text)| fill::home_file(path, text, &values)));
        if !self.config.is_empty()
            && let Some(path) = cx.config
        {
            let config = Value::Object(self.config.clone());
            let filled = filled(&config, &values, &list);
            patch::merge(&mut launch.files, cx.home, path, &filled)?;
        }
        for name in &list {
            let one = OptionValue::List(std::slice::from_ref(name));
            if let Some(each) = &self.each {
                each.apply(launch, one, cx)?;
            }
            if let Some(named) = self.named.get(name) {
                named.apply(launch, one, cx)?;
            }
        }
        Ok(())
    }

    /// The names of a list as they are passed to the agent. What the agent does not know is refused, where that is known.
    pub(super) fn names(
        &self,
        value: OptionValue<'_>,
        agent: &str,
        option: &'static str,
    ) -> Result<Vec<String>, LaunchError> {
        let (names, known): (&[String], Vec<&String>) = match value {
            OptionValue::List(names) => (names, self.all.iter().chain(self.named.keys()).collect()),
            OptionValue::Text(text) => (&[text.to_owned()], self.values.iter().collect()),
        };
        let unknown = names.iter().find(|name| !known.contains(name));
        if let Some(name) = unknown.filter(|_| !known.is_empty()) {
            let known: Vec<_> = known.iter().map(|name| name.as_str()).collect();
            return Err(LaunchError::Name {
                agent: agent.to_owned(),
                option,
                name: name.clone(),
                known: known.join(", "),
            });
        }
        if let OptionValue::Text(_) = value {
            return Ok(Vec::new());
        }
        if self.all.is_empty() {
            return Ok(names.to_vec());
        }
        let rest = self.all.iter().filter(|name| !names.contains(name));
        Ok(rest.cloned().collect())
    }
}

/// Collects every key and text in a value, at any depth.
fn add_texts<'a>(value: &'a Value, texts: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(items) => items.iter().for_each(|item| add_texts(item, texts)),
        Value::Object(members) => {
            for (key, value) in members {
                texts.push(key);
                add_texts(value, texts);
            }
        }
        _ => {}
    }
}

/// A value with its placeholders filled in.
pub(super) fn filled(value: &Value, values: &[(&'static str, String)], list: &[String]) -> Value {
    let plain = |text: &str| fill::fill(text, values, Quoting::Plain);
    match value {
        Value::String(text) if text == LIST => Value::from(list),
        Value::String(text) => Value::from(plain(text)),
        Value::Array(items) => {
            let items = items.iter().map(|item| match item {
                Value::String(text) if text == LIST => {
                    list.iter().map(|name| Value::from(name.as_str())).collect()
                }
                item => vec![filled(item, values, list)],
            });
            Value::Array(items.flatten().collect())
        }
        Value::Object(members) => {
            let members = members.iter();
            let member =
                |(key, value): (&String, &Value)| (plain(key), filled(value, values, list));
            Value::Object(members.map(member).collect())
        }
        other => other.clone(),
    }
}
