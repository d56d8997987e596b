//! Reads `.npmrc` text: ini lines, quotes, comments and `${VAR}` references. Knows the syntax alone.

use std::collections::BTreeMap;

/// The pairs of a file, in order; `key[]=value` lines repeat the key.
pub(super) fn parse(text: &str, env: &BTreeMap<String, String>) -> Vec<(String, String)> {
    text.lines().filter_map(|line| pair(line, env)).collect()
}

fn pair(line: &str, env: &BTreeMap<String, String>) -> Option<(String, String)> {
    let line = line.trim();
    if line.is_empty() || line.starts_with([';', '#', '[']) {
        return None;
    }
    // npm reads a key without a value as a switch that is on.
    let (key, value) = line.split_once('=').unwrap_or((line, "true"));
    let key = value_of(key.trim());
    let key = expand(key.strip_suffix("[]").unwrap_or(&key), env);
    Some((key, expand(&value_of(value.trim()), env)))
}

/// A value in double quotes is JSON's, of which a certificate needs the line ends; otherwise a comment ends it.
fn value_of(text: &str) -> String {
    let inner = |quote: char| {
        text.strip_prefix(quote)
            .and_then(|text| text.strip_suffix(quote))
    };
    if let Some(text) = inner('"') {
        return text
            .replace("\\n", "\n")
            .replace("\\\"", "\"")
            .replace("\\\\", "\\");
    }
    if let Some(text) = inner('\'') {
        return text.to_owned();
    }
    let mut value = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            ';' | '#' => break,
            '\\' => value.push(
                letters
                    .next_if(|next| matches!(next, '\\' | ';' | '#'))
                    .unwrap_or('\\'),
            ),
            other => value.push(other),
        }
    }
    value.trim_end().to_owned()
}

/// Replaces `${VAR}`; an unknown one stays, `${VAR?}` turns into nothing, and a backslash before the dollar keeps the text.
fn expand(text: &str, env: &BTreeMap<String, String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let Some(length) = rest[start..].find('}') else {
            break;
        };
        let (before, whole) = (&rest[..start], &rest[start..=start + length]);
        let name = &whole[2..length];
        let optional = name.strip_suffix('?');
        let value = env.get(optional.unwrap_or(name)).map(String::as_str);
        match (before.strip_suffix('\\'), value.or(optional.map(|_| ""))) {
            (Some(before), _) => expanded.extend([before, whole]),
            (None, value) => expanded.extend([before, value.unwrap_or(whole)]),
        }
        rest = &rest[start + length + 1..];
    }
    expanded + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expect: Option<(&str, &str)>) {
        let env = BTreeMap::from([("TOKEN".to_owned(), "s3cret".to_owned())]);
        let got = parse(line, &env);
        let got = got
            .first()
            .map(|(key, value)| (key.as_str(), value.as_str()));
        assert_eq!(got, expect, "{line}");
    }

    #[test]
    fn lines_are_read_as_npm_does() {
        check("registry=https://a/", Some(("registry", "https://a/")));
        check(
            " registry = https://a/ ; why",
            Some(("registry", "https://a/")),
        );
        check("; registry=x", None);
        check("[section]", None);
        check("strict-ssl", Some(("strict-ssl", "true")));
        check("ca[]=\"a\\nb\"", Some(("ca", "a\nb")));
        check("cafile='/a b/c'", Some(("cafile", "/a b/c")));
        check("_password=a\\;b\\#c", Some(("_password", "a;b#c")));
        check("//h/:_authToken=a=b==", Some(("//h/:_authToken", "a=b==")));
        check("=", Some(("", "")));
        check("a=\"", Some(("a", "\"")));
    }

    #[test]
    fn references_to_variables_are_replaced() {
        check("a=x-${TOKEN}-${TOKEN}", Some(("a", "x-s3cret-s3cret")));
        check("a=${NONE}", Some(("a", "${NONE}")));
        check("a=${NONE?}!", Some(("a", "!")));
        check("a=\\${TOKEN}", Some(("a", "${TOKEN}")));
        check("a=${TOKEN", Some(("a", "${TOKEN")));
        check("a=é${}é", Some(("a", "é${}é")));
    }
}
