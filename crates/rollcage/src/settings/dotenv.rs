//! `.env` in the working directory, for API keys and nothing else: a cloned repository must not decide where keys and
//! prompts are sent. Environment variables take precedence.

use std::io::Read;

const FILE: &str = ".env";
/// The most that is read; a file with keys is far shorter.
const BYTES_MAX: u64 = 256 << 10;

/// The value of a key in the file; `None` where there is no such file or it does not have the key.
pub(super) fn key(name: &str) -> Option<String> {
    let mut text = String::new();
    // Reading a pipe or a device of that name could block.
    if !std::fs::metadata(FILE).ok()?.is_file() {
        return None;
    }
    let file = std::fs::File::open(FILE).ok()?;
    file.take(BYTES_MAX).read_to_string(&mut text).ok()?;
    value_of(&text, name)
}

/// The last assignment counts, as in a shell.
fn value_of(text: &str, name: &str) -> Option<String> {
    let lines = text.lines().rev();
    let mut values = lines.filter_map(|line| {
        let line = line.trim_start();
        let line = line.strip_prefix("export ").unwrap_or(line);
        let (key, value) = line.split_once('=')?;
        (key.trim() == name).then(|| unquoted(value))
    });
    values.next().filter(|value| !value.is_empty())
}

/// Removes the quotes around a value, or the comment after it.
fn unquoted(value: &str) -> String {
    let value = value.trim();
    for quote in ['"', '\''] {
        let inner = value
            .strip_prefix(quote)
            .and_then(|it| it.split_once(quote));
        if let Some((inner, _)) = inner {
            return inner.to_owned();
        }
    }
    let end = value.find(" #").unwrap_or(value.len());
    value[..end].trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_however_it_is_written() {
        let read = |text: &str| value_of(text, "OPENAI_API_KEY");
        let key = Some("sk-1".to_owned());
        assert_eq!(read("OPENAI_API_KEY=sk-1"), key);
        assert_eq!(
            read("# a comment\n  export OPENAI_API_KEY = \"sk-1\" # mine\n"),
            key
        );
        assert_eq!(read("OPENAI_API_KEY='sk-1'\r\n"), key);
        assert_eq!(
            read("OPENAI_API_KEY=sk-0\nOPENAI_API_KEY=sk-1 # new\n"),
            key
        );
        assert_eq!(read("OPENAI_API_KEY='sk#1'"), Some("sk#1".to_owned()));
        assert_eq!(
            read("#OPENAI_API_KEY=sk-1\nMY_OPENAI_API_KEY=sk-2\nOPENAI_API_KEY\n"),
            None
        );
        assert_eq!(read("OPENAI_API_KEY="), None);
    }
}
