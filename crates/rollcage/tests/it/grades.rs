//! Grades that do not rest on exit codes alone, and the history that could give the solution away.

use rollcage_model::ending::Ended;
use rollcage_model::finding::Code;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::{CountedTests, RequiredTests, SetupUser, Task};

use crate::support::{ASK, Home, task};

const LOGS: &str = "/home/user/logs/verifier";

/// What a result says of a code.
fn said(result: &RolloutResult, code: Code) -> Option<&str> {
    let mut findings = result.findings.iter();
    let found = findings.find(|finding| finding.code == code);
    found.map(|finding| finding.text.as_str())
}

fn counted(passed: RequiredTests, verify: &[&str]) -> Task {
    Task {
        tests: Some(CountedTests::new(passed)),
        ..task(verify)
    }
}

/// A test runner: it runs the code under test in its own process, as those of Python and Node do.
fn runner() -> Task {
    let run = format!(
        ". /home/user/workdir/code\n\
         case=\"<testcase classname='t' name='adds'/><testcase classname='t' name='divides'>$skip</testcase>\"\n\
         echo \"<testsuites><testsuite>$case</testsuite></testsuites>\" > {LOGS}/junit.xml\n"
    );
    let mut task = counted(
        RequiredTests::Named(vec!["t::adds".to_owned(), "t::divides".to_owned()]),
        &["bash /home/user/tests/run"],
    );
    task.files.insert("/home/user/tests/run".to_owned(), run);
    task
}

#[tokio::test]
async fn code_that_ends_its_tests_early_or_skips_them_gets_nothing() {
    let home = Home::new();
    for (code, reward, expect) in [
        (":", 1.0, None),
        (
            "exit 0",
            0.0,
            Some("t::adds (not run), t::divides (not run) (no verify command left"),
        ),
        (
            "skip=\"<skipped/>\"",
            0.0,
            Some("1 of 2 tests that must pass did not: t::divides (not passed)"),
        ),
    ] {
        let script = format!("echo '{code}' > code; {ASK}");
        let result = home.run(runner(), &script).await;
        assert_eq!(
            (result.ended, result.reward, result.reward_valid),
            (Ended::Completed, Some(reward), true),
            "{code}"
        );
        assert_eq!(result.verify_results[0].exit_code, 0, "{code}");
        let text = said(&result, Code::TestsMissing);
        assert_eq!(text.is_some(), expect.is_some(), "{code}: {text:?}");
        assert!(
            text.unwrap_or_default()
                .contains(expect.unwrap_or_default()),
            "{code}: {text:?}"
        );
    }
}

/// Commands, how many tests they must pass, the reward, and a part of what is said of it.
fn reports(write: &str, path: &str) -> Vec<(u64, Vec<String>, f64, &'static str)> {
    let write = write.to_owned();
    vec![
        (2, vec![write.clone()], 1.0, ""),
        (3, vec![write.clone()], 0.0, "2 of the 3 tests"),
        // What passes takes nothing away from what exit codes say, and adds nothing to it.
        (2, vec![write.clone(), "false".to_owned()], 0.5, ""),
        // A command ended by a signal leaves nothing.
        (
            2,
            vec![format!("{write}; kill -9 $$")],
            0.0,
            "no verify command left",
        ),
        (
            2,
            vec![format!("{write}; chmod a-w {path}")],
            0.0,
            "cannot be written to by its owner",
        ),
        (
            2,
            vec![format!("{write}; ln {path} {path}.2")],
            0.0,
            "has several names",
        ),
        (
            2,
            vec![format!("{write}; mv {path} /tmp/r; ln -s /tmp/r {path}")],
            0.0,
            "is a link",
        ),
        (2, vec![format!("mkdir {path}")], 0.0, "is a directory"),
        (
            2,
            vec![format!("echo '<testsuite>' > {path}")],
            0.0,
            "ends in the middle",
        ),
        (
            2,
            vec![format!("head -c 20000000 /dev/zero > {path}")],
            0.0,
            "could not be read",
        ),
        // Nobody names it, so anybody may write it; otherwise only those that do.
        (2, vec!["sh ./code".to_owned()], 1.0, ""),
        (
            2,
            vec!["sh ./code".to_owned(), format!("test -n {path}")],
            0.0,
            "no verify command left",
        ),
        (
            2,
            vec![
                "sh ./code; chmod 555 /home/user/logs/verifier".to_owned(),
                format!("test -n {path}"),
            ],
            0.0,
            "could not be removed",
        ),
    ]
}

#[tokio::test]
async fn a_report_counts_as_its_command_leaves_it() {
    let home = Home::new();
    let report = "<testsuite><testcase name='a'/><testcase name='b'/></testsuite>";
    let path = format!("{LOGS}/junit.xml");
    let write = format!("echo \"{report}\" > {path}");
    for (count, verify, reward, expect) in reports(&write, &path) {
        let passed = RequiredTests::Count(count);
        let verify: Vec<&str> = verify.iter().map(String::as_str).collect();
        let script = format!("cat > code <<'END'\n{write}\nEND\n{ASK}");
        let result = home.run(counted(passed, &verify), &script).await;
        assert_eq!(
            (result.reward, result.reward_valid),
            (Some(reward), true),
            "{verify:?}"
        );
        let text = said(&result, Code::TestsMissing).unwrap_or_default();
        assert_eq!(text.is_empty(), expect.is_empty(), "{verify:?}: {text}");
        assert!(text.contains(expect), "{verify:?}: {text}");
    }
}

#[tokio::test]
async fn a_reward_of_a_file_needs_its_tests_too_and_without_a_policy_it_is_0() {
    let home = Home::new();
    let verify = format!("echo 0.75 > {LOGS}/reward.txt");
    let report = format!("echo \"<testsuite><testcase name='a'/></testsuite>\" > {LOGS}/junit.xml");
    let one = || RequiredTests::Count(1);
    let both = home.run(counted(one(), &[&verify, &report]), "true").await;
    assert_eq!((both.reward, both.ended), (Some(0.75), Ended::Completed));
    let none = home.run(counted(one(), &[&verify]), "true").await;
    assert_eq!((none.reward, none.ended), (Some(0.0), Ended::Completed));
    assert!(said(&none, Code::TestsMissing).is_some());
}

/// A repository with a fix wherever one may be: on another branch, fetched, in a stash, a reflog, a note and a tag, as an
/// object that nothing names, loose and packed.
const REPOSITORY: &str = r#"
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q -b main . && git config user.name a && git config user.email a@b
echo 1 > a; git add a; git commit -qm one; git tag -a v1 -m v1; git branch old
echo 2 > a; git commit -qam two
git checkout -qb fix; echo FIX-1 > f; git add f; git commit -qm FIX-2; git tag -a vfix -m FIX-3; git checkout -q main
git clone -q --bare . /tmp/upstream; git remote add origin /tmp/upstream; git fetch -q; git remote set-head origin fix
rm -rf /tmp/upstream
echo FIX-4 > a; git commit -qam FIX-5; git reset -q --hard HEAD~1
echo FIX-6 > a; git stash -q
git notes add -m FIX-7 HEAD
git repack -q -a -d; touch $(ls .git/objects/pack/*.pack | sed 's/pack$/keep/')
git commit-tree -m FIX-8 -p HEAD HEAD^{tree}
echo FIX-9 | git hash-object -w --stdin
echo staged > staged; git add staged
mkdir below; cd below; git init -q -b main .; git commit -q --allow-empty -m first
git commit -q --allow-empty -m FIX-10; git reset -q --hard HEAD~1
"#;

/// Prints everything that an agent finds of the fix.
const SEARCH: &str = r#"
for git in .git below/.git; do
    export GIT_DIR=$git
    git log --all --reflog --format=%B
    git reflog; git stash list; git notes list
    git fsck --no-reflogs --lost-found --unreachable 2>&1 | grep unreachable
    git cat-file --batch-all-objects --batch --buffer | grep -a FIX-
    ls $git/logs $git/*_HEAD
    grep -ra FIX- $git
done > /tmp/found 2> /dev/null
unset GIT_DIR
grep -a -e FIX- -e unreachable -e stash -e reset: -e logs /tmp/found > found
"#;

/// What is honest about it.
const HONEST: &str = r#"
test "$(git log --format=%s)" = "$(printf 'two\none')" && test "$(git describe --abbrev=0)" = v1 &&
test "$(git status --porcelain | grep -v -e below -e found)" = 'A  staged' && git rev-parse -q --verify old &&
git config remote.origin.url && git fsck --strict && git cat-file -e :staged && cat a | grep -qx 2 &&
git commit -qam more && git gc -q && test "$(git log --format=%s | head -n 1)" = more
"#;

fn repository() -> Task {
    Task {
        setup: vec![REPOSITORY.to_owned()],
        ..task(&["test -s found"])
    }
}

#[tokio::test]
async fn commits_that_head_does_not_reach_are_told_of() {
    let home = Home::new();
    let result = home.run(repository(), &format!("{SEARCH}\n{ASK}")).await;
    assert_eq!((result.ended, result.reward), (Ended::Completed, Some(1.0)));
    let text = said(&result, Code::GitFuture).unwrap();
    // The fix, the commit that was reset, two of the stash, the note; and the one that nothing names.
    for expect in [
        "6 in /home/user/workdir (refs/heads/fix, ",
        "more names, 1 that nothing names)",
        "1 in /home/user/workdir/below (reflogs, ORIG_HEAD)",
    ] {
        assert!(text.contains(expect), "{text}");
    }
    let plain =
        "git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one";
    let clean = Task {
        setup: vec![plain.to_owned()],
        ..task(&["true"])
    };
    let clean = home.run(clean, "true").await;
    assert_eq!(said(&clean, Code::GitFuture), None);
}

#[tokio::test]
async fn a_stripped_repository_holds_nothing_but_its_history() {
    let home = Home::new();
    for setup_user in SetupUser::ALL {
        let task = Task {
            git_strip: true,
            setup_user,
            verify: vec!["test -s found && cat found".to_owned(), HONEST.to_owned()],
            ..repository()
        };
        // What root made stays root's, so that only root's agents could go on from it.
        let is_root = setup_user == SetupUser::Root;
        let result = home
            .run(
                task,
                &format!("git config --global safe.directory '*'; {SEARCH}\n{ASK}"),
            )
            .await;
        if is_root && result.ended == Ended::SetupFailed {
            let error = result.error.unwrap();
            assert!(error.contains("root"), "{error}");
            continue;
        }
        assert_eq!((result.ended, &result.error), (Ended::Completed, &None));
        assert_eq!(said(&result, Code::GitFuture), None);
        let found = &result.verify_results[0];
        assert_eq!(
            (found.exit_code, found.stdout.as_str()),
            (1, ""),
            "{setup_user:?}"
        );
        let honest = &result.verify_results[1];
        assert!(is_root || honest.exit_code == 0, "{honest:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_stripped_ends_the_rollout() {
    let home = Home::new();
    let first = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; \
        git init -q /tmp/one && git -C /tmp/one commit -q --allow-empty -m one";
    for (setup, expect) in [
        ("true".to_owned(), "there is no Git repository"),
        ("mkdir .git".to_owned(), "not a git repository"),
        (
            format!("{first}; git clone -q --shared /tmp/one ."),
            "borrows objects",
        ),
        (
            format!(
                "{first}; rmdir /home/user/workdir; git -C /tmp/one worktree add -q /home/user/workdir"
            ),
            "it is a work tree of",
        ),
        (
            format!(
                "{first}; mv /tmp/one/.git .; git worktree add -q --detach /tmp/two; git -C /tmp/two commit -q --allow-empty -m fix"
            ),
            "1 commits are still there",
        ),
    ] {
        let task = Task {
            setup: vec![setup.clone()],
            git_strip: true,
            ..task(&["true"])
        };
        let result = home.run(task, "true").await;
        let error = result.error.unwrap_or_default();
        assert_eq!(result.ended, Ended::SetupFailed, "{setup}: {error}");
        assert!(error.contains(expect), "{setup}: {error}");
    }
}
