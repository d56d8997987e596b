//! Agents that try to escape their grade: whatever they do to themselves, their files or their model, the verifier has
//! the last word, and what it says counts.

use std::sync::Arc;

use crate::support::{ASK, Home, run_beside, says, task, traced};
use rollcage_model::ending::Ended;
use rollcage_model::finding::Code;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::Task;
use rollcage_testkit::upstream::{Reply, Upstream};

/// A verifier with an opinion of its own.
const QUARTER: &str = "echo 0.25 > /home/user/logs/verifier/reward.txt";

/// An agent's way to escape, and how its rollout ends.
struct Attack {
    name: &'static str,
    script: String,
    ended: Ended,
    /// What the result says of it.
    finding: Option<Code>,
}

impl Attack {
    fn new(name: &'static str, script: &str) -> Self {
        Attack {
            name,
            script: script.to_owned(),
            ended: Ended::Completed,
            finding: None,
        }
    }

    fn found(self, code: Code) -> Self {
        Attack {
            finding: Some(code),
            ..self
        }
    }

    fn ends(self, ended: Ended) -> Self {
        Attack { ended, ..self }
    }
}

/// Each attack in a rollout of its own, against a model that answers; the verifier gives a quarter.
async fn all_are_graded(attacks: Vec<Attack>, change: impl Fn(&mut Task)) {
    let home = Home::new();
    let engine = home.engine().await;
    let upstream = Upstream::start(|_, asked| match asked.body.contains("hi") {
        true => says("ok"),
        false => refused(),
    })
    .unwrap();
    let plans = attacks.iter().map(|attack| {
        let mut task = Task {
            id: attack.name.to_owned(),
            ..task(&[QUARTER])
        };
        change(&mut task);
        Arc::new(home.plan(task, &attack.script, upstream.base_url()))
    });
    let results = run_beside(&engine, plans.collect(), 2).await;
    engine.close().await;
    for attack in &attacks {
        let mut own = results.iter();
        let result = own.find(|result| result.task_id == attack.name).unwrap();
        assert_graded(result, attack);
    }
}

#[track_caller]
fn assert_graded(result: &RolloutResult, attack: &Attack) {
    let how = format!(
        "{}: {:?} {:?} {:?}\n{}",
        attack.name, result.error, result.verify_results, result.findings, result.agent_log_tail
    );
    assert_eq!(
        (
            result.ended,
            result.reward,
            result.graded,
            result.reward_valid
        ),
        (attack.ended, Some(0.25), true, true),
        "{how}"
    );
    assert!(
        !result.retryable,
        "a valid grade is not tried for again: {how}"
    );
    if let Some(code) = attack.finding {
        assert!(has(result, code), "{how}");
    }
}

fn has(result: &RolloutResult, code: Code) -> bool {
    result.findings.iter().any(|finding| finding.code == code)
}

fn refused() -> Reply {
    Reply::Whole {
        status: 400,
        content_type: "application/json",
        body: r#"{"error":{"message":"no such message"}}"#.to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_that_are_gone_or_locked_are_graded() {
    let gone = |name, script| Attack::new(name, script).found(Code::WorkdirUnusable);
    let attacks = vec![
        gone("removed", "rm -rf ~/workdir"),
        gone(
            "all removed",
            "cd /; rm -rf ~/* ~/.[!.]* 2> /dev/null; true",
        ),
        gone("locked", "chmod 000 ~/workdir"),
        gone("home locked", "chmod 000 ~"),
        gone("home and work locked", "chmod 000 ~/workdir ~"),
        gone("a file", "cd /; rm -rf ~/workdir; touch ~/workdir"),
        gone("a loop", "cd /; rm -rf ~/workdir; ln -s workdir ~/workdir"),
        gone(
            "init's",
            "cd /; rm -rf ~/workdir; ln -s /proc/1/cwd ~/workdir",
        ),
        gone("a pipe", "cd /; rm -rf ~/workdir; mkfifo ~/workdir"),
        // Nothing can be put in the place of the reward's directory.
        Attack::new(
            "forged logs",
            "mv ~/logs ~/away; mkdir -p ~/logs/verifier; chmod 000 ~/logs/agent; true",
        ),
    ];
    all_are_graded(attacks, |_| {}).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_graded() {
    let attacks = vec![
        Attack::new(
            "bytes",
            "for at in ~/workdir ~/logs/agent /tmp /dev/shm; do cat /dev/zero > $at/full; done 2> /dev/null; true",
        ),
        Attack::new(
            "inodes",
            "mkdir many; cd many; seq 70000 | xargs touch 2> /dev/null; ! touch one-more 2> /dev/null",
        ),
    ];
    all_are_graded(attacks, |task| task.limits.disk_mb = Some(16)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn used_up_processes_are_graded() {
    let bomb = "bash -c 'trap \"\" TERM; bomb() { bomb & bomb & wait; }; bomb' > /dev/null 2>&1 & \
        for i in $(seq 100); do (true); done 2> /dev/null; exit 1";
    let attacks = vec![
        Attack::new("a bomb", bomb).ends(Ended::AgentFailed),
        Attack::new("a bomb beside it", bomb).ends(Ended::AgentFailed),
    ];
    all_are_graded(attacks, |task| task.limits.pids = Some(64)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_ends_itself_is_graded() {
    let failed = |name, script| Attack::new(name, script).ends(Ended::AgentFailed);
    let attacks = vec![
        failed("kills itself", "kill -9 $$"),
        failed("kills all others", "sleep 100 & kill -9 -1; exit 9"),
        failed("stops init", "kill -STOP 1; kill -9 1; exit 3"),
        failed("exits badly", &format!("{ASK} > /dev/null; exit 7")),
        failed("crashes", &format!("{ASK} > /dev/null; kill -SEGV $$")),
    ];
    all_are_graded(attacks, |_| {}).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_cannot_be_answered_are_graded() {
    let wrong = |body: &str| format!("for i in 1 2 3 4 5 6 7; do ask '{body}'; done > /dev/null");
    let raw = |lines: &str| {
        format!(
            "for i in 1 2 3 4 5 6 7; do exec 3<>/dev/tcp/127.0.0.1/7000; printf '{lines}' >&3; timeout 1 cat <&3; exec 3<&-; \
             done > /dev/null"
        )
    };
    let failed = |name, script: &str| {
        // Where no call is answered at all there is nothing of a policy's to grade.
        let script = format!("{ASK} > /dev/null; {script}; exit 1");
        Attack::new(name, &script).ends(Ended::AgentFailed)
    };
    let attacks = vec![
        failed("no JSON", &wrong("{")),
        failed("no request", &wrong("[]")),
        failed("no messages", &wrong("{}")),
        failed("other messages", &wrong(r#"{"messages":5}"#)),
        failed(
            "no temperature",
            &wrong(r#"{"messages":[{"role":"user","content":"ho"}],"temperature":99}"#),
        ),
        failed(
            "refused after an answer",
            &wrong(r#"{"messages":[{"role":"user","content":"ho"}]}"#),
        ),
        failed(
            "deep",
            "deep=$(printf '[%.0s' $(seq 20000)); ask \"{\\\"messages\\\":$deep}\" > /dev/null",
        ),
        failed("no HTTP", &raw("hello\\r\\n\\r\\n")),
        failed(
            "no route",
            &raw("GET /v1/nothing HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"),
        ),
        failed(
            "a body that never comes",
            &raw(
                "POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 99999999999\\r\\n\\r\\n{",
            ),
        ),
        failed(
            "a large body",
            "exec 3<>/dev/tcp/127.0.0.1/7000; { printf 'POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\n\
             Authorization: Bearer %s\\r\\nContent-Length: 70000000\\r\\n\\r\\n' $KEY; head -c 70000000 /dev/zero; } >&3 \
             2> /dev/null",
        ),
    ];
    all_are_graded(attacks, |_| {}).await;
}

#[tokio::test]
async fn an_endpoint_that_takes_nothing_is_not_the_agents_fault() {
    let home = Home::new();
    let upstream = Upstream::start(|_, _| refused()).unwrap();
    let script = format!("{ASK} > /dev/null; exit 1");
    let result = home
        .run_against(task(&[QUARTER]), &script, upstream.base_url())
        .await;
    assert_eq!(
        (result.ended, result.graded, result.reward_valid),
        (Ended::UpstreamFailed, true, false)
    );
    assert!(result.retryable);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_nobody_can_read_are_graded() {
    let attacks = vec![
        Attack::new(
            "odd files",
            "mkfifo a b; ln -s /dev/zero c; truncate -s 1G d; mkdir -m 000 e; ln -s . f; touch \"$(printf '\\377')\"; \
             mkfifo ~/logs/agent/shell.jsonl ~/logs/agent/proxy.log; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"g\")'",
        ),
        Attack::new(
            "a deep tree",
            "python3 -c 'import os\nfor i in range(3000): os.mkdir(\"d\" * 200); os.chdir(\"d\" * 200)'",
        ),
        Attack::new(
            "a directory for a log",
            "mkdir -p ~/logs/agent/shell.jsonl/x ~/logs/agent/proxy.log/x",
        ),
    ];
    all_are_graded(attacks, |_| {}).await;
}

/// Passes where the tests are as the task gave them, and nothing of the agent's is beside them.
const TEST: &str = "set -e\n\
    cd /home/user/tests\n\
    test \"$(find . -type f | sort | tr '\\n' ' ')\" = './data/expected ./test.sh '\n\
    test \"$(stat -c %a test.sh)\" = 755\n\
    grep -qx real data/expected\n\
    test \"$0\" = /home/user/tests/test.sh\n\
    echo 0.25 > /home/user/logs/verifier/reward.txt";

#[tokio::test(flavor = "multi_thread")]
async fn tests_can_neither_be_seeded_nor_locked_nor_seen() {
    let attacks = [
        (
            "seeded",
            "mkdir -p ~/tests/data; echo forged > ~/tests/data/expected",
        ),
        (
            "a script",
            "printf 'echo 1 > ~/logs/verifier/reward.txt' > ~/tests/test.sh; chmod 444 ~/tests/test.sh",
        ),
        ("locked", "chmod 000 ~/tests; chmod 000 ~"),
        (
            "a link",
            "ln -s /tmp ~/tests/data; ln -sfT /tmp ~/tests; touch /tmp/expected",
        ),
        (
            "another directory",
            "rmdir ~/tests; rm -rf ~/tests; mv ~/tests ~/away; mkdir ~/tests; echo x > ~/tests/x",
        ),
        ("a full disk", "cat /dev/zero > full 2> /dev/null"),
        (
            "held open",
            "cd ~/tests; (setsid sleep 1000 > /dev/null 2>&1 &)",
        ),
        ("all removed", "cd /; rm -rf ~/* ~/.[!.]* 2> /dev/null"),
        // What it would find would tell it what is looked for.
        (
            "seen",
            "test -z \"$(find ~/tests -type f)\" || rm -rf ~/workdir",
        ),
    ];
    let attacks = attacks.map(|(name, script)| Attack::new(name, &format!("{script}; true")));
    all_are_graded(attacks.into(), |task| {
        task.verify = Vec::new();
        task.test_script = Some(TEST.to_owned());
        let expected = "/home/user/tests/data/expected".to_owned();
        task.files.insert(expected, "real\n".to_owned());
        task.limits.disk_mb = Some(64);
    })
    .await;
}

#[tokio::test]
async fn memory_full_of_files_is_graded() {
    let home = Home::new();
    let mut task = task(&["true", "test -e nothing"]);
    task.limits.memory_mb = Some(64);
    task.limits.disk_mb = Some(512);
    let result = home
        .run(task, "cat /dev/zero > full 2> /dev/null; exit 0")
        .await;
    assert!(
        result.graded && result.reward_valid,
        "{:?} {:?} {:?} {:?}",
        result.ended,
        result.error,
        result.verify_results,
        result.findings
    );
    assert!(result.reward < Some(1.0));
}

#[tokio::test]
async fn what_a_verify_command_starts_ends_with_it() {
    let home = Home::new();
    let daemon = "setsid bash -c 'trap \"\" TERM; while :; do echo 99 > /home/user/logs/verifier/reward.txt; \
        sleep 0.01; done' > /dev/null 2>&1 < /dev/null & until test -s ~/logs/verifier/reward.txt; do :; done";
    // Time enough for the first one's daemon to write again.
    let verdict = format!("{QUARTER}; sleep 0.3; ! pgrep -f [e]cho.99");
    let result = home.run(task(&[daemon, &verdict]), "true").await;
    assert_eq!(
        (result.ended, result.reward, result.reward_valid),
        (Ended::Completed, Some(0.25), true),
        "{:?}",
        result.verify_results
    );
    assert_eq!(result.verify_results[1].exit_code, 0);
    assert!(
        has(&result, Code::VerifyLeftProcesses),
        "{:?}",
        result.findings
    );
}

#[tokio::test]
async fn a_verifier_that_leaves_no_processes_has_no_finding() {
    let home = Home::new();
    let result = home
        .run(task(&["sleep 0.01 & wait; true | cat", "true"]), "true")
        .await;
    assert_eq!(result.reward, Some(1.0));
    assert!(
        !has(&result, Code::VerifyLeftProcesses),
        "{:?}",
        result.findings
    );
}

#[tokio::test]
async fn graded_code_cannot_ask_the_model() {
    let home = Home::new();
    let upstream = Upstream::start(|number, _| match number {
        0 => says("ok"),
        _ => Reply::Hang,
    })
    .unwrap();
    // The agent leaves its key, a call that is not answered yet, and a program that asks.
    let script = format!(
        "{ASK} > /dev/null; echo \"$KEY\" > key; {ASK} > /dev/null & \
         until test $(ss -tn 2> /dev/null | grep -c 7000) -ge 1 || sleep 0.3; do :; done; declare -f ask > ask.sh; true"
    );
    let verify = [
        "! (exec 3<>/dev/tcp/127.0.0.1/7000) 2> /dev/null",
        &format!("KEY=$(cat key); . ./ask.sh; {ASK} > answer 2> /dev/null; ! test -s answer"),
    ];
    let result = home
        .run_against(task(&verify), &script, upstream.base_url())
        .await;
    assert_eq!(
        (result.ended, result.reward, result.reward_valid),
        (Ended::Completed, Some(1.0), true),
        "{:?} {:?}",
        result.error,
        result.verify_results
    );
    let asked = upstream.requests().len();
    assert!((1..=2).contains(&asked), "{asked} calls");
    let calls = traced(&result).proxy_turns;
    let roles: Vec<_> = calls.iter().map(|turn| &*turn.role).collect();
    assert_eq!(roles.len(), asked, "{roles:?}");
    assert_eq!(roles[0], "agent");
    assert!(roles[1..].iter().all(|role| *role == "failed"));
    assert_eq!(result.budget.spent.calls, 1, "{:?}", result.budget);
}

#[tokio::test]
async fn requests_without_end_do_not_fill_our_disk() {
    let home = Home::new();
    let engine = home.engine().await;
    let upstream = Upstream::start(|_, _| says("ok")).unwrap();
    let flood = "noise() { head -c 90000 /dev/urandom | base64 -w 0; }; until ask \
        \"{\\\"messages\\\":[{\\\"role\\\":\\\"user\\\",\\\"content\\\":\\\"$(noise)\\\"}]}\" | grep -q record_bytes; do :; done";
    let mut plan = home.plan(task(&[QUARTER]), flood, upstream.base_url());
    plan.settings.record_bytes_max = 1 << 20;
    let result = crate::support::run_one(&engine, plan, &Default::default()).await;
    engine.close().await;
    let end = (result.ended, result.reward, result.reward_valid);
    assert_eq!(end, (Ended::Budget, Some(0.25), true), "{:?}", result.error);
    assert_eq!(result.budget.stopped_by.as_deref(), Some("record_bytes"));
    let record = std::path::Path::new(&result.record).join("exchanges.rec");
    assert!(record.metadata().unwrap().len() < 2 << 20);
}

/// The same work with and without `as-agent`: a program that answers wrongly and writes a reward of its own.
#[tokio::test]
async fn code_run_as_the_agent_cannot_touch_its_grade() {
    let home = Home::new();
    let program = "echo 1000 > /home/user/logs/verifier/reward.txt; chmod 444 /home/user/logs/verifier/reward.txt; \
        cat /home/user/tests/* 2> /dev/null; pkill -9 bash; kill -9 -1; echo wrong";
    let attack = format!("{ASK} > /dev/null; printf '%s' '{program}' > answer.sh");
    let verify = |how: &str| {
        task(&[&format!(
            "if test \"$({how} bash answer.sh)\" = 42; then echo 1; else echo 0; fi > ~/logs/verifier/reward.txt"
        )])
    };
    let graded = home.run(verify("as-agent"), &attack).await;
    assert_eq!(
        (graded.reward, graded.reward_valid),
        (Some(0.0), true),
        "{:?} {:?}",
        graded.verify_results,
        graded.findings
    );
    assert!(!has(&graded, Code::RewardTampered));
    // Without it the program ends its verifier, which is worth nothing either.
    let graded = home.run(verify(""), &attack).await;
    assert_eq!((graded.reward, graded.reward_valid), (Some(0.0), true));

    let honest = format!("{ASK} > /dev/null; echo 'echo 42' > answer.sh");
    let graded = home.run(verify("as-agent"), &honest).await;
    assert_eq!((graded.reward, graded.reward_valid), (Some(1.0), true));
}
