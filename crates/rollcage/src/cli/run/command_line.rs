//! Tests that "copy as command line" gives a command that does what the request does: a real shell splits it, and the
//! real parser reads it.

use std::process::Command;

use clap::{Args, FromArgMatches};
use serde_json::{Value, json};

use super::*;
use crate::server::listen::BODY_LIMIT;
use crate::server::rollouts::command_line::{self, ShellCommand};
use crate::server::rollouts::context::RequestContext;
use crate::server::rollouts::request::{self, RolloutArguments};
use crate::server::tasks::Tasks;

fn read(asked: &Value) -> RolloutArguments {
    let context = RequestContext {
        tasks: Arc::new(Tasks::default()),
        catalogue: Arc::new(Catalogue::built_in()),
        body_limit: BODY_LIMIT,
    };
    let asked = asked.as_object().cloned().unwrap();
    match request::read("run_rollout", asked, &context) {
        Ok(read) => read,
        Err(wrong) => panic!("{wrong}"),
    }
}

/// The request that the command makes, when it is run in a directory of its own.
fn run_in_shell(command: &ShellCommand) -> (RolloutRequest, u16) {
    let directory = tempfile::tempdir().unwrap();
    // Stands for the program, and shows its arguments.
    let script = format!("rollcage() {{ printf '%s\\0' \"$@\"; }}\n{}", command.text);
    let ran = Command::new("bash")
        .args(["-euc", &script])
        .env("LC_ALL", "C.UTF-8")
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let words = String::from_utf8(ran.stdout).unwrap();
    let mut words: Vec<_> = words.split_terminator('\0').map(str::to_owned).collect();
    if let Some(file) = words.get_mut(1).filter(|word| word.ends_with(".json")) {
        *file = directory.path().join(&*file).display().to_string();
    }
    let parser = Arguments::augment_args(clap::Command::new("run"));
    let matches = parser.try_get_matches_from(words).unwrap();
    let arguments = Arguments::from_arg_matches(&matches).unwrap();
    let request = arguments.request(&mut Catalogue::built_in()).unwrap();
    (request, arguments.n)
}

#[track_caller]
fn check(asked: &Value) -> ShellCommand {
    let asked = read(asked);
    let command = command_line::of(&asked);
    let (typed, count) = run_in_shell(&command);
    assert_eq!(usize::from(count), asked.count);
    let wanted = asked.request;
    assert_eq!(typed.task, wanted.task, "{}", command.text);
    assert_eq!(
        (&typed.agent, &typed.group, &typed.labels),
        (&wanted.agent, &wanted.group, &wanted.labels)
    );
    // The command line always says how long it waits for an endpoint.
    let options = ModelOptions {
        upstream_patience_s: None,
        ..typed.options
    };
    assert_eq!(options, wanted.options);
    let shown = |endpoint: &EndpointOptions| {
        let key = endpoint.key.is_some();
        let EndpointOptions {
            kind,
            base_url,
            model,
            is_thinking_disabled,
            dialect,
            ..
        } = endpoint.clone();
        (kind, base_url, model, is_thinking_disabled, dialect, key)
    };
    assert_eq!(shown(&typed.endpoint), shown(&wanted.endpoint));
    command
}

#[test]
fn a_small_task_is_one_line() {
    let command = check(&json!({
        "task_id": "t", "instruction": "Write ok to a.txt", "verify": ["grep -qx ok a.txt"], "solution": ["echo ok > a.txt"],
    }));
    assert_eq!(command.notes, [""; 0]);
    assert!(
        command
            .text
            .starts_with("rollcage run \\\n  --instruction 'Write ok to a.txt' \\\n")
    );
}

#[test]
fn flags_say_what_a_form_has() {
    let mut form = json!({
        "task_id": "t", "instruction": "- it's\n\"quoted\" $HOME\u{1b}[31m", "setup": ["a", "-b"], "verify": ["c 'd'"],
        "files": {"/tmp/x": "X\nY\n"}, "env": {"A": "1 2"}, "artifacts": ["out/**"], "patch": true,
        "agent": "claude", "driver": "cli", "n": 8, "group": "g 1", "labels": {"step": "12"},
        "base_url": "https://models.example/v1", "model": "m", "api_key": "sk-very-secret", "dialect": "anthropic",
        "disable_thinking": true, "max_tokens_cap": -1, "top_logprobs": 0, "temperature": 0.7, "sampling": "auto",
        "constrained": "keep", "mode": "black_box", "agent_timeout_s": 5.5, "command_timeout_s": 7,
        "limits": {"memory_mb": 512, "cpus": 0.5}, "budget": {"calls": 3, "usd": 0.25, "idle_s": 1.5},
        "network": {"setup": "none", "agent": ["pypi.org", "@git"], "verify": "open", "allow_hosts": ["*.example.org:8443"]},
        "timezone": "Europe/Berlin", "locale": "de_DE.UTF-8", "setup_user": "root",
        "agent_options": {"effort": "low", "disabled_tools": ["a", "b"]},
    });
    let graded = json!({
        "reward": "file", "reward_range": [-0.5, 1], "tests": {"passed": 5, "report": "r.xml"}, "git_strip": true,
        "verify_trust": ["git", "hooks"],
    });
    form.as_object_mut()
        .unwrap()
        .extend(graded.as_object().unwrap().clone());
    let command = check(&form);
    assert!(!command.text.contains("cat >"), "{}", command.text);
    assert!(!command.text.contains("very-secret"));
    assert!(command.text.contains("--api-key-env API_KEY"));
    assert!(command.notes[0].contains("API_KEY"), "{:?}", command.notes);
}

#[test]
fn a_task_that_flags_cannot_say_becomes_a_file() {
    let solution = json!([{"write": "a", "content": "END_OF_TASK\n"}, {"say": "Done."}]);
    for more in [
        json!({ "solution": solution }),
        json!({"services": [{"run": "serve", "ready": "curl x"}], "endpoint": "vllm", "model": "m"}),
        json!({"files": {"a=b": "c"}, "agent": "nop"}),
        json!({"files": {"a": "@c"}, "agent": "nop"}),
        json!({"test_script": "@true", "agent": "nop"}),
        json!({"tests": {"passed": ["5"]}, "agent": "nop"}),
        json!({"mcp": {"weather": {"command": ["python3", "w.py"]}}, "agent": "nop"}),
        json!({"agent_options": {"config": {"a": 1}, "instructions": "x"}, "endpoint": "openai", "model": "m"}),
        json!({"network": {"allow_hosts": ["a.example"]}, "agent": "nop"}),
    ] {
        let mut asked = json!({"task_id": "t-1", "instruction": "END_OF_TASK\ngo", "n": 2});
        let members = more.as_object().unwrap().clone();
        asked.as_object_mut().unwrap().extend(members);
        let command = check(&asked);
        assert!(command.text.starts_with("cat > t-1.json <<"), "{more}");
        assert!(command.notes[0].contains("t-1.json"), "{more}");
    }
}

#[test]
fn what_is_left_out_is_said() {
    let asked = json!({
        "task_id": "../x", "instruction": "go", "agent": "nop", "files": {"b.bin": {"base64": "AP8="}},
        "mcp": {"docs": {"url": "https://docs.example/mcp", "headers": {"Authorization": "Bearer sekrit"}}},
    });
    let command = command_line::of(&read(&asked));
    assert!(command.text.starts_with("cat > task.json <<"));
    assert!(!command.text.contains("sekrit"));
    let notes = command.notes.join("\n");
    assert!(
        notes.contains("b.bin") && notes.contains("headers"),
        "{notes}"
    );
}
