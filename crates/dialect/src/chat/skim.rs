//! Finds the boundaries of the members of a JSON object, or of the elements of an array, without parsing the values:
//! answers consist mostly of long lists of numbers that are only passed on. What is interpreted is parsed later, from
//! the stored bytes.
//!
//! Invalid JSON is not always detected. Callers that rely on validity check it themselves.

use super::added::AddedFields;

mod block;

use block::{BLOCK, BlockMasks, closing, plain_prefix};

/// Usual size of an answer after stripping.
const OUT_BYTES: usize = 8 << 10;

/// The names, still quoted, and values of an object, in order; `None` if the text is no object.
pub(super) fn members(text: &str) -> Option<Vec<(&str, &str)>> {
    /// Enough for most objects.
    const MEMBERS: usize = 16;
    let bytes = text.as_bytes();
    let mut found = Vec::with_capacity(MEMBERS);
    let mut at = enter(bytes, b'{')?;
    loop {
        if bytes.get(at) == Some(&b'}') {
            return ends(bytes, at + 1).then_some(found);
        }
        let name_end = skip_string(bytes, at)?;
        let colon = skip_space(bytes, name_end);
        if bytes.get(colon) != Some(&b':') {
            return None;
        }
        let value = skip_space(bytes, colon + 1);
        let value_end = skip_value(bytes, value)?;
        found.push((text.get(at..name_end)?, text.get(value..value_end)?));
        at = next(bytes, value_end, b'}')?;
    }
}

/// The elements of an array, in order; `None` if the text is no array.
pub(super) fn elements(text: &str) -> Option<Vec<&str>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = enter(bytes, b'[')?;
    loop {
        if bytes.get(at) == Some(&b']') {
            return ends(bytes, at + 1).then_some(found);
        }
        let end = skip_value(bytes, at)?;
        found.push(text.get(at..end)?);
        at = next(bytes, end, b']')?;
    }
}

/// What to do with a member; chosen by its quoted name.
pub(super) enum MemberRule {
    Keep,
    Drop,
    /// Keep the usage and also return it. A `null` is removed if `is_null_dropped`.
    Usage {
        is_null_dropped: bool,
    },
    /// Replace the value with `null`.
    Null,
    /// Apply these rules to each object in the list.
    Each(fn(&[u8], &AddedFields) -> MemberRule),
}

/// The result of applying rules to an object.
pub(super) struct EditedObject<'a> {
    /// `None` if nothing changed.
    pub(super) text: Option<Vec<u8>>,
    pub(super) usage: Option<&'a [u8]>,
}

/// Applies rules to the members of an object in one pass; `None` if the text is no object. Removed values are not
/// inspected; they may even be invalid UTF-8.
pub(super) fn edit<'a>(
    text: &'a [u8],
    added: &AddedFields,
    rules: fn(&[u8], &AddedFields) -> MemberRule,
) -> Option<EditedObject<'a>> {
    let mut edit = ObjectEditor {
        text,
        added,
        // Most of an answer is removed.
        out: Vec::with_capacity(text.len().min(OUT_BYTES)),
        is_changed: false,
        usage: None,
    };
    let end = edit.object(skip_space(text, 0), rules)?;
    ends(text, end).then_some(EditedObject {
        text: edit.is_changed.then_some(edit.out),
        usage: edit.usage,
    })
}

struct ObjectEditor<'a, 'b> {
    text: &'a [u8],
    added: &'b AddedFields,
    out: Vec<u8>,
    is_changed: bool,
    usage: Option<&'a [u8]>,
}

impl ObjectEditor<'_, '_> {
    /// Copies the object at `at`; returns the index after its end.
    fn object(&mut self, at: usize, rules: fn(&[u8], &AddedFields) -> MemberRule) -> Option<usize> {
        let bytes = self.text;
        if bytes.get(at) != Some(&b'{') {
            return None;
        }
        let mut at = skip_space(bytes, at + 1);
        let mut is_first = true;
        self.out.push(b'{');
        while bytes.get(at) != Some(&b'}') {
            let name_end = skip_string(bytes, at)?;
            let name = self.text.get(at..name_end)?;
            let colon = skip_space(bytes, name_end);
            if bytes.get(colon) != Some(&b':') {
                return None;
            }
            let value = skip_space(bytes, colon + 1);
            let end = self.member(name, value, rules(name, self.added), &mut is_first)?;
            at = next(bytes, end, b'}')?;
        }
        self.out.push(b'}');
        Some(at + 1)
    }

    fn member(
        &mut self,
        name: &[u8],
        value: usize,
        rule: MemberRule,
        is_first: &mut bool,
    ) -> Option<usize> {
        if let MemberRule::Each(rules) = rule
            && self.text.get(value) == Some(&b'[')
        {
            self.name(name, is_first);
            return self.list(value, rules);
        }
        let end = skip_value(self.text, value)?;
        let text = self.text.get(value..end)?;
        let is_null = text == b"null";
        if let MemberRule::Usage { .. } = rule
            && !is_null
        {
            self.usage = Some(text);
        }
        match rule {
            MemberRule::Drop => self.is_changed = true,
            MemberRule::Usage {
                is_null_dropped: true,
            } if is_null => self.is_changed = true,
            MemberRule::Null if !is_null => {
                self.name(name, is_first);
                self.out.extend_from_slice(b"null");
                self.is_changed = true;
            }
            MemberRule::Keep
            | MemberRule::Usage { .. }
            | MemberRule::Null
            | MemberRule::Each(_) => {
                self.name(name, is_first);
                self.out.extend_from_slice(text);
            }
        }
        Some(end)
    }

    fn list(&mut self, at: usize, rules: fn(&[u8], &AddedFields) -> MemberRule) -> Option<usize> {
        let bytes = self.text;
        let mut at = skip_space(bytes, at + 1);
        let mut is_first = true;
        self.out.push(b'[');
        while bytes.get(at) != Some(&b']') {
            if !std::mem::replace(&mut is_first, false) {
                self.out.push(b',');
            }
            let end = if bytes.get(at) == Some(&b'{') {
                self.object(at, rules)?
            } else {
                let end = skip_value(bytes, at)?;
                self.out.extend_from_slice(self.text.get(at..end)?);
                end
            };
            at = next(bytes, end, b']')?;
        }
        self.out.push(b']');
        Some(at + 1)
    }

    fn name(&mut self, name: &[u8], is_first: &mut bool) {
        if !std::mem::replace(is_first, false) {
            self.out.push(b',');
        }
        self.out.extend_from_slice(name);
        self.out.push(b':');
    }
}

fn enter(bytes: &[u8], open: u8) -> Option<usize> {
    let at = skip_space(bytes, 0);
    (bytes.get(at) == Some(&open)).then(|| skip_space(bytes, at + 1))
}

fn ends(bytes: &[u8], at: usize) -> bool {
    skip_space(bytes, at) == bytes.len()
}

/// The index of the next element after a comma, or of the closing bracket.
fn next(bytes: &[u8], at: usize, close: u8) -> Option<usize> {
    let at = skip_space(bytes, at);
    match bytes.get(at)? {
        b',' => Some(skip_space(bytes, at + 1)),
        byte if *byte == close => Some(at),
        _ => None,
    }
}

fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
        at += 1;
    }
    at
}

fn skip_value(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at)? {
        b'"' => skip_string(bytes, at),
        b'[' | b'{' => skip_nested(bytes, at),
        _ => {
            let rest = bytes.get(at..)?;
            let is_end =
                |byte: &u8| matches!(byte, b',' | b']' | b'}' | b' ' | b'\t' | b'\r' | b'\n');
            let length = rest.iter().position(is_end).unwrap_or(rest.len());
            (length > 0).then_some(at + length)
        }
    }
}

/// The index after the list or object that begins at `start`. Most of an answer is skipped here, so it works on blocks.
/// Brackets of the other type can be ignored: in valid JSON they are balanced within this one.
fn skip_nested(bytes: &[u8], start: usize) -> Option<usize> {
    let open = *bytes.get(start)?;
    let mut depth = 0_usize;
    let mut at = start;
    let mut is_in_string = false;
    loop {
        let block = bytes.get(at..at + BLOCK).and_then(|it| it.try_into().ok());
        let masks = block.and_then(|block| BlockMasks::of(block, open, is_in_string));
        if let Some(masks) = masks {
            if let Some(end) = masks.end_from(&mut depth) {
                return Some(at + end);
            }
            at += BLOCK;
            is_in_string = masks.ends_in_string;
            if masks.is_plain && !is_in_string {
                // Most likely a list of numbers, which tend to be long.
                at += plain_prefix(&bytes[at..]);
            }
            continue;
        }
        if std::mem::take(&mut is_in_string) {
            at = string_end(bytes, at)?;
        }
        match skip_bytes(bytes, at, open, depth)? {
            Skipped::Whole(end) => return Some(end),
            Skipped::Part { end, depth: now } => (at, depth) = (end, now),
        }
    }
}

enum Skipped {
    Whole(usize),
    Part { end: usize, depth: usize },
}

/// The same byte by byte, for about one block: for strings with escapes, and at the end of the text.
fn skip_bytes(bytes: &[u8], start: usize, open: u8, mut depth: usize) -> Option<Skipped> {
    let mut at = start;
    while at < start + BLOCK {
        let byte = *bytes.get(at)?;
        at += 1;
        if byte == b'"' {
            at = string_end(bytes, at)?;
        } else if byte == open {
            depth += 1;
        } else if byte == closing(open) {
            depth -= 1;
            if depth == 0 {
                return Some(Skipped::Whole(at));
            }
        }
    }
    Some(Skipped::Part { end: at, depth })
}

fn skip_string(bytes: &[u8], start: usize) -> Option<usize> {
    match bytes.get(start) {
        Some(b'"') => string_end(bytes, start + 1),
        _ => None,
    }
}

/// The index after the closing quote of the string whose content begins at `at`.
fn string_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    // Most strings in an answer are names and single tokens, too short for memchr to pay off.
    const NEAR: usize = 16;
    let near = bytes.get(at..)?.iter().take(NEAR);
    match near
        .enumerate()
        .find(|(_, byte)| matches!(byte, b'"' | b'\\'))
    {
        Some((length, b'"')) => return Some(at + length + 1),
        Some((length, _)) => at += length,
        None => at += NEAR,
    }
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn members_and_elements_keep_their_text() {
        let text = r#" { "a" : [1, 2,3] , "b\"c":{"x":"]}\\"},"d":null,"e":"é" } "#;
        let found = members(text).unwrap();
        assert_eq!(
            found,
            [
                ("\"a\"", "[1, 2,3]"),
                (r#""b\"c""#, r#"{"x":"]}\\"}"#),
                ("\"d\"", "null"),
                ("\"e\"", "\"é\"")
            ]
        );
        assert_eq!(
            elements("[1, [2,[3]],\"x\"]").unwrap(),
            ["1", "[2,[3]]", "\"x\""]
        );
        assert_eq!(elements("[]").unwrap(), Vec::<&str>::new());
    }

    #[test]
    fn torn_and_foreign_text_is_refused() {
        for text in [
            "",
            "{",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":[1",
            "{\"a\":1",
            "{\"a\":1}x",
            "[1]",
            "null",
            "{\"a\" 1}",
            "\"\\",
        ] {
            assert_eq!(members(text), None, "{text}");
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
            prop::collection::vec(0_u32..100_000, 0..20).prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::hash_map(".*", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn brackets_in_strings_are_ignored_wherever_a_block_begins() {
        for shift in 0..BLOCK {
            let pad = "x".repeat(shift);
            let inner =
                format!(r#"["{pad}]}}",{{"a\\\"]":"[{{","b":[1,[2.5,-3]]}},"\\\\","{pad}]"]"#);
            let text = format!(r#"{{"first":{inner},"second":{}}}"#, "[1,2,3]");
            let found = members(&text).unwrap();
            assert_eq!(
                found,
                [("\"first\"", inner.as_str()), ("\"second\"", "[1,2,3]")]
            );
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_serde_json(value in json(), is_pretty: bool) {
            let text = if is_pretty { serde_json::to_string_pretty(&value).unwrap() } else { value.to_string() };
            let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            match &value {
                Value::Object(map) => {
                    let found = members(&text).unwrap();
                    let pairs: Vec<_> = found.iter().map(|(name, value)| (read(name), read(value))).collect();
                    let expect: Vec<_> = map.iter().map(|(name, value)| (Value::from(name.as_str()), value.clone())).collect();
                    prop_assert_eq!(pairs, expect);
                }
                Value::Array(list) => {
                    let found: Vec<_> = elements(&text).unwrap().into_iter().map(read).collect();
                    prop_assert_eq!(&found, list);
                }
                _ => prop_assert!(members(&text).is_none() && elements(&text).is_none()),
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in ".*", cut in any::<prop::sample::Index>()) {
            let _ = (members(&text), elements(&text));
            let object = format!("{{\"a\":[{text}],\"b\":\"{text}\"}}");
            let cut = (0..=cut.index(object.len() + 1)).rev().find(|at| object.is_char_boundary(*at)).unwrap();
            let _ = (members(&object[..cut]), elements(&object[1..cut.max(1)]));
        }
    }
}
