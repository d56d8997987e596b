//! A JSON object as an ordered list of members with unparsed values.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;

use super::segments::{BodySegments, Joiner};
use super::skim;

/// Names, and the unparsed JSON text of the values.
#[derive(Debug, Default)]
pub(crate) struct Members<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Members<'a> {
    /// `None` if the text is no JSON object.
    pub(crate) fn read(text: &'a str) -> Option<Self> {
        let read =
            |(name, value): (&'a str, &'a str)| Some((unquoted(name)?, Cow::Borrowed(value)));
        let members = skim::members(text)?.into_iter().map(read);
        members.collect::<Option<_>>().map(Members)
    }

    /// A name that occurs twice.
    pub(crate) fn duplicate(&self) -> Option<&str> {
        let mut names: Vec<&str> = self.names().collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|pair| pair[0] == pair[1])?;
        Some(twice[0])
    }

    /// The JSON text of a value; `null` counts as absent, as it does for endpoints.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let (_, text) = self.0.iter().find(|(other, _)| other == name)?;
        Some(text.as_ref()).filter(|text| *text != "null")
    }

    /// Like [`Self::get`], but only for values that were not replaced by [`Self::set`]; the text outlives `self`.
    pub(crate) fn text(&self, name: &str) -> Option<&'a str> {
        match self.0.iter().find(|(other, _)| other == name)? {
            (_, Cow::Borrowed(text)) => Some(*text).filter(|text| *text != "null"),
            (_, Cow::Owned(_)) => None,
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(other, _)| other == name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_ref())
    }

    /// The parsed value; `None` if it is absent, `null` or of another type.
    pub(crate) fn value<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Option<T> {
        serde_json::from_str(self.get(name)?).ok()
    }

    /// Replaces the value in place, or appends it; `text` is JSON.
    pub(crate) fn set(&mut self, name: &str, text: String) {
        match self.0.iter_mut().find(|(other, _)| other == name) {
            Some((_, old)) => *old = Cow::Owned(text),
            None => self.0.push((Cow::Owned(name.to_owned()), Cow::Owned(text))),
        }
    }

    /// Returns whether the member existed.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|(other, _)| other != name);
        self.0.len() != before
    }

    pub(crate) fn write(&self) -> String {
        let length = self
            .0
            .iter()
            .map(|(name, text)| name.len() + text.len() + 4)
            .sum::<usize>();
        let mut out = String::with_capacity(length + 2);
        for (at, (name, text)) in self.0.iter().enumerate() {
            out.push(if at == 0 { '{' } else { ',' });
            push_name(name, |text| out.push_str(text));
            out.push_str(text);
        }
        out.push_str(if self.0.is_empty() { "{}" } else { "}" });
        out
    }

    /// Like [`Self::write`], but long values are not copied; `source` is what the members were read from.
    pub(crate) fn write_segments(&self, source: &Bytes) -> BodySegments {
        let mut out = Joiner::new(source);
        for (at, (name, text)) in self.0.iter().enumerate() {
            out.push(if at == 0 { "{" } else { "," });
            push_name(name, |text| out.push(text));
            match text {
                Cow::Borrowed(text) => out.push_part(text),
                Cow::Owned(text) => out.push(text),
            }
        }
        out.push(if self.0.is_empty() { "{}" } else { "}" });
        out.finish()
    }
}

/// Whether a name needs no escaping, as most do not.
fn is_plain(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\')
}

/// The value of a quoted name; `None` if it is no JSON string.
fn unquoted(name: &str) -> Option<Cow<'_, str>> {
    let inner = name
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    match inner.filter(|inner| is_plain(inner)) {
        Some(inner) => Some(Cow::Borrowed(inner)),
        None => serde_json::from_str(name).ok().map(Cow::Owned),
    }
}

/// Writes a quoted name and its colon.
fn push_name(name: &str, mut push: impl FnMut(&str)) {
    if is_plain(name) {
        push("\"");
        push(name);
        push("\":");
    } else {
        push(&serde_json::Value::from(name).to_string());
        push(":");
    }
}
