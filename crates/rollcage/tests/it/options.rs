//! What a task changes of an agent's habits: its tools, its variables, its limits.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::agents::{plan, shared_home};
use crate::served;
use crate::support::{Plan, endpoint, open_engine, run_beside, says, streams};
use rollcage_dialect::EndpointDialect;
use rollcage_engine::Engine;
use rollcage_model::ending::Ended;
use rollcage_model::exchange;
use rollcage_model::record::RolloutResult;
use rollcage_model::script::Step;
use rollcage_model::task::{AgentDriver, AgentOptions, Task};
use rollcage_proxy::endpoint::Endpoint;
use rollcage_testkit::anthropic;
use rollcage_testkit::upstream::{StreamEnd, Upstream};

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

/// Where an agent's effort is in the request that an endpoint of each dialect gets.
const EFFORT: [(EndpointDialect, &str); 2] = [
    (EndpointDialect::Chat, "/reasoning_effort"),
    (EndpointDialect::Anthropic, "/output_config/effort"),
];

/// What each agent's own word for it is; `None` for an agent that has no way to say it.
const LEVELS: [(&str, Option<&str>); 11] = [
    ("opencode", Some("max")),
    ("claude", Some("max")),
    ("codex", Some("xhigh")),
    ("gemini", Some("low")),
    ("qwen", Some("high")),
    ("mini-swe-agent", Some("high")),
    ("pi", Some("xhigh")),
    ("goose", None),
    ("aider", Some("high")),
    ("nop", None),
    ("oracle", None),
];

/// One rollout of an agent that is only asked once, by an upstream that answers nothing but a word.
async fn effort_plan(
    engine: &Engine,
    name: &str,
    (upstream, dialect): (&Upstream, EndpointDialect),
    (effort, driver): (Option<&str>, AgentDriver),
) -> Arc<Plan> {
    let task = Task {
        id: format!("{name} {dialect:?} {effort:?} {driver:?}"),
        instruction: "Say that you see.".to_owned(),
        driver: Some(driver),
        agent: AgentOptions {
            effort: effort.map(str::to_owned),
            ..AgentOptions::default()
        },
        solution: vec![Step {
            say: Some("I see.".to_owned()),
            ..Step::default()
        }],
        ..Task::default()
    };
    let known = Arc::into_inner(plan(engine, name, task).await).unwrap();
    Arc::new(Plan {
        endpoint: Endpoint {
            dialect,
            ..endpoint(upstream.base_url())
        },
        ..known
    })
}

/// What the endpoint got as effort.
fn effort_of(result: &RolloutResult, place: &str) -> Option<String> {
    let bytes = std::fs::read(Path::new(&result.record).join("exchanges.rec")).unwrap();
    let (exchanges, problems) = exchange::read(&bytes);
    assert!(problems.is_empty(), "{problems:?}");
    let first = exchanges.first().unwrap_or_else(|| {
        panic!(
            "{} asked nothing: {:?} {}",
            result.task_id, result.error, result.agent_log_tail
        )
    });
    let body: serde_json::Value = serde_json::from_slice(first.endpoint_body()).unwrap();
    body.pointer(place)
        .map(|effort| effort.as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_agents_effort_is_in_the_request_that_the_endpoint_gets() {
    let names: Vec<_> = rollcage_agents::all();
    let mut names: Vec<_> = names.iter().map(|agent| agent.name()).collect();
    let mut listed = LEVELS.map(|(name, _)| name);
    names.sort_unstable();
    listed.sort_unstable();
    assert_eq!(names, listed, "the table has all agents");

    let engine = open_engine(shared_home()).await;
    let chat = Upstream::start(|_, asked| match asked.body.contains("\"stream\":true") {
        true => streams(true, StreamEnd::Clean),
        false => says("I see."),
    })
    .unwrap();
    let messages = Upstream::start(|_, asked| anthropic::says(asked, "I see.")).unwrap();
    let mut runs = Vec::new();
    for (name, level) in LEVELS {
        let Some(level) = level else {
            let task = Task::from_toml("instruction = 'x'\n[agent]\neffort = 'high'").unwrap();
            let agent = rollcage_agents::find(name).unwrap().0;
            let refused = rollcage_agents::check_options(&*agent, &task).unwrap_err();
            let start = format!("{name} has no way to set `effort`; these have: opencode,");
            assert!(refused.to_string().starts_with(&start), "{refused}");
            continue;
        };
        for (dialect, place) in EFFORT {
            let upstream = match dialect {
                EndpointDialect::Chat => &chat,
                EndpointDialect::Anthropic => &messages,
            };
            let to = (upstream, dialect);
            let mut wanted = vec![(Some(level), AgentDriver::Cli)];
            // These have a default of their own, which nobody asked for.
            let has_default = ["claude", "gemini", "pi"].contains(&name);
            if has_default && dialect == EndpointDialect::Chat {
                wanted.push((None, AgentDriver::Cli));
            }
            for (effort, driver) in wanted {
                let plan = effort_plan(&engine, name, to, (effort, driver)).await;
                runs.push((plan, place, effort));
            }
        }
    }
    let plans = runs.iter().map(|(plan, ..)| Arc::clone(plan)).collect();
    let mut results = run_beside(&engine, plans, 3).await;
    // A server is told with each message.
    let to = (&chat, EndpointDialect::Chat);
    let plan = effort_plan(&engine, "opencode", to, (Some("max"), AgentDriver::Serve)).await;
    let entry = served::start(&engine, &plan);
    results.push(served::finalized(&engine, &entry).await);
    runs.push((plan, EFFORT[0].1, Some("max")));
    engine.close().await;
    for (plan, place, effort) in runs {
        let id = &plan.task.id;
        let result = results.iter().find(|result| result.task_id == *id).unwrap();
        assert_eq!(effort_of(result, place).as_deref(), effort, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_cap_an_agent_asks_for_what_it_asks_by_itself() {
    let engine = open_engine(shared_home()).await;
    let chat = Upstream::start(|_, _| streams(true, StreamEnd::Clean)).unwrap();
    let to = (&chat, EndpointDialect::Chat);
    let mut asked = Vec::new();
    for tokens_max in [None, Some(4096)] {
        for name in ["opencode", "claude", "codex"] {
            let plan = effort_plan(&engine, name, to, (None, AgentDriver::Cli)).await;
            let mut plan = Arc::into_inner(plan).unwrap();
            plan.settings.tokens_max = tokens_max;
            run_beside(&engine, vec![Arc::new(plan)], 1).await;
            let body = chat.requests().pop().unwrap().body;
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            asked.push(body.get("max_tokens").and_then(serde_json::Value::as_u64));
        }
    }
    engine.close().await;
    // Codex names no limit.
    let expected = [
        Some(32_000),
        Some(32_000),
        None,
        Some(4096),
        Some(4096),
        Some(4096),
    ];
    assert_eq!(asked, expected);
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
