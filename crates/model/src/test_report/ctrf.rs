//! The Common Test Report Format: JSON with a list of tests and their status.

use std::borrow::Cow;

use serde::Deserialize;

use super::{ReportError, TestCase};

#[derive(Deserialize)]
struct Report<'a> {
    #[serde(borrow)]
    results: Results<'a>,
}

#[derive(Deserialize)]
struct Results<'a> {
    #[serde(borrow)]
    tests: Vec<Test<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Test<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    status: Cow<'a, str>,
    suite: Option<Suite>,
    file_path: Option<String>,
}

/// Newer versions of the format have a list, from the outermost to the innermost.
#[derive(Deserialize)]
#[serde(untagged)]
enum Suite {
    One(String),
    Nested(Vec<String>),
}

pub(super) fn read(report: &[u8], mut each: impl FnMut(&TestCase<'_>)) -> Result<(), ReportError> {
    let Report { results } = serde_json::from_slice(report)?;
    for test in &results.tests {
        let suite = match &test.suite {
            Some(Suite::One(name)) => Some(name),
            Some(Suite::Nested(names)) => names.last(),
            None => None,
        };
        each(&TestCase {
            name: &test.name,
            class: None,
            file: test.file_path.as_deref(),
            suite: suite.map(String::as_str),
            is_passed: test.status == "passed",
        });
    }
    Ok(())
}
