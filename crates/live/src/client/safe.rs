//! Texts of servers and models that may be shown to anybody: short, on one line, without addresses and keys.

/// Shorter words are no keys.
const KEY_CHARS_MIN: usize = 20;

/// The text on one line, with addresses and whatever looks like a key replaced, and at most so many characters.
pub(crate) fn safe_text(text: &str, chars_max: usize) -> String {
    let mut words: Vec<&str> = Vec::new();
    let mut is_after_bearer = false;
    for word in text.split_whitespace() {
        let is_secret = is_after_bearer || is_key(word);
        is_after_bearer = word.eq_ignore_ascii_case("bearer") || word.eq_ignore_ascii_case("basic");
        words.push(match () {
            () if is_secret => "[key]",
            () if is_address(word) => "[address]",
            () => word,
        });
    }
    let line = words.join(" ");
    match line.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

fn is_address(word: &str) -> bool {
    if word.contains("://") {
        return true;
    }
    let bare = word.trim_matches(|letter: char| !letter.is_ascii_alphanumeric());
    let (host, port) = bare.rsplit_once(':').unwrap_or((bare, ""));
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    host.parse::<std::net::IpAddr>().is_ok() && host.contains('.')
        || bare.parse::<std::net::SocketAddr>().is_ok()
        || host == "localhost"
        || is_port && host.contains('.') && !host.contains('/')
}

/// The common prefix of keys, or a long word of letters and digits as only a machine makes them.
fn is_key(word: &str) -> bool {
    word.split(|letter: char| !(letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_')))
        .any(|piece| {
            let has_digit = piece.bytes().any(|byte| byte.is_ascii_digit());
            let has_letter = piece.bytes().any(|byte| byte.is_ascii_alphabetic());
            // The agent's own ids name a thing in its log, and are no secret.
            let is_id = ["ses_", "msg_", "prt_", "err_"]
                .iter()
                .any(|prefix| piece.starts_with(prefix));
            piece.starts_with("sk-")
                || piece.len() >= KEY_CHARS_MIN && has_digit && has_letter && !is_id
        })
}

#[cfg(test)]
mod tests {
    use super::safe_text;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(safe_text(text, 80), expected);
    }

    #[test]
    fn plain_words_stay() {
        check(
            "The model `a/b-3.5` is not known.",
            "The model `a/b-3.5` is not known.",
        );
        check(
            "ref err_0a1b2c3d4e5f60718293",
            "ref err_0a1b2c3d4e5f60718293",
        );
    }

    #[test]
    fn addresses_go() {
        check("call http://10.0.0.1:80/v1 now", "call [address] now");
        check(
            "connect ECONNREFUSED 127.0.0.1:4096",
            "connect ECONNREFUSED [address]",
        );
        check("at localhost:9", "at [address]");
        check("dial api.example.com:443", "dial [address]");
    }

    #[test]
    fn keys_go() {
        check(
            "Incorrect key sk-abc provided",
            "Incorrect key [key] provided",
        );
        check("header Bearer abc", "header Bearer [key]");
        check("token=0123456789abcdef01234567", "[key]");
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(safe_text("äöü\nxyz", 5), "äöü x…");
    }
}
