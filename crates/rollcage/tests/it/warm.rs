//! Sandboxes in which OpenCode's server stands ready: what a rollout in one sees and records is what it would without.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::agents::{check_tokens, plan, shared_home};
use crate::support::{Plan, open_engine_with, run_one, traced};
use rollcage_engine::intake::ResolvedRollout;
use rollcage_engine::{Engine, EngineLimits, WarmLimits};
use rollcage_model::ending::Ended;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::Task;
use rollcage_scripted::Log;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

const LIMIT: Duration = Duration::from_secs(120);

fn limits(count_max: usize) -> EngineLimits {
    EngineLimits {
        slots: 1,
        owner_slots: 1,
        warm: WarmLimits {
            count_max,
            linger: Duration::from_secs(600),
        },
        ..EngineLimits::default()
    }
}

fn served(id: &str) -> Task {
    let text = r#"
        instruction = "Write hello.txt."
        verify = ["grep -qx hello hello.txt"]
        driver = "serve"
        [[solution]]
        write = "hello.txt"
        content = "hello\n"
        [[solution]]
        say = "done"
    "#;
    Task {
        id: id.to_owned(),
        ..Task::from_toml(text).unwrap()
    }
}

async fn until_ready(engine: &Engine) {
    let since = Instant::now();
    while engine.load().warm.ready == 0 {
        let warm = engine.load().warm;
        assert!(since.elapsed() < LIMIT && warm.failed == 0, "{warm:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn run(engine: &Engine, plan: &Arc<Plan>) -> RolloutResult {
    run_resolved(engine, plan.resolved()).await
}

async fn run_resolved(engine: &Engine, rollout: ResolvedRollout) -> RolloutResult {
    let entries = engine.submit(rollout, 1).unwrap();
    let mut result = None;
    let deliver = |one| result = Some(one);
    engine
        .command(&entries[0], rollcage_engine::RolloutCommand::Finalize)
        .unwrap();
    engine
        .deliver(entries, CancellationToken::new(), deliver)
        .await;
    let result = result.unwrap();
    assert_eq!(
        (result.ended, result.reward),
        (Ended::Completed, Some(1.0)),
        "{:?}",
        result.error
    );
    result
}

/// The messages and tools of the first call.
fn first_call(result: &RolloutResult) -> Value {
    let trace = traced(result).training_trace.unwrap();
    serde_json::to_value(&trace.turns[0].request).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ready_agent_serves_one_rollout_of_its_kind_with_exact_tokens() {
    let engine = open_engine_with(shared_home(), limits(1)).await;
    let log = Log::new(1000);
    engine.log_scripted(Arc::clone(&log));
    let task = plan(&engine, "opencode", served("same")).await;
    let key = task.endpoint.key.as_ref().unwrap().expose().to_owned();
    let cold = run(&engine, &task).await;
    assert!(!cold.sandbox.warm);
    until_ready(&engine).await;
    log.take();

    let warm = run(&engine, &task).await;
    assert!(warm.sandbox.warm);
    check_tokens(&warm, &log, &key, task.task.solution.len());
    assert_eq!(first_call(&warm)["messages"], first_call(&cold)["messages"]);
    assert_ne!(warm.sandbox_id, cold.sandbox_id);
    assert_ne!(warm.serve_session_id, cold.serve_session_id);

    // Another variable is another kind: nothing that stands ready fits.
    let mut other = served("other");
    other.env.insert("COLOUR".to_owned(), "blue".to_owned());
    let other = plan(&engine, "opencode", other).await;
    until_ready(&engine).await;
    assert!(!run(&engine, &other).await.sandbox.warm);
    // So is another owner, whatever else is the same.
    let mut theirs = task.resolved();
    theirs.owner = Some("somebody".to_owned());
    assert!(!run_resolved(&engine, theirs).await.sandbox.warm);
    let counters = engine.load().warm;
    assert_eq!((counters.hits, counters.misses, counters.failed), (1, 3, 0));
    engine.close().await;
    assert_eq!(engine.load().warm.ready, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_setup_writes_is_seen_by_an_agent_that_stood_ready() {
    let engine = open_engine_with(shared_home(), limits(1)).await;
    let mut task = served("project");
    task.setup = [
        "git init -q . && git -c user.name=a -c user.email=a@b.c commit -q --allow-empty -m first",
        "echo 'Always greet the reviewer.' > AGENTS.md",
        "mkdir -p .opencode/agent && printf -- '---\\ndescription: knows-the-harbour\\nmode: subagent\\n---\\nYou know it.\\n' > .opencode/agent/pilot.md",
        "echo '{\"model\": \"nowhere/nothing\"}' > opencode.json",
    ]
    .map(str::to_owned)
    .to_vec();
    let task = plan(&engine, "opencode", task).await;
    let cold = run(&engine, &task).await;
    until_ready(&engine).await;
    let warm = run(&engine, &task).await;
    engine.close().await;
    assert_eq!((cold.sandbox.warm, warm.sandbox.warm), (false, true));
    let (cold, warm) = (first_call(&cold), first_call(&warm));
    assert_eq!(cold["messages"], warm["messages"]);
    assert_eq!(cold["tools"], warm["tools"]);
    let text = warm.to_string();
    for seen in [
        "Always greet the reviewer.",
        "knows-the-harbour",
        "Is directory a git repo: yes",
    ] {
        assert!(text.contains(seen), "{seen} is not in the first prompt");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn none_stand_ready_where_they_are_turned_off_or_not_asked_for() {
    let engine = open_engine_with(shared_home(), limits(0)).await;
    let task = plan(&engine, "opencode", served("off")).await;
    run(&engine, &task).await;
    assert_eq!(engine.load().warm, rollcage_engine::WarmCounters::default());
    engine.close().await;

    let engine = open_engine_with(shared_home(), limits(1)).await;
    let mut cli = served("cli");
    cli.driver = None;
    let cli = plan(&engine, "opencode", cli).await;
    let plain = Arc::into_inner(cli).unwrap();
    run_one(&engine, plain, &CancellationToken::new()).await;
    assert_eq!(engine.load().warm, rollcage_engine::WarmCounters::default());
    engine.close().await;
}
