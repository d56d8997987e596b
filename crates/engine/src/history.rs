//! The Git history of the work directory. Commits that HEAD does not reach may hold the solution, and an agent that looks
//! for them finds them: they are told of, and removed where the task asks for it.
//!
//! This is about the repositories of the work directory and of the directories directly below it, as setup left them, which
//! is the author's doing: nothing here has to withstand an agent.

use std::collections::BTreeMap;
use std::time::Duration;

use rollcage_model::ending::Cause;
use rollcage_model::finding::{Code, Finding};
use rollcage_model::task::{SetupUser, path_inside};
use rollcage_model::text::tail;
use rollcage_sandbox::guest::WORKDIR;
use rollcage_sandbox::{Command, Error, OutputLimit, Sandbox, User, run};

use crate::environment;
use crate::judge::Ending;
use crate::plan::Plan;
use crate::shell::shell;

const SCRIPT: &str = include_str!("history/repository.sh");
/// Set for a script that is to strip.
const STRIP: &str = "STRIP";
/// How long to look. Only repositories of millions of objects take seconds.
const LOOK_LIMIT: Duration = Duration::from_secs(20);
/// A line for each of a hundred repositories.
const OUTPUT: OutputLimit = OutputLimit {
    bytes_max: 64 << 10,
};
const SHOWN_MAX: usize = 3;
const ERROR_CHARS_MAX: usize = 1000;
/// What stands for a number that is not known yet.
const UNKNOWN: &str = "...";

/// Looks at the repositories, or strips them. A stripped repository was looked at again, so it has no finding.
pub(crate) async fn settle(sandbox: &dyn Sandbox, plan: &Plan) -> Result<Option<Finding>, Ending> {
    let task = &plan.task;
    if !task.git_strip && !may_hold_repository(plan) {
        return Ok(None);
    }
    let mut env = BTreeMap::new();
    let mut limit = LOOK_LIMIT;
    if task.git_strip {
        env.insert(STRIP.to_owned(), "1".to_owned());
        limit = Duration::from_secs_f64(task.command_timeout_s);
    }
    // Without the task's variables, which may hold some of Git's.
    let (user, env) = match task.setup_user {
        SetupUser::User => (User::User, environment::of_setup(&env)),
        SetupUser::Root => (User::Root, environment::of_root(&env)),
    };
    let command = Command {
        user,
        ..shell(SCRIPT, env, WORKDIR)
    };
    let done = match run(sandbox, command, limit, OUTPUT).await {
        // Without a work directory there is no repository in it.
        Err(Error::Directory { .. }) if !task.git_strip => return Ok(None),
        done => done?,
    };
    if !task.git_strip {
        return Ok(finding(&String::from_utf8_lossy(&done.stdout)));
    }
    let why = match (done.timed_out, done.exit.code) {
        (false, Some(0)) => return Ok(None),
        (true, _) => format!("it took longer than {} s", task.command_timeout_s),
        (false, _) => tail(
            String::from_utf8_lossy(&done.stderr).trim(),
            ERROR_CHARS_MAX,
        ),
    };
    let text = format!("`git_strip` could not strip the work directory: {why}");
    Err(Ending::new(Cause::SetupFailed, text))
}

/// Whether anything can have put a repository into the work directory.
fn may_hold_repository(plan: &Plan) -> bool {
    let task = &plan.task;
    let mut files = task.files.keys();
    !task.setup.is_empty()
        || !plan.uploads.is_empty()
        || files.any(|path| path_inside(path).is_ok_and(|path| path.contains("/.git/")))
}

/// Reads what the script printed: two lines for a repository, the second of which it may not have come to.
fn finding(printed: &str) -> Option<Finding> {
    let mut found: Vec<(&str, String)> = Vec::new();
    for line in printed.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [total, named, names, directory] = fields[..] else {
            continue;
        };
        let text = describe(total, named, names, directory);
        match found.last_mut().filter(|(last, _)| *last == directory) {
            Some((_, last)) => *last = text,
            None => found.push((directory, text)),
        }
    }
    let count = found.len();
    let shown = found.into_iter().take(SHOWN_MAX).map(|(_, text)| text);
    let mut texts: Vec<String> = shown.collect();
    if count > SHOWN_MAX {
        texts.push(format!("and {} more repositories", count - SHOWN_MAX));
    }
    let text = format!(
        "the agent can read commits that HEAD does not reach, which may hold the solution: {}; `git_strip = true` removes them",
        texts.join("; ")
    );
    (count > 0).then(|| Finding::warn(Code::GitFuture, text))
}

/// `names` are a number and the first of so many.
fn describe(total: &str, named: &str, names: &str, directory: &str) -> String {
    let place = match directory {
        "." => WORKDIR.to_owned(),
        directory => format!("{WORKDIR}/{directory}"),
    };
    let mut words = names.split_whitespace();
    let count: usize = words.next().and_then(|it| it.parse().ok()).unwrap_or(0);
    let mut parts: Vec<String> = words.take(count).map(str::to_owned).collect();
    if count > parts.len() {
        parts.push(format!("{} more names", count - parts.len()));
    }
    let number = |text: &str| text.parse::<u64>().ok();
    match (number(total), number(named)) {
        (Some(total), Some(named)) if total > named => {
            parts.push(format!("{} that nothing names", total - named));
        }
        (None, _) => parts.push("those that nothing names were not counted".to_owned()),
        _ => {}
    }
    let total = if total == UNKNOWN { named } else { total };
    format!("{total} in {place} ({})", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_is_told_in_a_line() {
        assert_eq!(finding(""), None);
        let text = |printed: &str| finding(printed).unwrap().text;
        assert_eq!(
            text("...\t2\t1 refs/heads/fix \t.\n3\t2\t1 refs/heads/fix \t.\n1\t0\t \tlib\n"),
            "the agent can read commits that HEAD does not reach, which may hold the solution: 3 in /home/user/workdir \
             (refs/heads/fix, 1 that nothing names); 1 in /home/user/workdir/lib (1 that nothing names); \
             `git_strip = true` removes them"
        );
        // The time was over.
        let cut = text("...\t9\t7 a b c reflogs \t.\n");
        assert!(
            cut.contains("9 in /home/user/workdir (a, b, c, reflogs, 3 more names, those that nothing names were not counted)"),
            "{cut}"
        );
        let many: String = (0..9).map(|at| format!("1\t1\t1 a \td{at}\n")).collect();
        assert!(text(&many).contains("; and 6 more repositories;"));
    }
}
