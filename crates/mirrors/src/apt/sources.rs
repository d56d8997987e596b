//! Reads and writes apt's sources: lines (`deb [option=value] URI suite component`) and stanzas (deb822). Only options that
//! are known are kept.

/// One source, in either form.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    types: Vec<String>,
    /// URIs; empty once none of them can be carried over.
    pub(super) places: Vec<String>,
    suites: Vec<String>,
    components: Vec<String>,
    /// By their name in stanzas.
    options: Vec<(&'static str, String)>,
}

/// Names in stanzas, and in lines.
const OPTIONS: [(&str, &str); 12] = [
    ("Architectures", "arch"),
    ("Languages", "lang"),
    ("Targets", "target"),
    ("PDiffs", "pdiffs"),
    ("By-Hash", "by-hash"),
    ("Allow-Insecure", "allow-insecure"),
    ("Allow-Weak", "allow-weak"),
    ("Allow-Downgrade-To-Insecure", "allow-downgrade-to-insecure"),
    ("Trusted", "trusted"),
    ("Signed-By", "signed-by"),
    ("Check-Valid-Until", "check-valid-until"),
    ("Valid-Until-Max", "valid-until-max"),
];

impl Entry {
    /// The files among the keyrings; others are fingerprints or keys themselves.
    pub(super) fn keyrings(&self) -> impl Iterator<Item = &str> {
        let values = self.options.iter().filter(|(name, _)| *name == "Signed-By");
        let words = values.flat_map(|(_, value)| value.split([',', ' ', '\n']));
        words.filter(|word| word.starts_with('/'))
    }

    /// The folders of suites that have no components, below each place: those whose names end with a slash.
    pub(super) fn flat(&self) -> Vec<String> {
        let folders = self.suites.iter().filter(|suite| suite.ends_with('/'));
        let plain = folders.map(|suite| suite.trim_start_matches("./").trim_start_matches('/'));
        plain.map(str::to_owned).collect()
    }

    pub(super) fn lines(&self) -> String {
        let in_lines = |name: &str| {
            OPTIONS
                .iter()
                .find(|(stanza, _)| *stanza == name)
                .map(|(_, line)| *line)
        };
        let options: Vec<String> = self
            .options
            .iter()
            .filter_map(|(name, value)| Some(format!("{}={value}", in_lines(name)?)))
            .collect();
        let options = match options.is_empty() {
            true => String::new(),
            false => format!("[{}] ", options.join(" ")),
        };
        let mut written = String::new();
        for kind in &self.types {
            for place in &self.places {
                for suite in &self.suites {
                    let mut line = format!("{kind} {options}{place} {suite}");
                    for component in &self.components {
                        line.push(' ');
                        line.push_str(component);
                    }
                    written.push_str(&line);
                    written.push('\n');
                }
            }
        }
        written
    }

    pub(super) fn stanza(&self) -> String {
        let lists = [
            ("Types", &self.types),
            ("URIs", &self.places),
            ("Suites", &self.suites),
            ("Components", &self.components),
        ];
        let mut written = String::new();
        for (name, words) in lists {
            if !words.is_empty() {
                written.push_str(&format!("{name}: {}\n", words.join(" ")));
            }
        }
        for (name, value) in &self.options {
            written.push_str(&format!("{name}: {}\n", value.replace('\n', "\n ")));
        }
        written.push('\n');
        written
    }
}

pub(super) fn lines(text: &str) -> Vec<Entry> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<Entry> {
    let line = line.split('#').next()?.trim();
    let (kind, rest) = line.split_once(char::is_whitespace)?;
    let mut entry = Entry {
        types: types([kind]),
        ..Entry::default()
    };
    let mut rest = rest.trim_start();
    if let Some(inner) = rest.strip_prefix('[') {
        let (options, behind) = inner.split_once(']')?;
        for option in options.split_whitespace() {
            // `arch+=` and `arch-=` change a default that is not known here.
            if let Some((name, value)) = option.split_once('=') {
                entry.add(|(_, line)| line.eq_ignore_ascii_case(name), value);
            }
        }
        rest = behind.trim_start();
    }
    let mut words = rest.split_whitespace().map(str::to_owned);
    entry.places.extend(words.next());
    entry.suites.extend(words.next());
    entry.components = words.collect();
    entry.is_whole().then_some(entry)
}

pub(super) fn stanzas(text: &str) -> Vec<Entry> {
    let mut fields: Vec<(String, String)> = Vec::new();
    let mut entries = Vec::new();
    // An empty line ends a stanza, and so does the end of the file.
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            entries.extend(stanza(&std::mem::take(&mut fields)));
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push('\n');
                value.push_str(line.trim());
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim().to_lowercase(), value.trim().to_owned()));
        }
    }
    entries
}

fn stanza(fields: &[(String, String)]) -> Option<Entry> {
    let field = |name: &str| {
        fields
            .iter()
            .find(|(key, _)| key == name)
            .map_or("", |(_, value)| value)
    };
    let words = |name: &str| {
        field(name)
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    if ["no", "false", "0", "off", "without", "disable"]
        .contains(&field("enabled").to_lowercase().as_str())
    {
        return None;
    }
    let mut entry = Entry {
        types: types(field("types").split_whitespace()),
        places: words("uris"),
        suites: words("suites"),
        components: words("components"),
        options: Vec::new(),
    };
    for (name, value) in fields {
        entry.add(|(stanza, _)| stanza.eq_ignore_ascii_case(name), value);
    }
    entry.is_whole().then_some(entry)
}

fn types<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let words = words
        .into_iter()
        .filter(|word| ["deb", "deb-src"].contains(word));
    words.map(str::to_owned).collect()
}

impl Entry {
    /// A space in a URI's password would make its rest a suite; apt could not use such a line either.
    fn is_whole(&self) -> bool {
        let mut words = self.suites.iter().chain(&self.components);
        let is_plain =
            |letter: u8| letter.is_ascii_alphanumeric() || b"._-+~/$()".contains(&letter);
        let are_plain = words.all(|word| word.bytes().all(is_plain));
        are_plain && !self.types.is_empty() && !self.suites.is_empty()
    }

    fn add(&mut self, is_it: impl Fn(&(&str, &str)) -> bool, value: &str) {
        if let Some((name, _)) = OPTIONS.into_iter().find(is_it).filter(|_| is_plain(value)) {
            self.options.push((name, value.to_owned()));
        }
    }
}

/// Words, fingerprints, paths of keyrings, or a whole key. Anything else is no value of an option that is kept.
fn is_plain(value: &str) -> bool {
    let is_key = value
        .trim_start()
        .starts_with("-----BEGIN PGP PUBLIC KEY BLOCK-----");
    let is_word = |word: &str| {
        let extra: &[u8] = if word.starts_with('/') {
            b"._-+~/"
        } else {
            b"._-+!"
        };
        word.bytes()
            .all(|letter| letter.is_ascii_alphanumeric() || extra.contains(&letter))
    };
    is_key || value.split([',', ' ', '\n']).all(is_word)
}
