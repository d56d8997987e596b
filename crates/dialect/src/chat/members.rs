//! A JSON object as its members in order, each value as the text it was written in.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;

use super::pieces::{Joiner, Pieces};
use super::skim;

/// Names, and values as they are written.
#[derive(Debug, Default)]
pub(crate) struct Members<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Members<'a> {
    /// `None` when the text is no JSON object.
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

    /// The value's text; `null` counts as absent, as it does for the upstreams.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let (_, text) = self.0.iter().find(|(other, _)| other == name)?;
        Some(text.as_ref()).filter(|text| *text != "null")
    }

    /// As [`Self::get`], for a value that was not set: it outlives the members.
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

    /// The value as `T`; `None` when it is absent, `null` or of another type.
    pub(crate) fn value<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Option<T> {
        serde_json::from_str(self.get(name)?).ok()
    }

    /// Replaces the value where it stands, or appends it; `text` is JSON.
    pub(crate) fn set(&mut self, name: &str, text: String) {
        match self.0.iter_mut().find(|(other, _)| other == name) {
            Some((_, old)) => *old = Cow::Owned(text),
            None => self.0.push((Cow::Owned(name.to_owned()), Cow::Owned(text))),
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

    /// The same without a copy of what is long; `source` is what the members were read from.
    pub(crate) fn write_pieces(&self, source: &Bytes) -> Pieces {
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

/// Whether a name means itself: most do, and need no JSON reader or writer.
fn is_plain(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\')
}

/// What a quoted name says; `None` when it is no JSON.
fn unquoted(name: &str) -> Option<Cow<'_, str>> {
    let inner = name
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    match inner.filter(|inner| is_plain(inner)) {
        Some(inner) => Some(Cow::Borrowed(inner)),
        None => serde_json::from_str(name).ok().map(Cow::Owned),
    }
}

/// A name as it stands before its value.
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
