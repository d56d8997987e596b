//! Rollouts whose agent runs as a server, with the real OpenCode: as exact as those of its command, and ended at any
//! moment without loss.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::agents::{check_tokens, plan, shared_home};
use crate::support::{Plan, endpoint, open_engine, open_engine_with, streams, traced};
use rollcage_engine::{Engine, EngineLimits, RolloutCommand, RolloutEntry, RolloutLookup};
use rollcage_model::ending::{Cause, Ended};
use rollcage_model::record::RolloutResult;
use rollcage_model::script::Step;
use rollcage_model::task::{AgentDriver, Task};
use rollcage_scripted::Log;
use rollcage_testkit::upstream::{Reply, StreamEnd, Upstream};

fn task(id: &str, driver: AgentDriver) -> Task {
    Task {
        id: id.to_owned(),
        instruction: "Write hello.txt.".to_owned(),
        verify: vec!["grep -qx hello hello.txt".to_owned()],
        solution: vec![
            Step {
                write: Some("hello.txt".to_owned()),
                content: Some("hello\n".to_owned()),
                ..Step::default()
            },
            Step::shell("cat hello.txt"),
            Step {
                say: Some("It is there.".to_owned()),
                ..Step::default()
            },
        ],
        driver: Some(driver),
        ..Task::default()
    }
}

pub(crate) fn start(engine: &Engine, plan: &Plan) -> Arc<RolloutEntry> {
    engine.submit(plan.resolved(), 1).unwrap().remove(0)
}

pub(crate) async fn finalized(engine: &Engine, entry: &RolloutEntry) -> RolloutResult {
    let _ = engine.command(entry, RolloutCommand::Finalize);
    Arc::unwrap_or_clone(engine.wait(entry).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trace_of_a_served_rollout_is_as_exact_as_that_of_a_command() {
    let engine = open_engine(shared_home()).await;
    let log = Log::new(1000);
    engine.log_scripted(Arc::clone(&log));
    let mut first_calls = Vec::new();
    for driver in AgentDriver::ALL {
        let plan = plan(&engine, "opencode", task("exact", driver)).await;
        log.take();
        let entry = start(&engine, &plan);
        let result = finalized(&engine, &entry).await;
        assert_eq!(
            (result.ended, result.reward, result.driver),
            (Ended::Completed, Some(1.0), driver),
            "{:?}",
            result.error
        );
        let key = plan.endpoint.key.as_ref().unwrap().expose().to_owned();
        check_tokens(&result, &log, &key, plan.task.solution.len());
        let trace = traced(&result).training_trace.unwrap();
        first_calls.push(json!(trace.turns[0].request));
        assert_eq!(result.agent_report.tool_calls, 2);
        let last = result.agent_report.last_message.as_deref();
        assert_eq!(last, Some("It is there."));
    }
    engine.close().await;
    assert_eq!(first_calls[0]["messages"], first_calls[1]["messages"]);
    assert_eq!(first_calls[0]["tools"], first_calls[1]["tools"]);
}

/// A served rollout with an endpoint of the test's own.
async fn plan_against(engine: &Engine, upstream: &Upstream) -> Plan {
    let known = plan(engine, "opencode", task("abort", AgentDriver::Serve)).await;
    Plan {
        endpoint: endpoint(upstream.base_url()),
        ..Arc::into_inner(known).unwrap()
    }
}

fn keeping() -> EngineLimits {
    EngineLimits {
        keep_aborted: Duration::from_secs(60),
        ..EngineLimits::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_in_the_middle_of_an_answer_ends_it_at_once_and_can_be_graded() {
    let engine = open_engine_with(shared_home(), keeping()).await;
    let upstream = Upstream::start(|_, _| streams(false, StreamEnd::Hang)).unwrap();
    let plan = plan_against(&engine, &upstream).await;
    let entry = start(&engine, &plan);
    while upstream.requests().is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let session = entry.feed.status().serve_session_id;
    assert!(session.is_some());
    engine.command(&entry, RolloutCommand::Abort).unwrap();
    while !entry.is_kept() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let found = RolloutLookup::InMemory(Arc::clone(&entry));
    let kept = engine.served_messages(&found).await.unwrap();
    assert_eq!((&kept.session, &kept.error), (&session, &None));
    // The agent was told, and had the time to write down what became of its answer.
    let last = kept.messages.last().unwrap();
    assert_eq!(last["info"]["error"]["name"], json!("MessageAbortedError"));
    let result = finalized(&engine, &entry).await;
    assert_eq!(
        (result.cause, result.reward, result.graded),
        (Some(Cause::Cancelled), Some(0.0), true)
    );
    assert_eq!(result.serve_session_id, session);
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_ends_its_rollout() {
    let engine = open_engine(shared_home()).await;
    let mut killed = task("killed", AgentDriver::Serve);
    killed.solution = vec![
        Step::shell("echo hello > hello.txt"),
        Step::shell("kill -9 $PPID; sleep 60"),
    ];
    let plan = plan(&engine, "opencode", killed).await;
    let entry = start(&engine, &plan);
    let result = finalized(&engine, &entry).await;
    engine.close().await;
    assert_eq!(
        (result.cause, result.reward),
        (Some(Cause::AgentKilled), Some(1.0)),
        "{:?}",
        result.error
    );
    let error = result.error.unwrap();
    assert!(
        error.starts_with("wait_for_completion: CrashedError: "),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_fails_is_the_cause_and_not_the_agent() {
    let engine = open_engine(shared_home()).await;
    let upstream = Upstream::start(|_, _| Reply::Whole {
        status: 401,
        content_type: "application/json",
        body: r#"{"error": {"message": "no such key"}}"#.to_owned(),
    })
    .unwrap();
    let plan = plan_against(&engine, &upstream).await;
    let entry = start(&engine, &plan);
    let result = finalized(&engine, &entry).await;
    engine.close().await;
    let verdict = result.cause.unwrap().verdict();
    assert!(!verdict.is_valid, "{:?}: {:?}", result.cause, result.error);
    assert_eq!(result.driver, AgentDriver::Serve);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agents_own_log_is_kept_on_request() {
    let engine = open_engine(shared_home()).await;
    for driver in AgentDriver::ALL {
        let mut logged = task("logged", driver);
        logged.agent.log_level = Some("DEBUG".to_owned());
        let plan = plan(&engine, "opencode", logged).await;
        let entry = start(&engine, &plan);
        let result = finalized(&engine, &entry).await;
        assert_eq!(result.reward, Some(1.0), "{:?}", result.error);
        let log = std::path::Path::new(&result.record).join("agent.stderr.log");
        let log = std::fs::read_to_string(log).unwrap();
        assert!(
            log.contains("DEBUG") || log.contains("INFO"),
            "{driver:?}: {log}"
        );
    }
    engine.close().await;
}
