//! A JSON object as its members in order, each value as the text it was written in.

use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

use super::skim;

#[derive(Debug, Default)]
pub(crate) struct Members<'a>(Vec<(String, Text<'a>)>);

#[derive(Debug)]
enum Text<'a> {
    Read(&'a str),
    Written(Box<RawValue>),
}

impl Text<'_> {
    fn get(&self) -> &str {
        match self {
            Text::Read(text) => text,
            Text::Written(raw) => raw.get(),
        }
    }
}

impl<'a> Members<'a> {
    /// `None` when the text is no JSON object.
    pub(crate) fn read(text: &'a str) -> Option<Self> {
        let read = |(name, value): (&str, &'a str)| {
            let name: String = serde_json::from_str(name).ok()?;
            Some((name, Text::Read(value)))
        };
        let members = skim::members(text)?.into_iter().map(read);
        members.collect::<Option<_>>().map(Members)
    }

    /// The first name that occurs twice.
    pub(crate) fn duplicate(&self) -> Option<&str> {
        let mut seen = std::collections::HashSet::new();
        self.0
            .iter()
            .map(|(name, _)| name.as_str())
            .find(|name| !seen.insert(*name))
    }

    /// The value's text; `null` counts as absent, as it does for the upstreams.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let (_, text) = self.0.iter().find(|(other, _)| other == name)?;
        Some(text.get()).filter(|text| *text != "null")
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(other, _)| other == name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// The value as `T`; `None` when it is absent, `null` or of another type.
    pub(crate) fn value<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Option<T> {
        serde_json::from_str(self.get(name)?).ok()
    }

    /// Replaces the value where it stands, or appends it.
    pub(crate) fn set(&mut self, name: &str, value: Box<RawValue>) {
        match self.0.iter_mut().find(|(other, _)| other == name) {
            Some((_, text)) => *text = Text::Written(value),
            None => self.0.push((name.to_owned(), Text::Written(value))),
        }
    }

    /// Says whether there was something to remove.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|(other, _)| other != name);
        self.0.len() != before
    }

    pub(crate) fn write(&self) -> String {
        let length = self
            .0
            .iter()
            .map(|(name, text)| name.len() + text.get().len() + 4)
            .sum::<usize>();
        let mut out = String::with_capacity(length + 2);
        out.push('{');
        for (at, (name, text)) in self.0.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            out.push_str(&serde_json::Value::from(name.as_str()).to_string());
            out.push(':');
            out.push_str(text.get());
        }
        out.push('}');
        out
    }
}

/// The raw text of a value of ours.
pub(crate) fn raw<T: serde::Serialize>(value: &T) -> Result<Box<RawValue>, serde_json::Error> {
    to_raw_value(value)
}
