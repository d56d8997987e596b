//! The real OpenCode, fetched from the npm registry by our own installer, against the scripted endpoint.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use crate::agents::{check_tokens, plan, shared_home};
use crate::support::{open_engine, run_many, traced};
use rollcage_engine::Engine;
use rollcage_model::ending::Ended;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::Task;
use rollcage_scripted::Log;
use tokio_util::sync::CancellationToken;

fn examples() -> Vec<Task> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut paths: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    paths.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "toml")
    });
    // It needs the machine's mirrors, which the program itself reads: `packages` runs it.
    paths.retain(|path| path.file_stem().is_some_and(|name| name != "csv-report"));
    paths.sort();
    let read = |path: &PathBuf| {
        let task = Task::from_toml(&std::fs::read_to_string(path).unwrap()).unwrap();
        Task {
            id: path.file_stem().unwrap().to_string_lossy().into_owned(),
            ..task
        }
    };
    paths.iter().map(read).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_is_solved_and_every_token_is_the_endpoints() {
    let engine = open_engine(shared_home()).await;
    let log = Log::new(1000);
    engine.log_scripted(Arc::clone(&log));
    let mut plans = Vec::new();
    for task in examples() {
        plans.push(plan(&engine, "opencode", task).await);
    }
    assert!(plans.len() >= 3);
    let results = run_many(&engine, plans.clone(), &CancellationToken::new()).await;
    engine.close().await;
    assert_eq!(results.len(), plans.len());
    for result in &results {
        assert_eq!(
            (result.ended, result.reward),
            (Ended::Completed, Some(1.0)),
            "{}: {:?}",
            result.task_id,
            result.error
        );
        let plan = plans
            .iter()
            .find(|plan| plan.task.id == result.task_id)
            .unwrap();
        let key = plan.endpoint.key.as_ref().unwrap().expose();
        check_tokens(result, &log, key, plan.task.solution.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_looks_up_no_outside_host_and_leaves_no_trace_of_our_host() {
    let engine = open_engine(shared_home()).await;
    let task = Task {
        id: "inside".to_owned(),
        instruction: "look around".to_owned(),
        // OpenCode's own log is searched after its end: it is whole then, and holds no search for these words.
        verify: vec![
            "test \"$(cat seen)\" = 'user /home/user /home/user/workdir'".to_owned(),
            "test -s ~/.local/share/opencode/log/opencode.log".to_owned(),
            "! grep -rE 'npmjs|opencode[.]ai|models[.]dev|ENOTFOUND|EAI_AGAIN|ENETUNREACH|ConnectionRefused' \
             ~/.local/share/opencode/log"
                .to_owned(),
        ],
        solution: vec![rollcage_model::script::Step::shell(
            "echo \"$(id -un) $HOME $PWD\" > seen",
        )],
        ..Task::default()
    };
    let plan = plan(&engine, "opencode", task).await;
    let results = run_many(&engine, vec![plan], &CancellationToken::new()).await;
    engine.close().await;
    let result = &results[0];
    assert_eq!(
        (result.ended, result.reward),
        (Ended::Completed, Some(1.0)),
        "{:?} {:#?}",
        result.error,
        result.verify_results
    );
}

/// A rollout whose agent sleeps in a tool after its first call, started as a user would.
fn start_sleeping(seconds: &str) -> (Child, BufReader<std::process::ChildStderr>) {
    let command = format!("touch begun; sleep {seconds}");
    let mut child = Command::new(env!("CARGO_BIN_EXE_rollcage"))
        .args([
            "run",
            "--json",
            "--instruction",
            "sleep",
            "--verify",
            "true",
        ])
        .args(["--solution", &command, "--task-id", seconds])
        .env("ROLLCAGE_HOME", shared_home())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("call 1 answered") {
        line.clear();
        assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "it ended early");
    }
    (child, stderr)
}

fn is_running(argument: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .any(|cmdline| {
            let mut arguments = cmdline.split(|byte| *byte == 0);
            arguments.any(|one| one == argument.as_bytes())
        })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_engine_leaves_no_process_and_its_rollout_gets_a_result() {
    drop(open_and_install().await);
    let (mut child, _stderr) = start_sleeping("86411");
    child.kill().unwrap();
    child.wait().unwrap();
    // The kernel ends the sandbox with its control socket; the next engine closes the record.
    for _ in 0..500 {
        if !is_running("86411") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(!is_running("86411"));
    let engine = open_engine(shared_home()).await;
    let store = engine.store().clone();
    engine.close().await;
    let summaries = store.list(usize::MAX).unwrap();
    let summary = summaries
        .iter()
        .find(|summary| summary.row.task_id == "86411")
        .unwrap();
    let result = store.result(summary.row.rollout_id).unwrap();
    assert_eq!(result.ended, Ended::EngineFailed);
    assert_eq!(result.agent.name, "opencode");
    assert!(!result.endpoint.model.is_empty() && !result.agent.version.is_empty());
    assert!(
        !traced(&result).proxy_turns.is_empty(),
        "what was answered until then is kept"
    );
    std::fs::remove_dir_all(store.directory(summary.row.rollout_id)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_ends_the_rollout_with_a_result() {
    drop(open_and_install().await);
    let (mut child, _stderr) = start_sleeping("86422");
    let pid = child.id().to_string();
    assert!(
        Command::new("/bin/kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    let mut stdout = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut stdout)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let result: RolloutResult = serde_json::from_str(stdout.trim()).unwrap();
    assert_eq!(result.ended, Ended::Cancelled);
    assert!(!is_running("86422"));
}

/// So that no test waits for another's download while it counts on time.
async fn open_and_install() -> Engine {
    let engine = open_engine(shared_home()).await;
    let (agent, version) = rollcage_agents::find("opencode").unwrap();
    engine.ready(&*agent, version, &|_| {}).await.unwrap();
    engine
}
