//! apt's settings (`apt.conf` and its directory): the few that decide how sources are reached.

use std::path::Path;

use crate::host::Host;
use crate::preset::Preset;

/// Read last inside, so that it wins.
const INSIDE: &str = "/etc/apt/apt.conf.d/99mirror";

/// Settings that are numbers or switches.
const PLAIN: [&str; 9] = [
    "acquire::check-valid-until",
    "acquire::check-date",
    "acquire::retries",
    "acquire::http::timeout",
    "acquire::https::timeout",
    "acquire::https::verify-peer",
    "acquire::https::verify-host",
    "acquire::allowinsecurerepositories",
    "apt::get::allowunauthenticated",
];

pub(super) fn carry(host: &Host<'_>, preset: &mut Preset) {
    let etc = Path::new("/etc/apt");
    // apt reads the files of the directory first: those named without an ending, or with this one.
    let mut paths = host.files_in(&etc.join("apt.conf.d"), &[""], preset);
    paths.retain(|path| path.extension().is_none_or(|ending| ending == "conf"));
    paths.push(etc.join("apt.conf"));
    let mut written = String::new();
    let mut proxy = None;
    for path in paths {
        let Some(text) = host.file(&path, preset) else {
            continue;
        };
        for (name, value) in parse(&text) {
            let setting = format!("apt's {name} ({})", path.display());
            let is_plain =
                !value.is_empty() && value.bytes().all(|letter| letter.is_ascii_alphanumeric());
            let lower = name.to_lowercase();
            match lower.as_str() {
                plain if PLAIN.contains(&plain) && is_plain => {
                    written.push_str(&format!("{name} \"{value}\";\n"))
                }
                "acquire::https::cainfo" => match crate::shown::shown_path(&value) {
                    Some(path) if !path.contains(['"', '\\']) => {
                        written.push_str(&format!("{name} \"{path}\";\n"))
                    }
                    _ => preset.note(crate::shown::not_shown(&setting)),
                },
                "acquire::http::proxy" => proxy = Some((setting, value)),
                "acquire::https::proxy" if proxy.is_none() => proxy = Some((setting, value)),
                "acquire::http::proxy-auto-detect" | "acquire::http::proxyautodetect" => {
                    preset.note(format!(
                        "{setting} asks a program for the proxy: it is not used for sandboxes"
                    ));
                }
                "acquire::https::sslkey" => {
                    preset.refuse(format!("{setting}: a private key does not enter sandboxes"));
                }
                _ => {}
            }
        }
    }
    if let Some((setting, value)) = proxy {
        preset.set_proxy(&setting, &value, "");
    }
    if !written.is_empty() {
        preset.files.insert(INSIDE.to_owned(), written);
    }
}

/// The settings with their whole names (`Acquire::http::Proxy`), in order.
fn parse(text: &str) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    let mut scopes: Vec<String> = Vec::new();
    let mut name: Option<String> = None;
    let mut value: Option<String> = None;
    for word in words(text) {
        match word {
            Word::Text(text) if name.is_none() => name = Some(text),
            Word::Text(text) => value = Some(text),
            Word::Open => scopes.push(name.take().unwrap_or_default()),
            Word::Close => {
                scopes.pop();
                (name, value) = (None, None);
            }
            Word::End => {
                if let (Some(name), Some(value)) = (name.take(), value.take()) {
                    let parts = scopes.iter().map(String::as_str).chain([name.as_str()]);
                    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
                    settings.push((parts.join("::"), value));
                }
            }
        }
    }
    settings
}

enum Word {
    Text(String),
    Open,
    Close,
    End,
}

fn words(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let (word, length) = match letter {
            '{' => (Some(Word::Open), 1),
            '}' => (Some(Word::Close), 1),
            ';' => (Some(Word::End), 1),
            '"' => {
                let inner = rest[1..].split('"').next().unwrap_or_default();
                // The closing quote may be missing at the end of the file.
                (
                    Some(Word::Text(inner.to_owned())),
                    (inner.len() + 2).min(rest.len()),
                )
            }
            '#' => (None, line_end(rest)),
            '/' if rest.starts_with("//") => (None, line_end(rest)),
            '/' if rest.starts_with("/*") => {
                (None, rest.find("*/").map_or(rest.len(), |at| at + 2))
            }
            space if space.is_whitespace() => (None, space.len_utf8()),
            _ => {
                let is_end = |letter: char| {
                    letter.is_whitespace() || matches!(letter, '{' | '}' | ';' | '"')
                };
                let end = rest.find(is_end).unwrap_or(rest.len());
                (Some(Word::Text(rest[..end].to_owned())), end)
            }
        };
        words.extend(word);
        rest = &rest[length..];
    }
    words
}

fn line_end(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_and_flat_settings_are_the_same() {
        let text = "// c\n# c\nAcquire::Retries \"3\"; Acquire { http { Proxy \"http://p.example:1//x\"; }; /* no */ https::Timeout 5; };\n\
                    Dir::Log \"\";\nlist { \"a\"; };\nopen \"";
        let got: Vec<String> = parse(text)
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let expect = [
            "Acquire::Retries=3",
            "Acquire::http::Proxy=http://p.example:1//x",
            "Acquire::https::Timeout=5",
            "Dir::Log=",
        ];
        assert_eq!(got, expect);
    }
}
