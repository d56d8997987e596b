//! Reports of test runs: which tests passed, and whether those that a task wants are among them.
//!
//! Code under test may have written a report, so nothing of it is trusted to be small, shallow or well-formed. It is read
//! from its beginning to its end without recursion, no entity is looked up, and one that cannot be read whole counts for
//! nothing.

use std::collections::HashMap;

use crate::task::{CountedTests, ReportFormat, RequiredTests};

mod ctrf;
mod junit;

/// Tests shown in a text.
const SHOWN_MAX: usize = 5;
const SHOWN_CHARS_MAX: usize = 200;
/// Places at which one id is cut into a test and what it belongs to.
const CUTS_MAX: usize = 64;
/// Deeper than any suites of suites.
const DEPTH_MAX: usize = 256;

/// Why a report counts for nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("it is not well-formed XML")]
    Xml(#[from] quick_xml::Error),
    #[error("it is not well-formed XML: {0}")]
    Attribute(#[from] quick_xml::events::attributes::AttrError),
    #[error("it has no `testsuites` or `testsuite` around its tests")]
    NoSuite,
    #[error("it ends in the middle")]
    Unfinished,
    #[error("its elements are nested too deeply, or a test holds another one")]
    Nesting,
    #[error("it is no CTRF report")]
    Ctrf(#[from] serde_json::Error),
}

/// A test of a report.
#[derive(Debug, Default)]
struct TestCase<'a> {
    name: &'a str,
    class: Option<&'a str>,
    file: Option<&'a str>,
    /// The innermost suite that it is in.
    suite: Option<&'a str>,
    is_passed: bool,
}

/// How a test that must pass fared, in all of its runs.
#[derive(Clone, Copy, Debug, Default)]
struct Runs {
    passed: u64,
    others: u64,
}

#[derive(Clone, Debug, Default)]
struct Counts {
    passed: u64,
    /// By the place of a test among those that must pass.
    named: Vec<Runs>,
}

/// What a test may belong to, as an id has it before the test's name.
#[derive(Debug, PartialEq)]
enum Owner<'a> {
    Nothing,
    /// Before `::`.
    Any(&'a str),
    /// Before a dot.
    Class(&'a str),
    /// As pytest makes it of a path and classes.
    PytestClass(String),
}

/// What reports say of the tests that must pass.
#[derive(Debug)]
pub struct Tally<'a> {
    tests: &'a CountedTests,
    counts: Counts,
    /// By a test's name: which of those that must pass it may be.
    wanted: HashMap<&'a str, Vec<(usize, Owner<'a>)>>,
}

impl<'a> Tally<'a> {
    pub fn new(tests: &'a CountedTests) -> Self {
        let ids: &[String] = match &tests.passed {
            RequiredTests::Count(_) => &[],
            RequiredTests::Named(ids) => ids,
        };
        let mut wanted: HashMap<&str, Vec<_>> = HashMap::new();
        for (index, id) in ids.iter().enumerate() {
            for (name, owner) in readings(id) {
                wanted.entry(name).or_default().push((index, owner));
            }
        }
        let counts = Counts {
            passed: 0,
            named: vec![Runs::default(); ids.len()],
        };
        Tally {
            tests,
            counts,
            wanted,
        }
    }

    /// Adds the tests of a report.
    pub fn add(&mut self, report: &[u8]) -> Result<(), ReportError> {
        let mut counts = self.counts.clone();
        let each = |test: &TestCase<'_>| self.count(test, &mut counts);
        match self.tests.format() {
            Some(ReportFormat::Ctrf) => ctrf::read(report, each)?,
            Some(ReportFormat::Junit) | None => {
                junit::read(&String::from_utf8_lossy(report), each)?;
            }
        }
        self.counts = counts;
        Ok(())
    }

    fn count(&self, test: &TestCase<'_>, counts: &mut Counts) {
        counts.passed += u64::from(test.is_passed);
        for (index, owner) in self.wanted.get(test.name).into_iter().flatten() {
            if owner.owns(test) {
                let runs = &mut counts.named[*index];
                match test.is_passed {
                    true => runs.passed += 1,
                    false => runs.others += 1,
                }
            }
        }
    }

    /// What is missing of the tests that must pass, if anything. A name that several tests have is passed if they all did.
    pub fn missing(&self) -> Option<String> {
        let ids = match &self.tests.passed {
            RequiredTests::Count(count) => {
                let passed = self.counts.passed;
                return (passed < *count)
                    .then(|| format!("{passed} of the {count} tests that must pass did"));
            }
            RequiredTests::Named(ids) => ids,
        };
        let missing = ids.iter().zip(&self.counts.named);
        let missing = missing.filter(|(_, runs)| runs.passed == 0 || runs.others > 0);
        let missing: Vec<String> = missing
            .map(|(id, runs)| {
                let id: String = id.chars().take(SHOWN_CHARS_MAX).collect();
                let how = match runs.others {
                    0 => "not run",
                    _ => "not passed",
                };
                format!("{id} ({how})")
            })
            .collect();
        let (count, of) = (missing.len(), ids.len());
        let shown = missing[..count.min(SHOWN_MAX)].join(", ");
        let more = match count.saturating_sub(SHOWN_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        (count > 0).then(|| format!("{count} of {of} tests that must pass did not: {shown}{more}"))
    }
}

impl Owner<'_> {
    fn owns(&self, test: &TestCase<'_>) -> bool {
        match self {
            Owner::Nothing => true,
            Owner::Any(owner) => [test.class, test.file, test.suite].contains(&Some(owner)),
            Owner::Class(owner) => test.class == Some(owner),
            Owner::PytestClass(owner) => test.class == Some(owner),
        }
    }
}

/// Every way to read an id as a test's name and what it belongs to.
fn readings(id: &str) -> Vec<(&str, Owner<'_>)> {
    let mut readings = vec![(id, Owner::Nothing)];
    for (at, separator) in id.match_indices("::").take(CUTS_MAX) {
        readings.push((&id[at + separator.len()..], Owner::Any(&id[..at])));
    }
    for (at, separator) in id.match_indices('.').take(CUTS_MAX) {
        readings.push((&id[at + separator.len()..], Owner::Class(&id[..at])));
    }
    // What is in brackets are parameters, which may hold anything.
    let address = id.split('[').next().unwrap_or(id);
    if let Some(at) = address.rfind("::") {
        let mut parts = address[..at].split("::");
        let path = parts.next().unwrap_or_default().replace('/', ".");
        let module = path.strip_suffix(".py").unwrap_or(&path).to_owned();
        let class = parts.fold(module, |class, part| format!("{class}.{part}"));
        readings.push((&id[at + 2..], Owner::PytestClass(class)));
    }
    readings
}

#[cfg(test)]
mod tests;
