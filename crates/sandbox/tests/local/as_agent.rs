//! `as-agent`: what verify commands run with it reaches nothing of theirs, and is otherwise a command like any other.

use std::collections::BTreeMap;
use std::time::Duration;

use rollcage_sandbox::guest::AS_AGENT;
use rollcage_sandbox::{Command, CommandOutcome, OutputLimit, Sandbox, Stdin, run};

use crate::kit::{Backend, bash, command, finish, output, sandbox, text};

/// A sandbox at verification, with things of the verifier's in it.
async fn verifying() -> (Backend, Box<dyn Sandbox>) {
    let (backend, sandbox) = sandbox().await;
    let agent = [
        ("PATH", "/home/user/.local/bin:/usr/bin:/bin"),
        ("HOME", "/home/user"),
        ("WHO", "agent"),
    ];
    let agent = agent.map(|(name, value)| (name.to_owned(), value.to_owned()));
    sandbox.unseal(BTreeMap::from(agent)).await.unwrap();
    for path in [
        "/home/user/tests/secret",
        "/home/user/logs/verifier/reward.txt",
        "/home/user/logs/agent/secret",
        "/opt/rollcage/verify/home/secret",
        "/tmp/secret",
        "/var/tmp/secret",
        "/dev/shm/secret",
    ] {
        sandbox
            .write_file(path, 0o666, b"secret".to_vec())
            .await
            .unwrap();
    }
    (backend, sandbox)
}

/// Runs a script as the agent.
async fn as_agent(sandbox: &dyn Sandbox, script: &str) -> CommandOutcome {
    finish(sandbox, command(&[AS_AGENT, "bash", "-c", script])).await
}

#[tokio::test]
async fn it_sees_nothing_of_the_verifiers() {
    let (_backend, sandbox) = verifying().await;
    let seen = as_agent(
        &*sandbox,
        "grep -rsl secret ~ /tmp /var/tmp /dev/shm /opt/rollcage; ls -A ~/tests ~/logs /opt/rollcage/verify | grep -v :; echo end",
    )
    .await;
    assert_eq!(text(&seen.stdout).trim(), "end", "{seen:?}");
    for attack in [
        "echo 1 > ~/logs/verifier/reward.txt",
        "mkdir -p ~/logs/verifier",
        "rmdir ~/logs",
        "mv ~/logs /tmp/away",
        "touch ~/tests/x",
        "umount ~/tests",
        "touch /opt/rollcage/verify/x",
        // The file systems of others, by way of their processes.
        "cat /proc/[0-9]*/root/home/user/tests/secret",
        "cat /proc/1/environ",
        "ls /proc/1/fd/",
        "test -e /opt/rollcage/verify/run/as-agent",
        AS_AGENT,
    ] {
        let tried = as_agent(&*sandbox, attack).await;
        assert!(!tried.exit.success(), "{attack}: {tried:?}");
    }
    let left = output(
        &*sandbox,
        "cat /home/user/logs/verifier/reward.txt; ls /home/user/tests",
    );
    assert_eq!(left.await, "secretsecret");
}

#[tokio::test]
async fn it_sees_and_ends_no_process_of_the_verifiers() {
    let (_backend, sandbox) = verifying().await;
    let script = format!(
        "sleep 1000 & {AS_AGENT} bash -c 'ls -d /proc/[0-9]*; kill -9 -1; for i in $(seq 400); do kill -9 $i; done' 2>/dev/null; \
         kill -0 $! && echo alive"
    );
    let ran = bash(&*sandbox, &script).await;
    let seen = text(&ran.stdout);
    assert!(seen.ends_with("alive"), "{ran:?}");
    // Its own shell and what that starts. Where processes of others are hidden, the first one is not shown.
    assert!(seen.lines().count() <= 4, "{seen}");
    assert_eq!(sandbox.kill_all().await.unwrap(), 1);
}

#[tokio::test]
async fn it_is_a_command_like_any_other() {
    let (_backend, sandbox) = verifying().await;
    let ran = as_agent(
        &*sandbox,
        "echo out; echo err >&2; echo $HOME $WHO $PWD; touch made; id -u; exit 7",
    )
    .await;
    assert_eq!(
        text(&ran.stdout),
        "out\n/home/user agent /home/user/workdir\n1000",
        "{ran:?}"
    );
    assert_eq!(
        (text(&ran.stderr).as_str(), ran.exit.code),
        ("err", Some(7))
    );
    assert_eq!(output(&*sandbox, "ls").await, "made");

    let code = async |script: &str| bash(&*sandbox, script).await.exit.code;
    assert_eq!(
        code(&format!("{AS_AGENT} bash -c 'kill -9 $$'")).await,
        Some(137)
    );
    assert_eq!(code(&format!("{AS_AGENT} /none")).await, Some(127));
    assert_eq!(code(&format!("{AS_AGENT} none")).await, Some(127));
    assert_eq!(code(&format!("{AS_AGENT} /etc/passwd")).await, Some(126));
    assert_eq!(code(AS_AGENT).await, Some(2));
    // In directories of the verifier's it is in the work directory.
    let elsewhere = format!("cd /home/user/tests && {AS_AGENT} pwd; cd / && {AS_AGENT} pwd");
    assert_eq!(output(&*sandbox, &elsewhere).await, "/home/user/workdir\n/");
}

#[tokio::test]
async fn streams_are_copied_whole_and_are_not_the_callers() {
    let (_backend, sandbox) = verifying().await;
    let script =
        format!("head -c 3000000 /dev/zero | {AS_AGENT} cat | wc -c; {AS_AGENT} cat < /dev/null");
    assert_eq!(output(&*sandbox, &script).await, "3000000");
    // Its descriptors are pipes of its own: neither the caller's file nor anything else that the caller has open.
    let script = format!(
        "exec 7> /home/user/workdir/open; {AS_AGENT} bash -c 'ls /proc/self/fd | wc -l; stat -L -c %F /proc/self/fd/1' > out; cat out"
    );
    assert_eq!(output(&*sandbox, &script).await, "4\nfifo");
    // A reader that has gone ends it.
    let script = format!("timeout 20 {AS_AGENT} yes | head -1; echo ${{PIPESTATUS[0]}}");
    assert_ne!(output(&*sandbox, &script).await, "y\n124");
}

#[tokio::test]
async fn it_ends_with_its_caller_and_so_does_all_that_it_started() {
    let (_backend, sandbox) = verifying().await;
    let daemon = "trap \"\" TERM; (setsid sleep 1000 &) ; sleep 1001";
    let script = format!(
        "timeout -s KILL 1 {AS_AGENT} bash -c '{daemon}'; for i in $(seq 100); do pgrep -x sleep > /dev/null || break; sleep 0.1; done; \
         pgrep -x sleep; echo none"
    );
    assert_eq!(output(&*sandbox, &script).await, "none");
    // What it leaves behind does not outlive it either.
    let script = format!(
        "{AS_AGENT} bash -c '(setsid sleep 1000 > /dev/null 2>&1 &)'; pgrep -x sleep; echo none"
    );
    assert_eq!(output(&*sandbox, &script).await, "none");
    assert_eq!(sandbox.kill_all().await.unwrap(), 0);
}

#[tokio::test]
async fn many_calls_run_at_once_and_more_wait() {
    let (_backend, sandbox) = verifying().await;
    let script = format!(
        "for i in $(seq 100); do {AS_AGENT} bash -c \"sleep 0.1; echo $i\" & done | sort -n | uniq | wc -l"
    );
    assert_eq!(output(&*sandbox, &script).await, "100");
}

#[tokio::test]
async fn a_home_that_is_locked_does_not_keep_it_from_running() {
    let (_backend, sandbox) = verifying().await;
    bash(&*sandbox, "chmod 700 /home/user").await;
    assert_eq!(
        text(&as_agent(&*sandbox, "ls ~/tests; echo ran").await.stdout),
        "ran"
    );
    bash(&*sandbox, "chmod 000 /home/user").await;
    let elsewhere = |argv: &[&str]| Command {
        cwd: "/".to_owned(),
        ..command(argv)
    };
    let ran = finish(&*sandbox, elsewhere(&[AS_AGENT, "echo", "ran"])).await;
    assert_eq!(text(&ran.stdout), "ran", "{ran:?}");
}

#[tokio::test]
async fn before_verification_there_is_nobody_to_ask() {
    let (_backend, sandbox) = sandbox().await;
    let asked = bash(&*sandbox, &format!("{AS_AGENT} true")).await;
    assert!(!asked.exit.success());
}

/// What stdin is said to be does not reach the command as the caller's own descriptor.
#[tokio::test]
async fn input_ends_when_the_callers_does() {
    let (_backend, sandbox) = verifying().await;
    let command = Command {
        stdin: Stdin::Bytes(b"said".to_vec()),
        ..command(&[AS_AGENT, "cat"])
    };
    let limit = Duration::from_secs(30);
    let ran = run(&*sandbox, command, limit, OutputLimit::default())
        .await
        .unwrap();
    assert_eq!(text(&ran.stdout), "said");
}
