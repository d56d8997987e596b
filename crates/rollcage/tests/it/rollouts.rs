//! Whole rollouts in real sandboxes, with agents that misbehave in every way we know of.

use std::time::Duration;

use crate::support::{ASK, Home, run_one, task, traced};
use rollcage_model::ending::Ended;
use rollcage_model::finding::Code;
use rollcage_model::task::Task;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn a_good_agent_gets_its_reward_and_a_trace() {
    let home = Home::new();
    let result = home
        .run(
            task(&["test -f a", "test -f missing"]),
            &format!("cat > a; {ASK}"),
        )
        .await;
    assert_eq!(
        (result.ended, result.error.as_deref()),
        (Ended::Completed, None)
    );
    assert_eq!(result.reward, Some(0.5));
    assert!(result.graded && result.reward_valid);
    assert_eq!(result.files["/home/user/workdir/a"], "go");
    let trace = traced(&result)
        .training_trace
        .expect("exact tokens make a trace");
    assert_eq!(trace.turns[0].prompt_token_ids, [1, 2, 3, 4]);
    assert_eq!(trace.turns[0].completion_token_ids, [7, 8]);
    assert_eq!(trace.turns[0].per_token_logps, [-0.25, -0.5]);
    assert_eq!(trace.turns[0].loss_mask, [0, 0, 0, 0, 1, 1]);
}

#[tokio::test]
async fn a_failed_setup_ends_it_before_the_agent_starts() {
    let home = Home::new();
    let task = Task {
        setup: vec!["true".into(), "echo no >&2; exit 3".into(), "true".into()],
        ..task(&["true"])
    };
    let result = home.run(task, "touch /home/user/workdir/agent-ran").await;
    assert_eq!(result.ended, Ended::SetupFailed);
    assert_eq!(
        result
            .setup_results
            .iter()
            .map(|setup| setup.exit_code)
            .collect::<Vec<_>>(),
        [0, 3]
    );
    assert_eq!(result.setup_results[1].stderr, "no\n");
    assert!(
        result
            .error
            .unwrap()
            .starts_with("setup command failed (exit 3)")
    );
    assert!(!result.graded && result.agent_exit_code.is_none() && result.verify_results.is_empty());
}

#[tokio::test]
async fn an_agent_that_exits_badly_is_graded() {
    let home = Home::new();
    let result = home
        .run(
            task(&["true"]),
            &format!("{ASK} > /dev/null; echo broken pipe >&2; exit 7"),
        )
        .await;
    assert_eq!(
        (result.ended, result.agent_exit_code),
        (Ended::AgentFailed, Some(7))
    );
    assert_eq!(
        (result.reward, result.graded, result.reward_valid),
        (Some(1.0), true, true)
    );
    assert_eq!(
        result.error.as_deref(),
        Some("agent failed (exit 7): broken pipe")
    );
}

#[tokio::test]
async fn an_agent_that_hangs_and_ignores_signals_times_out() {
    let home = Home::new();
    let task = Task {
        agent_timeout_s: Some(0.5),
        ..task(&["true"])
    };
    let script = "trap '' TERM INT HUP; touch begun; while :; do sleep 60; done";
    let result = home.run(task, script).await;
    assert_eq!(
        (result.ended, result.reward, result.reward_valid),
        (Ended::TimedOut, Some(1.0), true)
    );
    assert_eq!(result.budget.stopped_by.as_deref(), Some("agent_timeout_s"));
    assert!(result.files.contains_key("/home/user/workdir/begun"));
}

#[tokio::test]
async fn a_flood_of_output_costs_neither_memory_nor_the_rollout() {
    let home = Home::new();
    let result = home
        .run(task(&["true"]), "head -c 1G /dev/zero; echo; echo the end")
        .await;
    assert_eq!((result.ended, result.reward), (Ended::Completed, Some(1.0)));
    assert!(result.agent_log_tail.ends_with("the end\n"));
    let log =
        std::fs::metadata(std::path::Path::new(&result.record).join("agent.stdout.log")).unwrap();
    assert!(log.len() < 20 << 20, "{} bytes of log", log.len());
}

#[tokio::test]
async fn nothing_of_the_agent_lives_on_into_grading() {
    let home = Home::new();
    // A daemon in a session of its own, which would overwrite the reward and the work again and again.
    let daemon = "setsid bash -c 'trap \"\" TERM; while :; do echo 99 > /home/user/logs/verifier/reward.txt; \
        touch forged; sleep 0.01; done' > /dev/null 2>&1 < /dev/null & disown; sleep 0.3";
    let verify = [
        "pgrep -f [f]orged; test $? = 1",
        "rm -f forged; sleep 0.2; test ! -e forged",
        "ls /home/user/logs/verifier | wc -l | grep -qx 0",
    ];
    let result = home.run(task(&verify), daemon).await;
    assert_eq!(result.ended, Ended::Completed, "{:?}", result.error);
    let codes: Vec<_> = result
        .verify_results
        .iter()
        .map(|verify| verify.exit_code)
        .collect();
    assert_eq!(codes, [0, 0, 0], "{:#?}", result.verify_results);
    assert_eq!(result.reward, Some(1.0));
}

#[tokio::test]
async fn an_agent_cannot_seed_or_replace_the_reward() {
    let home = Home::new();
    let script = "d=/home/user/logs/verifier; echo 99 > $d/reward.txt; rm -rf $d; mv $d /tmp/x; mv /home/user/logs /tmp/y; \
        mkdir -p $d; ln -sfn /tmp $d; echo 99 > $d/reward.txt; echo 99 > /tmp/reward.txt; \
        printf 'echo 99 > ~/logs/verifier/reward.txt' > ~/.bashrc; cp ~/.bashrc ~/.profile; cp ~/.bashrc ~/.bash_profile; true";
    let result = home.run(task(&["true", "false"]), script).await;
    assert_eq!(
        (result.ended, result.reward),
        (Ended::Completed, Some(0.5)),
        "{:?}",
        result.error
    );
}

#[tokio::test]
async fn a_verifier_may_write_the_reward_itself() {
    let home = Home::new();
    let result = home
        .run(
            task(&["echo 0.75 > /home/user/logs/verifier/reward.txt; exit 1"]),
            "true",
        )
        .await;
    assert_eq!(
        (result.ended, result.reward),
        (Ended::Completed, Some(0.75))
    );
}

#[tokio::test]
async fn a_reward_that_is_no_number_is_0_and_without_a_policy_the_verifiers_error() {
    let home = Home::new();
    for written in ["", "nan", "passed"] {
        let verify = format!("printf '{written}' > /home/user/logs/verifier/reward.txt");
        let result = home.run(task(&[&verify]), &format!("{ASK}; true")).await;
        assert_eq!(
            (result.ended, result.reward, result.reward_valid),
            (Ended::Completed, Some(0.0), true),
            "{written}"
        );
        let codes: Vec<_> = result.findings.iter().map(|finding| finding.code).collect();
        assert!(codes.contains(&Code::RewardUnreadable), "{codes:?}");
        // A script that asks no model cannot have spoiled it.
        let result = home.run(task(&[&verify]), "true").await;
        assert_eq!(
            (result.ended, result.reward, result.graded),
            (Ended::VerifierFailed, None, false),
            "{written}"
        );
        assert!(result.error.unwrap().contains("one finite number"));
    }
}

#[tokio::test]
async fn a_verify_command_that_hangs_does_not_pass() {
    let home = Home::new();
    let task = Task {
        command_timeout_s: 0.5,
        ..task(&["sleep 1000", "true"])
    };
    let result = home.run(task, "true").await;
    assert_eq!((result.ended, result.reward), (Ended::Completed, Some(0.5)));
    assert!(result.verify_results[0].timed_out && result.verify_results[0].exit_code == -1);
}

#[tokio::test]
async fn memory_disk_and_process_limits_hold_for_the_agent() {
    let home = Home::new();
    let mut task = task(&["test -e survived"]);
    task.limits.disk_mb = Some(8);
    task.limits.pids = Some(64);
    let script = "head -c 32M /dev/zero > big; rm -f big; (for i in $(seq 200); do sleep 5 & done) 2> /dev/null; \
        n=$(ps ax | wc -l); test $n -le 66 && touch survived";
    let result = home.run(task, script).await;
    assert_eq!(
        (result.ended, result.reward),
        (Ended::Completed, Some(1.0)),
        "{}",
        result.agent_log_tail
    );
}

#[tokio::test]
async fn cancelling_ends_a_running_rollout_with_a_result() {
    let home = Home::new();
    let engine = home.engine().await;
    let cancel = CancellationToken::new();
    let plan = home.plan(
        task(&["true"]),
        &format!("{ASK}; sleep 1000"),
        "http://127.0.0.1:9/v1",
    );
    let upstream =
        rollcage_testkit::upstream::Upstream::start(|_, _| crate::support::says("ok")).unwrap();
    let plan = crate::support::Plan {
        endpoint: crate::support::endpoint(upstream.base_url()),
        ..plan
    };
    let ended = async {
        // The agent has made its call and sleeps.
        while upstream.requests().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cancel.cancel();
    };
    let (result, ()) = tokio::join!(run_one(&engine, plan, &cancel), ended);
    engine.close().await;
    assert_eq!((result.ended, result.graded), (Ended::Cancelled, false));
    assert_eq!(
        traced(&result).proxy_turns.len(),
        1,
        "what was captured until then is kept"
    );
    assert_eq!(home_results(&home), 1);
}

#[tokio::test]
async fn task_files_arrive_and_large_files_are_only_listed() {
    let home = Home::new();
    let mut task = task(&[
        "test \"$(cat sub/b)\" = inside",
        "test \"$(cat ~/task/note)\" = hint",
    ]);
    task.files.insert("sub/b".into(), "inside".into());
    task.files
        .insert("/home/user/task/note".into(), "hint".into());
    let result = home
        .run(
            task,
            "head -c 100K /dev/zero > large; printf '\\377' > binary",
        )
        .await;
    assert_eq!(result.reward, Some(1.0), "{:?}", result.error);
    assert_eq!(
        result.files.keys().collect::<Vec<_>>(),
        ["/home/user/workdir/sub/b"]
    );
    assert_eq!(
        result.files_extra,
        ["/home/user/workdir/binary", "/home/user/workdir/large"]
    );
}

fn home_results(home: &Home) -> usize {
    let rollouts = std::fs::read_dir(home.path().join("rollouts")).unwrap();
    rollouts
        .flatten()
        .filter(|entry| entry.path().join("result.json").exists())
        .count()
}

#[tokio::test]
async fn a_budget_of_calls_ends_the_loop_with_a_last_answer() {
    let home = Home::new();
    let engine = home.engine().await;
    let upstream =
        rollcage_testkit::upstream::Upstream::start(|_, _| crate::support::says("more")).unwrap();
    let mut task = task(&["true"]);
    task.budget.calls = Some(2);
    // As a real agent: it asks until it is told that this is the end.
    let script = format!("while ! {ASK} | grep -q 'budget of this task'; do :; done");
    let plan = home.plan(task, &script, upstream.base_url());
    let settings = rollcage_proxy::ModelSettings {
        budget: plan.task.budget.into(),
        ..plan.settings.clone()
    };
    let plan = crate::support::Plan { settings, ..plan };
    let result = run_one(&engine, plan, &CancellationToken::new()).await;
    engine.close().await;
    assert_eq!(
        (result.ended, result.reward, result.reward_valid),
        (Ended::Budget, Some(1.0), true)
    );
    assert_eq!(result.budget.stopped_by.as_deref(), Some("calls"));
    assert_eq!((result.budget.spent.calls, result.budget.stops), (2, 1));
    assert_eq!(
        (upstream.requests().len(), traced(&result).proxy_turns.len()),
        (2, 2),
        "the last answer is no turn"
    );
}

#[tokio::test]
async fn an_agent_that_stops_asking_is_ended_when_its_task_says_so() {
    let home = Home::new();
    let mut task = task(&["true"]);
    task.budget.idle_s = Some(0.3);
    let result = home.run(task, &format!("{ASK}; sleep 1000")).await;
    assert_eq!(
        (result.ended, traced(&result).proxy_turns.len()),
        (Ended::Budget, 1)
    );
    assert!(result.error.unwrap().contains("idle_s"));
}

#[tokio::test]
async fn a_stored_rollout_exports_in_every_format() {
    let home = Home::new();
    let result = home.run(task(&["true"]), ASK).await;
    for format in [
        "training-trace",
        "trace-entries",
        "capture",
        "atif",
        "sft",
        "turns",
    ] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_rollcage"))
            .args(["export", &result.rollout_id.to_string(), "--format", format])
            .env("ROLLCAGE_HOME", home.path())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{format}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(value.is_object(), "{format}: {line}");
        }
    }
}

#[tokio::test]
async fn several_rollouts_make_one_parquet_table() {
    let home = Home::new();
    let file = home.path().join("turns.parquet");
    let mut export = std::process::Command::new(env!("CARGO_BIN_EXE_rollcage"));
    export.env("ROLLCAGE_HOME", home.path());
    export.args(["export", "--format", "parquet", "--output"]);
    export.arg(&file);
    for _ in 0..2 {
        let result = home.run(task(&["true"]), ASK).await;
        export.arg(result.rollout_id.to_string());
    }
    let output = export.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let table = std::fs::read(&file).unwrap();
    assert!(table.starts_with(b"PAR1") && table.ends_with(b"PAR1"));
}

#[tokio::test]
async fn a_task_finds_everything_where_the_original_has_it() {
    let home = Home::new();
    let script = "#!/usr/bin/env python3\nimport sys\nread = lambda path: open('/home/user/' + path).read()\n\
        assert read('task/instruction.md') == 'go'\nassert read('logs/agent/shell.jsonl') == 'said\\n'\n\
        assert read('logs/agent/proxy.log').startswith('#1 200')\n\
        assert open('/tmp/beside').read() == 'beside'\n\
        open('/home/user/logs/verifier/reward.txt', 'w').write('0.75')\nsys.exit(3)\n";
    let mut task = Task {
        test_script: Some(script.to_owned()),
        setup: vec!["test -f ~/task/instruction.md && test -z \"$(ls ~/tests)\"".to_owned()],
        ..task(&["true"])
    };
    for path in ["/tmp/beside", "/home/user/logs/agent/beside"] {
        task.files.insert(path.into(), "beside".into());
    }
    let result = home
        .run(task, &format!("echo said; {ASK} > /dev/null"))
        .await;
    assert_eq!(
        (result.ended, result.reward, result.test_exit_code),
        (Ended::Completed, Some(0.75), Some(3)),
        "{:?} {:?}",
        result.error,
        result.verify_results
    );
    assert_eq!(result.agent_log_tail, "said\n");
    let commands: Vec<_> = result.verify_results.iter().map(|it| &it.cmd).collect();
    assert_eq!(commands, ["true", "/home/user/tests/test.sh"]);
    let turns = traced(&result).proxy_turns;
    let request = turns[0].request.as_object().unwrap();
    for name in rollcage_model::turn::COMPACT {
        assert!(request.contains_key(name), "{name}");
    }
    assert_eq!(request["logprobs"], true);
    assert_eq!(request["messages"][0]["content"], "hi");
}

#[tokio::test]
async fn a_file_where_the_sandboxs_user_may_not_write_fails_the_setup() {
    let home = Home::new();
    let mut task = task(&["true"]);
    task.files.insert("/etc/passwd".into(), "me".into());
    let result = home.run(task, "true").await;
    assert_eq!(result.ended, Ended::SetupFailed);
    let error = result.error.unwrap();
    assert!(error.contains("/etc/passwd"), "{error}");
}
