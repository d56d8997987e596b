//! Parses `.npmrc` files: ini lines, quotes, comments and `${VAR}` references. This is syntax only; `registry.rs`
//! interprets the keys.

/// One `key=value` of a file; `key[]=value` lines repeat the key.
pub(super) type Setting = (String, String);

/// The settings of one file, in order, with references to the environment replaced.
pub(super) fn parse(text: &str, get: &dyn Fn(&str) -> Option<String>) -> Vec<Setting> {
    text.lines().filter_map(|line| setting(line, get)).collect()
}

fn setting(line: &str, get: &dyn Fn(&str) -> Option<String>) -> Option<Setting> {
    let line = line.trim();
    if line.is_empty() || line.starts_with([';', '#', '[']) {
        return None;
    }
    // npm reads a key without a value as `true`.
    let (key, value) = line.split_once('=').unwrap_or((line, "true"));
    let key = unquote(key.trim());
    let key = expand(key.strip_suffix("[]").unwrap_or(&key), get);
    Some((key, expand(&unquote(value.trim()), get)))
}

fn unquote(text: &str) -> String {
    if text.len() >= 2 && text.starts_with('"') && text.ends_with('"') {
        if let Ok(inner) = serde_json::from_str(text) {
            return inner;
        }
    } else if text.len() >= 2 && text.starts_with('\'') && text.ends_with('\'') {
        return text[1..text.len() - 1].to_owned();
    }
    uncomment(text)
}

/// Removes a trailing comment and resolves the three escapes of ini files.
fn uncomment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            ';' | '#' => break,
            '\\' => match letters.next_if(|next| matches!(next, '\\' | ';' | '#')) {
                Some(escaped) => out.push(escaped),
                None => out.push('\\'),
            },
            other => out.push(other),
        }
    }
    out.trim_end().to_owned()
}

/// Replaces `${VAR}`. As in npm, an unknown reference is kept as it is, `${VAR?}` becomes empty, and a backslash before
/// the dollar sign prevents the replacement.
fn expand(text: &str, get: &dyn Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let (before, reference) = rest.split_at(start);
        let Some(end) = reference.find('}') else {
            break;
        };
        let (whole, after) = reference.split_at(end + 1);
        let name = &whole[2..end];
        match before.strip_suffix('\\') {
            Some(before) => {
                out.push_str(before);
                out.push_str(whole);
            }
            None => {
                out.push_str(before);
                let optional = name.strip_suffix('?');
                match (get(optional.unwrap_or(name)), optional) {
                    (Some(value), _) => out.push_str(&value),
                    (None, Some(_)) => {}
                    (None, None) => out.push_str(whole),
                }
            }
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[track_caller]
    fn check(line: &str, expect: Option<(&str, &str)>) {
        let get = |name: &str| (name == "TOKEN").then(|| "s3cret".to_owned());
        let got = parse(line, &get);
        let got = got
            .first()
            .map(|(key, value)| (key.as_str(), value.as_str()));
        assert_eq!(got, expect, "{line}");
    }

    #[test]
    fn reads_lines_as_npm_does() {
        check("registry=https://a/", Some(("registry", "https://a/")));
        check(
            " registry = https://a/ ; why",
            Some(("registry", "https://a/")),
        );
        check("; registry=x", None);
        check("# registry=x", None);
        check("[section]", None);
        check("strict-ssl", Some(("strict-ssl", "true")));
        check("ca[]=one", Some(("ca", "one")));
        check("ca=\"a\\nb\"", Some(("ca", "a\nb")));
        check("cafile='/a b/c'", Some(("cafile", "/a b/c")));
        check("_password=a\\;b\\#c", Some(("_password", "a;b#c")));
        check("//h/:_authToken=a=b==", Some(("//h/:_authToken", "a=b==")));
    }

    #[test]
    fn replaces_references_to_the_environment() {
        check("a=${TOKEN}", Some(("a", "s3cret")));
        check("a=x-${TOKEN}-${TOKEN}", Some(("a", "x-s3cret-s3cret")));
        check("a=${NONE}", Some(("a", "${NONE}")));
        check("a=${NONE?}!", Some(("a", "!")));
        check("a=\\${TOKEN}", Some(("a", "${TOKEN}")));
        check("a=${TOKEN", Some(("a", "${TOKEN")));
        check("//${TOKEN}/:_auth=1", Some(("//s3cret/:_auth", "1")));
    }
}
