//! Reads ini files the way Python's `configparser` does, which is what pip reads its settings with.

/// One setting: section and key in lower case, and the value, whose lines are kept apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) section: String,
    pub(crate) key: String,
    pub(crate) value: String,
}

/// The settings of a file, in order. Lines that say nothing are passed over.
pub(crate) fn parse(text: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut section = String::new();
    // Whether an indented line goes on with the entry before it.
    let mut is_open = false;
    for line in text.lines() {
        let content = line.trim();
        if content.is_empty() || content.starts_with(['#', ';']) {
            continue;
        }
        if line.starts_with([' ', '\t']) && is_open {
            if let Some(entry) = entries.last_mut() {
                entry.value.push('\n');
                entry.value.push_str(content);
            }
            continue;
        }
        is_open = false;
        if let Some(name) = content.strip_prefix('[') {
            section = name
                .split(']')
                .next()
                .unwrap_or_default()
                .trim()
                .to_lowercase();
        } else if let Some((key, value)) = content.split_once(['=', ':']) {
            is_open = true;
            entries.push(Entry {
                section: section.clone(),
                key: key.trim().to_lowercase(),
                value: value.trim().to_owned(),
            });
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_continuations_and_comments() {
        let text = "stray\n[global]\nIndex-Url = https://h/a=b\n# c\nextra: one\n  two\n ; no\n\tthree\n[Install ]\nx=\n[broken\ny=1";
        let got: Vec<String> = parse(text)
            .iter()
            .map(|entry| format!("{}.{}={:?}", entry.section, entry.key, entry.value))
            .collect();
        let expect = [
            r#"global.index-url="https://h/a=b""#,
            r#"global.extra="one\ntwo\nthree""#,
            r#"install.x="""#,
            r#"broken.y="1""#,
        ];
        assert_eq!(got, expect);
    }
}
