//! Reads git's configuration files: sections with a name in quotes, values with quotes, escapes, comments and lines that go on.

/// One setting; section and key in lower case, the name between them as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) section: String,
    pub(super) name: String,
    pub(super) key: String,
    pub(super) value: String,
}

pub(super) fn parse(text: &str) -> Vec<Setting> {
    let mut settings = Vec::new();
    let (mut section, mut name) = (String::new(), String::new());
    // A backslash at the end of a line joins it with the next one.
    let text = text.replace("\r\n", "\n").replace("\\\n", "");
    for line in text.lines() {
        let mut line = line.trim();
        if let Some(rest) = line.strip_prefix('[') {
            let Some((head, behind)) = head(rest) else {
                continue;
            };
            (section, name) = head;
            line = behind.trim();
        }
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        // A key alone is a switch that is on.
        let (key, value) = line.split_once('=').unwrap_or((line, "true"));
        settings.push(Setting {
            section: section.clone(),
            name: name.clone(),
            key: key.trim().to_lowercase(),
            value: value_of(value.trim()),
        });
    }
    settings
}

/// `section.name.key`, as variables write it.
pub(super) fn of_key(key: &str, value: &str) -> Option<Setting> {
    let (section, rest) = key.split_once('.')?;
    let (name, key) = rest.rsplit_once('.').unwrap_or(("", rest));
    Some(Setting {
        section: section.to_lowercase(),
        name: name.to_owned(),
        key: key.to_lowercase(),
        value: value.to_owned(),
    })
}

/// What stands between brackets, `section "name"` or `section`, and what is behind them.
fn head(text: &str) -> Option<((String, String), &str)> {
    let end = text.find([']', '"'])?;
    let section = text[..end].trim().to_lowercase();
    if text[end..].starts_with(']') {
        return Some(((section, String::new()), &text[end + 1..]));
    }
    let mut name = String::new();
    let mut letters = text[end + 1..].char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => name.extend(letters.next().map(|(_, letter)| letter)),
            '"' => {
                let behind = text[end + 1 + at + 1..].trim_start().strip_prefix(']')?;
                return Some(((section, name), behind));
            }
            other => name.push(other),
        }
    }
    None
}

fn value_of(text: &str) -> String {
    let mut value = String::with_capacity(text.len());
    let mut is_quoted = false;
    // Spaces before a comment belong to neither.
    let mut kept = 0;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => {
                is_quoted = !is_quoted;
                kept = value.len();
                continue;
            }
            '\\' => value.extend(letters.next().map(|letter| match letter {
                'n' => '\n',
                't' => '\t',
                other => other,
            })),
            '#' | ';' if !is_quoted => break,
            other => value.push(other),
        }
        if is_quoted || !letter.is_whitespace() {
            kept = value.len();
        }
    }
    value.truncate(kept);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_values_and_comments() {
        let text = "; c\n[core]\nbare\n[url \"https://m.example/\\\"x\"] insteadOf = https://github.com/ # why\n\
                    [HTTP \"https://h/\"]\n proxy = \"a # b\" ; c\n[a.b]\nx = one\\\n two\n[broken\ny=\"\n[url \"no end";
        let got: Vec<String> = parse(text)
            .iter()
            .map(|it| format!("{}|{}|{}|{}", it.section, it.name, it.key, it.value))
            .collect();
        let expect = [
            "core||bare|true",
            "url|https://m.example/\"x|insteadof|https://github.com/",
            "http|https://h/|proxy|a # b",
            "a.b||x|one two",
            "a.b||y|",
        ];
        assert_eq!(got, expect);
    }

    #[test]
    fn keys_of_variables() {
        let setting = of_key("URL.https://m.example/a.b.insteadOf", "x").unwrap();
        assert_eq!(
            (setting.section.as_str(), setting.name.as_str()),
            ("url", "https://m.example/a.b")
        );
        assert_eq!(of_key("nothing", "x"), None);
    }
}
