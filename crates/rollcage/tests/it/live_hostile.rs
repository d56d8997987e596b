//! An agent knows the password of its own server, so it can put any program in its place. Whatever that says, the rollout ends
//! in one result, and neither memory nor disk fill up.

use std::path::Path;
use std::sync::Arc;

use crate::support::{Home, says, task};
use rollcage_engine::RolloutCommand;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::{AgentDriver, Task};
use rollcage_testkit::upstream::Upstream;

const SERVER: &str = include_str!("live_hostile.py");
/// What is read of an answer at most, and a little more.
const RECORD_BYTES_MAX: u64 = 80 << 20;

fn bytes_below(path: &Path) -> u64 {
    let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
    let bytes = entries.map(|entry| match entry.file_type().unwrap() {
        kind if kind.is_dir() => bytes_below(&entry.path()),
        _ => entry.metadata().unwrap().len(),
    });
    bytes.sum()
}

/// How rollouts end whose agent's server misbehaves in these ways.
async fn results(modes: &[&'static str]) -> Vec<(&'static str, RolloutResult)> {
    let home = Home::new();
    let engine = home.engine().await;
    let upstream = Upstream::start(|_, _| says("ok")).unwrap();
    let mut results = Vec::new();
    for mode in modes {
        // These go on until they are stopped.
        let limit_s = match *mode {
            "line" | "drip" => 4.0,
            _ => 60.0,
        };
        let hostile = Task {
            id: (*mode).to_owned(),
            instruction: "attack".to_owned(),
            driver: Some(AgentDriver::Serve),
            files: [("server.py".to_owned(), SERVER.to_owned())].into(),
            agent_timeout_s: Some(limit_s),
            ..task(&["true"])
        };
        let script = format!("exec python3 server.py {mode} {{port}}");
        let plan = home.plan(hostile, &script, upstream.base_url());
        let entry = engine.submit(plan.resolved(), 1).unwrap().remove(0);
        engine.command(&entry, RolloutCommand::Finalize).unwrap();
        let result = Arc::unwrap_or_clone(engine.wait(&entry).await.unwrap());
        let (events, bytes) = (entry.feed.after(0).len(), bytes_below(&home.path()));
        assert!(events < 5000, "{mode}: {events} events");
        assert!(bytes < RECORD_BYTES_MAX, "{mode}: {bytes} bytes on disk");
        results.push((*mode, result));
    }
    engine.close().await;
    results
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_server_says_the_rollout_ends_in_one_result() {
    let modes = [
        "path",
        "long",
        "redirect",
        "values",
        "body",
        "transcript",
        "flood",
        "line",
        "drip",
    ];
    for (mode, result) in results(&modes).await {
        let error = result.error.as_deref().unwrap_or_default();
        let says = match mode {
            "path" | "long" => "not understood",
            "redirect" => "answered 307",
            "values" | "body" | "transcript" => "not understood",
            "flood" => "more than is kept",
            _ => "",
        };
        let shown = format!("{mode}: {:?}: {error}", result.cause);
        assert!(result.cause.is_some(), "{shown}");
        assert!(error.contains(says) && error.len() < 1000, "{shown}");
    }
}
