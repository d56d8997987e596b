//! Patterns of paths: `*` and `?` stand for characters of one name, `**` for any number of directories.

/// Longer than any pattern that somebody writes by hand.
const CHARS_MAX: usize = 256;

/// A pattern of paths relative to a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// Any number of names, also none.
    Any,
    Name(Vec<char>),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no pattern of paths below the work directory: at most {CHARS_MAX} characters, such as `out/**` or `*.bin`, \
     without `.`, `..` and an empty name in it"
)]
pub struct NotAGlob(pub String);

impl Glob {
    pub fn parse(text: &str) -> Result<Glob, NotAGlob> {
        let wrong = || NotAGlob(text.chars().take(CHARS_MAX).collect());
        if text.chars().count() > CHARS_MAX || text.contains('\0') {
            return Err(wrong());
        }
        let mut parts = Vec::new();
        for name in text.split('/') {
            match name {
                "" | "." | ".." => return Err(wrong()),
                "**" if parts.last() == Some(&Part::Any) => {}
                "**" => parts.push(Part::Any),
                name => parts.push(Part::Name(name.chars().collect())),
            }
        }
        // What is below a directory is never the directory itself.
        if parts.last() == Some(&Part::Any) {
            parts.push(Part::Name(vec!['*']));
        }
        Ok(Glob { parts })
    }

    /// Whether the pattern is for this path, whole and relative.
    pub fn matches(&self, path: &str) -> bool {
        let names: Vec<&str> = path.split('/').collect();
        // `*` among names is what `**` is among directories, so both are matched in the same way.
        wild(
            &self.parts,
            &names,
            |part| *part == Part::Any,
            |part, name| match part {
                Part::Any => true,
                Part::Name(pattern) => {
                    let name: Vec<char> = name.chars().collect();
                    wild(
                        pattern,
                        &name,
                        |character| *character == '*',
                        |character, given| *character == '?' || character == given,
                    )
                }
            },
        )
    }
}

/// Matches a pattern of items, of which wild ones stand for any number. Only the last wild item is ever tried again, so the
/// time is at most the product of both lengths.
fn wild<P, T>(
    pattern: &[P],
    given: &[T],
    is_wild: impl Fn(&P) -> bool,
    is_same: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut at, mut reached) = (0, 0);
    let mut tried: Option<(usize, usize)> = None;
    while reached < given.len() {
        match pattern.get(at) {
            Some(item) if is_wild(item) => {
                tried = Some((at, reached));
                at += 1;
            }
            Some(item) if is_same(item, &given[reached]) => {
                at += 1;
                reached += 1;
            }
            _ => match &mut tried {
                None => return false,
                Some((wild_at, taken)) => {
                    *taken += 1;
                    (at, reached) = (*wild_at + 1, *taken);
                }
            },
        }
    }
    pattern[at..].iter().all(is_wild)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, matching: &[&str], others: &[&str]) {
        let glob = Glob::parse(pattern).unwrap();
        for path in matching {
            assert!(glob.matches(path), "{pattern} is for {path}");
        }
        for path in others {
            assert!(!glob.matches(path), "{pattern} is not for {path}");
        }
    }

    #[test]
    fn patterns_mean_what_shells_mean_by_them() {
        check(
            "out/**",
            &["out/a", "out/a/b/c"],
            &["out", "a/out/b", "outer/a"],
        );
        check(
            "*.bin",
            &["a.bin", ".bin"],
            &["a/b.bin", "a.bin.txt", "abin"],
        );
        check("**", &["a", "a/b"], &[]);
        check("**/x", &["x", "a/x", "a/b/x"], &["ax", "x/a"]);
        check(
            "a/**/b/*.c",
            &["a/b/x.c", "a/q/r/b/.c"],
            &["a/x.c", "a/b/q/x.c"],
        );
        check("a/**/**/b", &["a/b", "a/q/b"], &["b"]);
        check("?é*", &["aé", "xéy"], &["é", "aée/x"]);
        check("a*b*c", &["abc", "aXbYbZc"], &["abcd", "acb"]);
        check("[a]", &["[a]"], &["a"]);
        // The worst case of a matcher that tries everything again.
        let many = "a*".repeat(100);
        check(
            &many,
            &["a".repeat(100).as_str()],
            &["b".repeat(4000).as_str()],
        );
    }

    #[test]
    fn a_pattern_stays_below_the_work_directory() {
        for text in [
            "",
            "/a",
            "a/",
            "../a",
            "a/../b",
            "./a",
            "a//b",
            "a\0",
            &"a".repeat(257),
        ] {
            assert!(Glob::parse(text).is_err(), "{text:?}");
        }
    }
}
