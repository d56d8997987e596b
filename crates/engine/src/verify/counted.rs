//! Tests that must have passed: counted in the report that a verify command leaves, so that exit code 0 alone is worth
//! nothing.
//!
//! A report gives no reward, it only takes one away. It is taken like the file with the reward, from the commands that are
//! meant to make it, as they leave it. What several commands leave adds up.

use rollcage_model::finding::Code;
use rollcage_model::task::CountedTests;
use rollcage_model::test_report::Tally;
use rollcage_model::text::chain;
use rollcage_sandbox::guest::VERIFIER_LOGS;
use rollcage_sandbox::{Error, Sandbox};

use super::left::{self, Left};
use super::remark::Remark;
use super::unstarved;
use crate::plan::Plan;

/// More than the report of a large suite with all that its tests print.
const REPORT_BYTES_MAX: u64 = 16 << 20;

/// The tests of one verification, from command to command.
pub(super) struct Counted<'a> {
    path: String,
    /// By command: whether it makes the report.
    makers: Vec<bool>,
    /// Whether what stands at its place was there before the command that runs.
    is_stale: bool,
    tally: Tally<'a>,
    /// Why the last report that was no good counts for nothing.
    problem: Option<String>,
    has_report: bool,
}

impl<'a> Counted<'a> {
    /// `None` for a task that counts no tests. `commands` are all of them, in their order.
    pub(super) fn new(plan: &'a Plan, commands: &[&str]) -> Option<Self> {
        let tests = plan.task.tests.as_ref()?;
        Some(Counted {
            path: format!("{VERIFIER_LOGS}/{}", tests.report),
            makers: makers(tests, plan, commands),
            is_stale: false,
            tally: Tally::new(tests),
            problem: None,
            has_report: false,
        })
    }

    /// Takes away what earlier commands left.
    pub(super) async fn before(
        &mut self,
        sandbox: &dyn Sandbox,
        index: usize,
    ) -> Result<(), Error> {
        if index == 0 || !self.makers[index] {
            return Ok(());
        }
        self.is_stale = match unstarved(|| sandbox.remove(&self.path)).await {
            Ok(()) => false,
            // By what code under test did to it or to its directory.
            Err(Error::File { .. }) => true,
            Err(error) => return Err(error),
        };
        Ok(())
    }

    /// Counts what a command that ended by itself left.
    pub(super) async fn after(&mut self, sandbox: &dyn Sandbox, index: usize) -> Result<(), Error> {
        if !self.makers[index] {
            return Ok(());
        }
        let path = &self.path;
        self.problem = match left::take(sandbox, path, REPORT_BYTES_MAX).await? {
            Left::Nothing => return Ok(()),
            _ if self.is_stale => Some(format!(
                "{path} could not be removed before the command that makes it"
            )),
            Left::Useless(remark) => Some(remark.text),
            Left::Content(report) => match self.tally.add(&report) {
                Ok(()) => None,
                Err(error) => Some(format!("{path} counts for nothing: {}", chain(&error))),
            },
        };
        self.has_report = true;
        Ok(())
    }

    /// What is missing of the tests that must pass, if anything.
    pub(super) fn missing(self) -> Option<Remark> {
        let missing = self.tally.missing()?;
        let why = match self.problem {
            Some(problem) => format!(" ({problem})"),
            None if !self.has_report => format!(" (no verify command left {})", self.path),
            None => String::new(),
        };
        Some(Remark {
            code: Code::TestsMissing,
            text: format!("{missing}{why}: the reward is 0"),
        })
    }
}

/// Which commands make the report: those that name it, or a file of the task that does. If none of them does so, any
/// command may be the one.
fn makers(tests: &CountedTests, plan: &Plan, commands: &[&str]) -> Vec<bool> {
    let named = left::named(&tests.report, &plan.task, &plan.uploads, commands);
    match named.by_command.contains(&true) {
        true => named.by_command,
        false => vec![true; commands.len()],
    }
}
