//! What a task changes of an agent's habits: its tools, its variables, its limits.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::agents::{plan, shared_home};
use crate::support::{open_engine, run_beside};
use rollcage_model::ending::Ended;
use rollcage_model::exchange;
use rollcage_model::record::RolloutResult;
use rollcage_model::script::Step;
use rollcage_model::task::{AgentOptions, Task};

/// A tool that an agent has by itself, and another.
const TOOLS: &[(&str, &str, &str)] = &[
    ("opencode", "bash", "read"),
    ("claude", "Bash", "Read"),
    ("codex", "exec_command", "view_image"),
    ("gemini", "run_shell_command", "read_file"),
    ("qwen", "run_shell_command", "read_file"),
    ("pi", "bash", "read"),
    // There is no other build of it.
    #[cfg(target_arch = "x86_64")]
    ("goose", "shell", "tree"),
];

/// The names of the tools in the first request, as the endpoint saw them.
fn tools_of(result: &RolloutResult) -> BTreeSet<String> {
    let bytes = std::fs::read(Path::new(&result.record).join("exchanges.rec")).unwrap();
    let (exchanges, problems) = exchange::read(&bytes);
    assert!(problems.is_empty(), "{problems:?}");
    let body: serde_json::Value = serde_json::from_slice(exchanges[0].endpoint_body()).unwrap();
    let tools = body["tools"].as_array().expect("a list of tools").iter();
    tools
        .map(|tool| tool["function"]["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_has_only_the_tools_that_a_task_leaves_it() {
    let engine = open_engine(shared_home()).await;
    let mut plans = Vec::new();
    for (name, first, second) in TOOLS {
        let agent = rollcage_agents::find(name).unwrap().0;
        let only = AgentOptions {
            tools: Some(vec![(*first).to_owned(), (*second).to_owned()]),
            ..AgentOptions::default()
        };
        let without = AgentOptions {
            disabled_tools: vec![(*first).to_owned()],
            ..AgentOptions::default()
        };
        for (option, options) in [("tools", only), ("disabled_tools", without)] {
            assert!(agent.has_option(option) || *name == "codex", "{name}");
            if !agent.has_option(option) {
                continue;
            }
            let task = Task {
                id: format!("{name} {option}"),
                instruction: "Say that you see.".to_owned(),
                agent: options,
                // The first request is all there is to see.
                solution: vec![Step {
                    say: Some("I see.".to_owned()),
                    ..Step::default()
                }],
                ..Task::default()
            };
            plans.push(plan(&engine, name, task).await);
        }
    }
    let results = run_beside(&engine, plans.clone(), 3).await;
    engine.close().await;
    assert_eq!(results.len(), plans.len());
    for result in results {
        let id = &result.task_id;
        assert_eq!(
            result.ended,
            Ended::Completed,
            "{id}: {:?} {}",
            result.error,
            result.agent_log_tail
        );
        let (name, option) = id.split_once(' ').unwrap();
        let (_, first, second) = TOOLS.iter().find(|(agent, ..)| *agent == name).unwrap();
        let found = tools_of(&result);
        if option == "tools" {
            let only = [*first, *second].map(str::to_owned);
            assert_eq!(found, BTreeSet::from(only), "{id}");
        } else {
            assert!(!found.contains(*first), "{id}: {found:?}");
            assert!(found.contains(*second), "{id}: {found:?}");
        }
    }
}

/// In a sandbox there is no web and nobody to ask.
#[tokio::test(flavor = "multi_thread")]
async fn opencode_fetches_and_asks_only_where_a_task_wants_it_to() {
    let engine = open_engine(shared_home()).await;
    let by_list = AgentOptions {
        tools: Some(vec!["bash".to_owned(), "webfetch".to_owned()]),
        ..AgentOptions::default()
    };
    let config = serde_json::json!({"permission": {"webfetch": "allow"}});
    let by_config = AgentOptions {
        config: config.as_object().cloned().unwrap(),
        ..AgentOptions::default()
    };
    let mut plans = Vec::new();
    for (id, options) in [
        ("usual", AgentOptions::default()),
        ("by list", by_list),
        ("by config", by_config),
    ] {
        let task = Task {
            id: id.to_owned(),
            instruction: "Say that you see.".to_owned(),
            agent: options,
            solution: vec![Step {
                say: Some("I see.".to_owned()),
                ..Step::default()
            }],
            ..Task::default()
        };
        plans.push(plan(&engine, "opencode", task).await);
    }
    let results = run_beside(&engine, plans, 3).await;
    engine.close().await;
    for result in results {
        let found = tools_of(&result);
        let is_wanted = result.task_id != "usual";
        assert_eq!(found.contains("webfetch"), is_wanted, "{found:?}");
        assert!(!found.contains("question"), "{found:?}");
        assert!(found.contains("bash"), "{found:?}");
    }
}

/// Runs the program with the example of a user's own agent, changed.
fn run(home: &Path, limits: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let example = std::fs::read_to_string(root.join("manifests/shell-loop.toml")).unwrap();
    let bundle = root.join("manifests/shell-loop");
    let example = example.replace(
        "directory = \"shell-loop\"",
        &format!("directory = {bundle:?}"),
    );
    let example = example.replace("idle_s = 300", limits);
    let path = home.join("agent.toml");
    std::fs::write(&path, example).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_rollcage"))
        .args(["run", "examples/fix-the-bug.toml", "--json", "--agent"])
        .arg(&path)
        .args(arguments)
        .current_dir(&root)
        .env("ROLLCAGE_HOME", home)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn limits_of_a_manifest_hold_unless_the_task_or_a_flag_sets_them() {
    let home = tempfile::tempdir().unwrap();
    let limits = "calls = 1\nagent_timeout_s = 50\nmemory_mb = 300\n";
    let (code, stdout, stderr) = run(home.path(), limits, &[]);
    assert_eq!(code, Some(0), "it was graded: {stderr}");
    let result: RolloutResult = serde_json::from_str(&stdout).unwrap();
    assert_eq!(result.ended, Ended::Budget, "{:?}", result.error);
    assert_eq!(result.budget.stopped_by.as_deref(), Some("calls"));
    assert_eq!(result.budget.agent_timeout_s, 50.0);
    let record = Path::new(&result.record).join("task.json");
    let task: Task = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    assert_eq!(task.limits.memory_mb, Some(300));

    let flags = ["--max-calls", "9", "--timeout", "70"];
    let (code, stdout, stderr) = run(home.path(), limits, &flags);
    assert_eq!(code, Some(0), "{stderr}");
    let result: RolloutResult = serde_json::from_str(&stdout).unwrap();
    assert_eq!((result.ended, result.reward), (Ended::Completed, Some(1.0)));
    assert_eq!(result.budget.agent_timeout_s, 70.0);
}

#[test]
fn variables_and_configuration_reach_a_users_own_agent_and_nobody_else() {
    let home = tempfile::tempdir().unwrap();
    let task = home.path().join("task.toml");
    // The agent's program reads both: its tool inherits the variable, and the file is where the manifest says.
    let text = "instruction = 'x'\n\
        verify = ['grep -qx \"one two\" a.txt', 'test -z \"$ROLLCAGE_TEST_A\"', \
                  'grep -q colour ~/.config/shell-loop.json', 'grep -q max_tokens ~/.config/shell-loop.json']\n\
        [[solution]]\nrun = 'echo \"$ROLLCAGE_TEST_A\" > a.txt'\n";
    std::fs::write(&task, text).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rollcage = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_rollcage"))
            .args(["run", task.to_str().unwrap(), "--json", "--agent"])
            .arg("manifests/shell-loop.toml")
            .args(arguments)
            .current_dir(&root)
            .env("ROLLCAGE_HOME", home.path())
            .output()
            .unwrap()
    };
    let output = rollcage(&[
        "--agent-env",
        "ROLLCAGE_TEST_A=one two",
        "--agent-config",
        r#"{"colour": "{key}"}"#,
    ]);
    let result: RolloutResult = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (result.ended, result.reward),
        (Ended::Completed, Some(1.0)),
        "{:#?}",
        result.verify_results
    );

    let refused = |arguments: &[&str], expect: &str| {
        let output = rollcage(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(expect), "{stderr}");
    };
    refused(&["--agent-env", "OPENAI_API_KEY=x"], "`OPENAI_API_KEY`");
    refused(&["--agent-env", "secret"], "--agent-env wants NAME=VALUE");
    refused(&["--agent-config", r#"{"model": "x"}"#], "the key `model`");
    refused(
        &["--agent-config", "{1}"],
        "--agent-config wants a JSON object",
    );
    refused(&["--tools", "a"], "these have: opencode, claude, gemini");
    refused(&["--tools", "a", "--disable-tools", "b"], "not both");
}
