//! Every main agent, the real one, fetched by our own installer, against the scripted endpoint: it solves a task of
//! several turns, and every token of its trace is the endpoint's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::support::Plan;
use crate::support::{open_engine, run_beside, run_many, run_one, traced};
use rollcage_endpoints::choice::EndpointChoice;
use rollcage_engine::Engine;
use rollcage_engine::intake::ResolvedRollout;
use rollcage_model::ending::Ended;
use rollcage_model::finding::{CaptureLevel, RolloutType};
use rollcage_model::record::RolloutResult;
use rollcage_model::script::Step;
use rollcage_model::task::{AgentOptions, OptionValue, Task};
use rollcage_proxy::ModelSettings;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_scripted::Log;
use tokio_util::sync::CancellationToken;

/// Kept between tests and runs, so that every agent is fetched once.
pub(crate) fn shared_home() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("agents-home")
}

pub(crate) async fn plan(engine: &Engine, agent: &str, task: Task) -> Arc<Plan> {
    let (agent, version) = rollcage_agents::find(agent).unwrap();
    let ready = engine.ready(&*agent, version, &|_| {}).await.unwrap();
    let mut scripted = ResolvedRollout {
        endpoint: EndpointChoice::Scripted,
        ..ResolvedRollout::new(
            task.clone(),
            Arc::clone(&agent),
            ready.clone(),
            Endpoint::none(),
        )
    };
    let endpoint = engine.settle(&mut scripted, &|_| ()).await.unwrap();
    let settings = ModelSettings::default();
    Arc::new(Plan {
        task,
        uploads: BTreeMap::new(),
        agent,
        ready,
        endpoint,
        settings,
        mcp: Default::default(),
    })
}

/// Compares the trace with what the endpoint sent, token by token.
pub(crate) fn check_tokens(result: &RolloutResult, log: &Log, key: &str, steps: usize) {
    let sent: Vec<_> = log
        .served()
        .into_iter()
        .filter(|served| served.key == key)
        .collect();
    assert_eq!(
        (result.rollout_type, result.capture_level),
        (RolloutType::Train, CaptureLevel::Tokens)
    );
    let traced = traced(result);
    let trace = traced.training_trace.as_ref().unwrap();
    assert_eq!(
        trace.turns.len(),
        steps,
        "one turn for each step of the solution, and no side request"
    );
    assert_eq!(traced.proxy_turns.len(), sent.len());
    let mut before: Vec<u32> = Vec::new();
    for turn in &trace.turns {
        let served = sent
            .iter()
            .find(|served| served.prompt_ids == turn.prompt_token_ids)
            .expect("a prompt as sent");
        assert_eq!(turn.completion_token_ids, served.sampled_ids);
        assert_eq!(turn.per_token_logps, served.logprobs);
        let mut mask = vec![0; served.prompt_ids.len()];
        mask.resize(served.prompt_ids.len() + served.sampled_ids.len(), 1);
        assert_eq!(turn.loss_mask, mask);
        assert!(
            turn.prompt_token_ids.starts_with(&before),
            "{} goes on from the turn before",
            turn.node_id
        );
        before = [
            turn.prompt_token_ids.clone(),
            turn.completion_token_ids.clone(),
        ]
        .concat();
    }
    let trainable: usize = trace
        .turns
        .iter()
        .map(|turn| turn.completion_token_ids.len())
        .sum();
    assert_eq!(result.usage.trainable_tokens, trainable as u64);
}

/// A file with quotes and a backslash in it, two commands, and a last word. The instruction holds what a shell, a
/// template or a configuration file could trip over.
fn task(agent: &str) -> Task {
    let content = "import sys\nprint('a\\tb', \"é\", len(sys.argv))\n";
    Task {
        id: agent.to_owned(),
        instruction: "Write a.py, run it, keep its output.\n\"quotes\" $HOME `x` {model} \\n é"
            .to_owned(),
        verify: vec![
            "test \"$(cat out.txt)\" = \"$(printf 'a\\tb é 1')\"".to_owned(),
            format!(
                "test \"$(sha256sum < a.py)\" = \"$(printf %s {} | base64 -d | sha256sum)\"",
                base64(content)
            ),
        ],
        solution: vec![
            Step {
                write: Some("a.py".to_owned()),
                content: Some(content.to_owned()),
                ..Step::default()
            },
            Step::shell("python3 a.py > out.txt; cat out.txt"),
            Step::shell("ls | sort"),
            Step {
                say: Some("It printed what it should.".to_owned()),
                ..Step::default()
            },
        ],
        ..Task::default()
    }
}

fn base64(text: &str) -> String {
    let mut child = Command::new("base64")
        .arg("-w0")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, text.as_bytes()).unwrap();
    drop(stdin);
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

async fn solves(agent: &str) {
    let engine = open_engine(shared_home()).await;
    let log = Log::new(1000);
    engine.log_scripted(Arc::clone(&log));
    let plan = plan(&engine, agent, task(agent)).await;
    let plans = vec![Arc::clone(&plan)];
    let results = run_many(&engine, plans, &CancellationToken::new()).await;
    engine.close().await;
    let result = &results[0];
    assert_eq!(
        (result.ended, result.reward),
        (Ended::Completed, Some(1.0)),
        "{agent}: {:?} {:#?}\n{}",
        result.error,
        result.verify_results,
        result.agent_log_tail
    );
    let key = plan.endpoint.key.as_ref().unwrap().expose();
    check_tokens(result, &log, key, plan.task.solution.len());
    let report = &result.agent_report;
    assert_eq!(
        report.last_message.as_deref(),
        Some("It printed what it should.")
    );
    assert!(report.tool_calls >= 3, "{report:?}");
    assert_eq!(result.agent.version, plan.agent.source().default_version);
    assert!(
        !result.agent.components.is_empty(),
        "the record states versions"
    );
    // What the agent was told is what the task says, byte for byte.
    let asked = traced(result).proxy_turns[0].request["messages"].to_string();
    let instruction = serde_json::Value::from(plan.task.instruction.as_str()).to_string();
    let instruction = &instruction[1..instruction.len() - 1];
    assert!(asked.contains(instruction), "{agent}: {asked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_solves_a_task() {
    solves("opencode").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_code_solves_a_task() {
    solves("claude").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn codex_solves_a_task() {
    solves("codex").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gemini_cli_solves_a_task() {
    solves("gemini").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn qwen_code_solves_a_task() {
    solves("qwen").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mini_swe_agent_solves_a_task() {
    solves("mini-swe-agent").await;
}

/// What makes an agent say a word to the model, in its own configuration file. With Gemini CLI and Qwen Code only the
/// list of tools does, of which there are tests.
fn config(agent: &str) -> serde_json::Map<String, serde_json::Value> {
    let config = match agent {
        "opencode" => serde_json::json!({"instructions": ["/home/user/note.md"]}),
        "claude" => serde_json::json!({"language": "Elbonian"}),
        "codex" => serde_json::json!({"developer_instructions": "Speak Elbonian."}),
        "mini-swe-agent" => {
            serde_json::json!({"agent": {"instance_template": "Elbonian: {{task}}"}})
        }
        _ => serde_json::json!({}),
    };
    config.as_object().cloned().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_task_sets_for_its_agent_reaches_the_model() {
    let engine = open_engine(shared_home()).await;
    let mut plans = Vec::new();
    for name in [
        "opencode",
        "claude",
        "codex",
        "gemini",
        "qwen",
        "mini-swe-agent",
    ] {
        let agent = rollcage_agents::find(name).unwrap().0;
        let text = |option: &str, text: &str| agent.has_option(option).then(|| text.to_owned());
        let options = AgentOptions {
            system_prompt: text("system_prompt", "You are \"Zwölf\".\nBe brief."),
            instructions: text("instructions", "Never use the letter \"q\"."),
            config: config(name),
            ..AgentOptions::default()
        };
        let task = Task {
            agent: options,
            // The first request is all there is to see.
            solution: vec![Step {
                say: Some("I see.".to_owned()),
                ..Step::default()
            }],
            verify: Vec::new(),
            files: BTreeMap::from([("/home/user/note.md".to_owned(), "Elbonian".to_owned())]),
            ..task(name)
        };
        plans.push(plan(&engine, name, task).await);
    }
    let results = run_beside(&engine, plans.clone(), 3).await;
    engine.close().await;
    for plan in plans {
        let name = plan.agent.name();
        let result = results
            .iter()
            .find(|result| result.task_id == name)
            .unwrap();
        assert_eq!(result.ended, Ended::Completed, "{name}: {:?}", result.error);
        let asked = traced(result).proxy_turns[0].request["messages"].to_string();
        for (option, value) in plan.task.agent.set() {
            let OptionValue::Text(value) = value else {
                panic!("a list");
            };
            let value = serde_json::Value::from(value).to_string();
            let is_there = asked.contains(&value[1..value.len() - 1]);
            assert!(is_there, "{name}: {option} is missing in {asked}");
        }
        if !plan.task.agent.config.is_empty() {
            assert!(
                asked.contains("Elbonian"),
                "{name}: its configuration is not read: {asked}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oracle_solves_a_task_and_the_nop_does_not() {
    let engine = open_engine(shared_home()).await;
    let cancel = CancellationToken::new();
    let mut rewards = Vec::new();
    for agent in ["oracle", "nop"] {
        let plan = plan(&engine, agent, task(agent)).await;
        let result = run_one(&engine, Arc::into_inner(plan).unwrap(), &cancel).await;
        assert_eq!(
            result.ended,
            Ended::Completed,
            "{agent}: {:?}",
            result.error
        );
        assert!(traced(&result).proxy_turns.is_empty());
        rewards.push(result.reward);
    }
    engine.close().await;
    assert_eq!(rewards, [Some(1.0), Some(0.0)]);
}

/// The documented example of a user's own agent, by path and by name.
#[test]
fn an_agent_of_the_users_own_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let example = root.join("manifests/shell-loop.toml");
    let home = tempfile::tempdir().unwrap();
    let rollcage = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_rollcage"))
            .args(arguments)
            .current_dir(&root)
            .env("ROLLCAGE_HOME", home.path())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{stderr}");
        String::from_utf8(output.stdout).unwrap()
    };
    let check = |text: &str| {
        let result: RolloutResult = serde_json::from_str(text.trim()).unwrap();
        assert_eq!((result.ended, result.reward), (Ended::Completed, Some(1.0)));
        let trace = traced(&result).training_trace.unwrap();
        assert_eq!(trace.turns.len(), 4, "every turn is trainable");
        assert_eq!(result.agent.name, "shell-loop");
    };
    let task = "examples/fix-the-bug.toml";
    check(&rollcage(&[
        "run",
        task,
        "--json",
        "--agent",
        example.to_str().unwrap(),
    ]));

    let folder = home.path().join("agents");
    std::fs::create_dir(&folder).unwrap();
    let text = std::fs::read_to_string(&example).unwrap();
    let bundle = root.join("manifests/shell-loop");
    let text = text.replace("\"shell-loop\"\n\n[env]", &format!("{bundle:?}\n\n[env]"));
    std::fs::write(folder.join("own.toml"), text).unwrap();
    assert!(rollcage(&["agent", "list"]).starts_with("shell-loop  (a shell tool in a loop)"));
    let run = rollcage(&["run", task, "--json", "--agent", "shell-loop"]);
    check(&run);

    let result: RolloutResult = serde_json::from_str(run.trim()).unwrap();
    let id = result.rollout_id.to_string();
    let last = result.agent_report.last_message.unwrap();
    let shown = rollcage(&["show", &id, "--transcript"]);
    assert!(shown.contains("\nassistant\n"), "{shown}");
    assert!(shown.contains("\nend    "), "{shown}");
    let json = rollcage(&["show", &id, "--transcript", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["rollout_id"], id);
    assert_eq!(json["agent_transcript"]["entries"][0]["text"], last);
    let plain = rollcage(&["show", &id, "--json"]);
    assert!(!plain.contains("agent_transcript"));
}

#[test]
fn the_doctor_tells_an_agent_that_behaves_from_one_that_does_not() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let example = root.join("manifests/shell-loop.toml");
    let home = tempfile::tempdir().unwrap();
    let doctor = |manifest: &Path| {
        let output = Command::new(env!("CARGO_BIN_EXE_rollcage"))
            .args(["agent", "doctor", "--json"])
            .arg(manifest)
            .env("ROLLCAGE_HOME", home.path())
            .output()
            .unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        let lines = stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        let lines: Vec<serde_json::Value> = lines.collect();
        (output.status.code(), lines)
    };
    let (code, lines) = doctor(&example);
    assert_eq!(code, Some(0), "{lines:?}");
    let modes: Vec<_> = lines.iter().map(|line| &line["mode"]).collect();
    assert_eq!(modes, ["live", "replayed", "logprobs", "text", "long"]);
    let levels: Vec<_> = lines.iter().map(|line| &line["level"]).collect();
    assert_eq!(levels, ["tokens", "tokens", "logprobs", "text", "tokens"]);
    let rates: Vec<_> = lines
        .iter()
        .map(|line| line["exact_prefix_rate"].as_f64())
        .collect();
    assert_eq!(rates, [Some(1.0), Some(1.0), None, None, Some(1.0)]);
    let long = &lines[4]["drill"];
    assert!(long["replies"].as_u64() >= Some(12), "{long}");
    assert_eq!(long["trained"], long["replies"], "{long}");
    assert_eq!(
        long["changed"],
        serde_json::json!([]),
        "it sends back what it got"
    );
    for line in &lines[..4] {
        assert_eq!(
            (&line["calls"], &line["side_calls"]),
            (&2.into(), &0.into())
        );
        assert!(line["first_call_s"].as_f64() > Some(0.0), "{line}");
        assert!(line["wall_s"].as_f64() > line["first_call_s"].as_f64());
    }

    let text = std::fs::read_to_string(&example).unwrap();
    let bundle = root.join("manifests/shell-loop");
    let text = text.replace(
        "\"shell-loop\"\n\n[env]",
        &format!("{bundle:?}\n\n[expect]\ncalls = 5\n\n[env]"),
    );
    let wrong = home.path().join("wrong.toml");
    std::fs::write(&wrong, text).unwrap();
    let (code, lines) = doctor(&wrong);
    assert_eq!(code, Some(1), "{lines:?}");
    assert_eq!(lines[0]["problems"][0], "2 turns of its own instead of 5");

    // It works as before, but what it prints is no longer what its manifest says.
    let text = std::fs::read_to_string(&example).unwrap();
    let text = text.replace("\"shell-loop\"\n\n[env]", &format!("{bundle:?}\n\n[env]"));
    let text = text.replace("format = \"text\"", "format = \"opencode\"");
    std::fs::write(&wrong, text).unwrap();
    let (code, lines) = doctor(&wrong);
    assert_eq!(code, Some(1), "{lines:?}");
    assert_eq!(
        lines[0]["problems"],
        serde_json::json!(["its events tell of 0 tool calls and no last word"])
    );
}

/// The bare agent finds its files, its key and its endpoint on the host as it does in a sandbox.
#[test]
fn a_rollout_is_measured_against_the_bare_agent() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let home = tempfile::tempdir().unwrap();
    let bench = |agent: &Path| {
        Command::new(env!("CARGO_BIN_EXE_rollcage"))
            .args(["bench", "rollout", "--rounds", "1", "--json", "--agent"])
            .arg(agent)
            .env("ROLLCAGE_HOME", home.path())
            .output()
            .unwrap()
    };
    let output = bench(&root.join("manifests/shell-loop.toml"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let measured: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&measured["agent"], &measured["dialect"]),
        (&"shell-loop".into(), &"chat".into())
    );
    let number = |pointer: &str| measured.pointer(pointer).unwrap().as_f64().unwrap();
    let ratio = number("/rollout/first_call_s") / number("/bare/first_call_s");
    assert_eq!(number("/first_call_ratio"), ratio);
    assert!(number("/bare/whole_s") > number("/bare/first_call_s"));
    let kept = std::fs::read_dir(home.path().join("rollouts")).unwrap();
    assert_eq!(kept.count(), 0, "a measurement keeps no records");

    let output = bench(Path::new("nop"));
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("asks no model"));
}
