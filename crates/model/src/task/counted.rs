//! Tests of a task that must have passed, whatever the verifier's exit codes say.

use serde::{Deserialize, Serialize};

use super::TaskError;

/// The report where a task names none.
const REPORT: &str = "junit.xml";
const REPORT_CHARS_MAX: usize = 100;
/// More than the largest suites have.
const TESTS_MAX: usize = 20_000;
const ID_BYTES_MAX: usize = 1000;

/// Tests that must have passed, or the reward is 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CountedTests {
    /// How many tests must pass, or which: `classname::name`, `classname.name`, `name`, or `file::name` as pytest writes it.
    pub passed: RequiredTests,
    /// The report that a verify command writes below `/home/user/logs/verifier`: `.xml` is JUnit's format, `.json` CTRF.
    #[serde(default = "report")]
    pub report: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
pub enum RequiredTests {
    /// At least so many.
    Count(u64),
    /// All of these, and any others.
    Named(Vec<String>),
}

/// How a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportFormat {
    Junit,
    Ctrf,
}

impl ReportFormat {
    pub const ALL: [ReportFormat; 2] = [ReportFormat::Junit, ReportFormat::Ctrf];

    pub fn as_str(self) -> &'static str {
        match self {
            ReportFormat::Junit => "JUnit",
            ReportFormat::Ctrf => "CTRF",
        }
    }

    fn ending(self) -> &'static str {
        match self {
            ReportFormat::Junit => ".xml",
            ReportFormat::Ctrf => ".json",
        }
    }
}

impl CountedTests {
    pub fn new(passed: RequiredTests) -> Self {
        CountedTests {
            passed,
            report: report(),
        }
    }

    /// The format of the report, by its name. A name that was checked has one.
    pub fn format(&self) -> Option<ReportFormat> {
        let mut all = ReportFormat::ALL.into_iter();
        all.find(|format| self.report.ends_with(format.ending()))
    }

    pub(super) fn check(&self) -> Result<(), TaskError> {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        let is_name = self.report.len() <= REPORT_CHARS_MAX
            && self.report.chars().all(is_plain)
            && !self.report.starts_with(['.', '-']);
        if !is_name || self.format().is_none() {
            return Err(TaskError::Tests(
                "`report` must be the name of a file, such as junit.xml or ctrf.json",
            ));
        }
        match &self.passed {
            RequiredTests::Count(0) => Err(TaskError::Tests("`passed` must be at least 1")),
            RequiredTests::Named(ids) if ids.is_empty() || ids.len() > TESTS_MAX => Err(
                TaskError::Tests("`passed` must name between 1 and 20000 tests"),
            ),
            RequiredTests::Named(ids)
                if ids
                    .iter()
                    .any(|id| id.is_empty() || id.len() > ID_BYTES_MAX) =>
            {
                Err(TaskError::Tests(
                    "each test in `passed` must have between 1 and 1000 bytes",
                ))
            }
            RequiredTests::Count(_) | RequiredTests::Named(_) => Ok(()),
        }
    }
}

impl RequiredTests {
    /// One number, or the names of tests.
    pub fn read(words: &[String]) -> Self {
        match words {
            [count] if count.parse::<u64>().is_ok() => {
                RequiredTests::Count(count.parse().unwrap_or_default())
            }
            names => RequiredTests::Named(names.to_vec()),
        }
    }

    /// What [`RequiredTests::read`] makes the same of, if there is such a thing.
    pub fn words(&self) -> Option<Vec<String>> {
        let words = match self {
            RequiredTests::Count(count) => vec![count.to_string()],
            RequiredTests::Named(ids) => ids.clone(),
        };
        (RequiredTests::read(&words) == *self).then_some(words)
    }
}

fn report() -> String {
    REPORT.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Task;

    fn read(tests: &str) -> Result<Task, TaskError> {
        Task::from_toml(&format!("instruction = 'go'\ntests = {tests}"))
    }

    #[test]
    fn tests_are_a_number_or_names() {
        let five = read("{passed = 5}").unwrap();
        let tests = five.tests.clone().unwrap();
        assert_eq!(tests, CountedTests::new(RequiredTests::Count(5)));
        assert_eq!(tests.format(), Some(ReportFormat::Junit));
        let again = Task::from_json(&serde_json::to_string(&five).unwrap()).unwrap();
        assert_eq!(again, five);
        let named = read("{passed = ['a', 'b::c'], report = 'ctrf.json'}").unwrap();
        let tests = named.tests.unwrap();
        assert_eq!(
            tests.passed,
            RequiredTests::Named(vec!["a".into(), "b::c".into()])
        );
        assert_eq!(tests.format(), Some(ReportFormat::Ctrf));
    }

    #[test]
    fn wrong_ones_are_named() {
        for (tests, expect) in [
            ("{passed = 0}", "at least 1"),
            ("{passed = -1}", "RequiredTests"),
            ("{passed = []}", "between 1 and 20000"),
            ("{passed = ['']}", "between 1 and 1000 bytes"),
            ("{passed = 1, report = 'a/b.xml'}", "the name of a file"),
            ("{passed = 1, report = '..xml'}", "the name of a file"),
            ("{passed = 1, report = 'report.txt'}", "the name of a file"),
            ("{passed = 1, reports = 'a.xml'}", "unknown field"),
            ("{report = 'a.xml'}", "missing field `passed`"),
        ] {
            let error = crate::text::chain(&read(tests).unwrap_err());
            assert!(error.contains(expect), "{tests}: {error}");
        }
    }

    #[test]
    fn words_are_read_back() {
        for (passed, is_said) in [
            (RequiredTests::Count(7), true),
            (RequiredTests::Named(vec!["a".into(), "7".into()]), true),
            (RequiredTests::Named(vec!["7".into()]), false),
        ] {
            assert_eq!(passed.words().is_some(), is_said, "{passed:?}");
        }
    }
}
