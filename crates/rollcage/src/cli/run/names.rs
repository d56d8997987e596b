//! Tests that the command line, task files, tools and REST have the same names and defaults for the options of a
//! rollout.

use std::collections::BTreeSet;

use clap::{Args, FromArgMatches};
use serde_json::{Value, json};

use rollcage_model::task::{AgentOptions, CountedTests, RequiredTests, Service};
use rollcage_proxy::ModelSettings;

use super::*;
use crate::server::api;
use crate::server::listen::BODY_LIMIT;
use crate::server::rollouts::context::RequestContext;
use crate::server::rollouts::request::{self, NAMES};
use crate::server::tasks::Tasks;

/// Options of the task; task files, the command line, tools and REST have all of these.
const OF_THE_TASK: &[&str] = &[
    "task_id",
    "instruction",
    "files",
    "upload_files",
    "setup",
    "setup_shell",
    "services",
    "verify_services",
    "setup_user",
    "verify",
    "test_script",
    "reward",
    "reward_range",
    "tests",
    "git_strip",
    "verify_trust",
    "artifacts",
    "patch",
    "solution",
    "env",
    "timezone",
    "locale",
    "mcp",
    "agent_timeout_s",
    "command_timeout_s",
    "limits",
    "network",
    "budget",
    "mode",
    "driver",
    // On the command line each agent option is a flag, and `tests` are two.
    "agent_options",
];

/// Options of the model and of how a task is run. They do not belong to the task: the command line, tools and REST have
/// all of these.
const OF_THE_RUN: &[&str] = &[
    "agent",
    "sandbox",
    "task",
    "n",
    "group",
    "labels",
    "endpoint",
    "base_url",
    "model",
    "dialect",
    "thinking",
    "disable_thinking",
    "temperature",
    "sampling",
    "constrained",
    "max_tokens_cap",
    "top_logprobs",
];

/// OpenEnv's ways to name an endpoint and pass its key, for clients only: keys do not belong on a command line.
const OF_CLIENTS: &[&str] = &["api_key", "model_key", "vllm_url", "hf_token", "template"];

/// Options of task files only: uploads of files next to them, which clients cannot name.
const OF_TASK_FILES: &[&str] = &["upload"];

/// The flag for each option of an agent.
const OPTION_FLAGS: &[(&str, &str)] = &[
    ("system_prompt", "system-prompt"),
    ("instructions", "agent-instructions"),
    ("effort", "effort"),
    ("tools", "tools"),
    ("disabled_tools", "disable-tools"),
    ("log_level", "agent-log-level"),
    ("config", "agent-config"),
    ("env", "agent-env"),
];

fn command() -> clap::Command {
    Arguments::augment_args(clap::Command::new("run"))
}

/// Every name that the command line knows.
fn flags() -> BTreeSet<String> {
    let command = command();
    let mut names = BTreeSet::new();
    for argument in command.get_arguments() {
        names.insert(argument.get_id().to_string());
        names.extend(argument.get_long().map(str::to_owned));
        let aliases = argument.get_all_aliases().unwrap_or_default();
        names.extend(aliases.iter().map(|alias| (*alias).to_owned()));
    }
    names
}

fn set(names: &[&[&str]]) -> BTreeSet<String> {
    let all = names.iter().copied().flatten();
    all.map(|name| (*name).to_owned()).collect()
}

#[test]
fn tools_and_rest_take_these_names_and_no_others() {
    let known = set(&[OF_THE_TASK, OF_THE_RUN, OF_CLIENTS]);
    assert_eq!(set(&[NAMES]), known);
    let document = api::document();
    let schema = &document["components"]["schemas"]["RolloutRequest"];
    let properties = schema["properties"].as_object().unwrap();
    assert_eq!(properties.keys().cloned().collect::<BTreeSet<_>>(), known);
}

#[test]
fn the_command_line_takes_the_same_names() {
    let flags = flags();
    for name in OF_THE_TASK.iter().chain(OF_THE_RUN) {
        let flag = name.replace('_', "-");
        let is_there = flags.contains(&flag) || flags.contains(*name);
        let is_several = ["agent_options", "tests"].contains(name);
        assert!(is_there || is_several, "no flag --{flag}");
    }
    let options: Vec<_> = OPTION_FLAGS.iter().map(|(option, _)| *option).collect();
    assert_eq!(set(&[&options]), set(&[AgentOptions::NAMES]));
    for (_, flag) in OPTION_FLAGS {
        assert!(flags.contains(*flag), "no flag --{flag}");
    }
}

#[test]
fn a_task_file_takes_the_same_names() {
    let value = |name: &str| match name {
        "instruction" | "task_id" | "setup_shell" | "test_script" | "timezone" | "locale" => {
            json!("x")
        }
        "setup" | "verify" | "solution" | "services" | "verify_services" | "artifacts" => {
            json!(["x"])
        }
        "agent_timeout_s" | "command_timeout_s" => json!(7),
        "mode" => json!("black_box"),
        "setup_user" => json!("root"),
        "driver" => json!("serve"),
        "patch" | "git_strip" => json!(true),
        "tests" => json!({"passed": 1}),
        "reward" => json!("file"),
        "reward_range" => json!([0, 1]),
        "verify_trust" => json!(["home"]),
        _ => json!({}),
    };
    for name in OF_THE_TASK {
        let mut file = json!({"instruction": "go"});
        file[*name] = match *name {
            "solution" => json!([{"run": "x"}]),
            name => value(name),
        };
        let read = Task::from_json(&file.to_string());
        assert!(read.is_ok(), "{name}: {:?}", read.err());
    }
    // A file has no other names except its own short ones.
    let mut known = set(&[OF_THE_TASK, OF_TASK_FILES, &["id", "agent"]]);
    let task: Value = serde_json::to_value(Task {
        test_script: Some("x".to_owned()),
        timezone: Some("UTC".to_owned()),
        locale: Some("C".to_owned()),
        services: vec![Service::new("x")],
        verify_services: vec![Service::new("x")],
        artifacts: vec!["x".to_owned()],
        patch: true,
        reward: Some(rollcage_model::task::RewardSource::File),
        reward_range: Some([0.0, 1.0]),
        tests: Some(CountedTests::new(RequiredTests::Count(1))),
        git_strip: true,
        verify_trust: vec![rollcage_model::task::VerifyTrust::Home],
        driver: Some(rollcage_model::task::AgentDriver::Serve),
        network: serde_json::from_value(json!({"agent": "open"})).unwrap(),
        setup_user: rollcage_model::task::SetupUser::Root,
        ..Task::default()
    })
    .unwrap();
    for name in task.as_object().unwrap().keys() {
        assert!(known.remove(name), "{name}");
    }
    // The remaining names are OpenEnv's aliases.
    let left = ["agent_options", "setup_shell", "task_id", "upload_files"];
    assert_eq!(known, set(&[&left]));
}

fn read_tool(arguments: &Value) -> ResolvedRollout {
    let context = RequestContext {
        tasks: Arc::new(Tasks::default()),
        catalogue: Arc::new(Catalogue::built_in()),
        body_limit: BODY_LIMIT,
    };
    let arguments = arguments.as_object().cloned().unwrap();
    match request::read("run_rollout", arguments, &context) {
        Ok(read) => resolve(read.request, &context.catalogue).unwrap(),
        Err(wrong) => panic!("{wrong}"),
    }
}

fn read_flags(flags: &[&str]) -> ResolvedRollout {
    let line = ["run"].iter().chain(flags);
    let matches = command().try_get_matches_from(line).unwrap();
    let arguments = Arguments::from_arg_matches(&matches).unwrap();
    let mut catalogue = Catalogue::built_in();
    let request = arguments.request(&mut catalogue).unwrap();
    resolve(request, &catalogue).unwrap()
}

#[track_caller]
fn check_same(made: ResolvedRollout, asked: Value, file: &str) {
    let asked = read_tool(&asked);
    let read = Task::from_toml(file).unwrap();
    assert_eq!(made.task, asked.task);
    assert_eq!(made.task, read);
    assert_eq!((&made.group, &made.labels), (&asked.group, &asked.labels));
    let shown = |settings: &ModelSettings| {
        (
            settings.tokens_max,
            settings.top_logprobs,
            settings.is_black_box,
            settings.budget,
            settings.sampling,
        )
    };
    assert_eq!(shown(&made.settings), shown(&asked.settings));
}

#[test]
fn defaults_are_the_same_everywhere() {
    let made = read_flags(&["--instruction", "go", "--task-id", "t", "--agent", "nop"]);
    assert_eq!(made.settings.tokens_max, Some(4096));
    let asked = json!({"instruction": "go", "task_id": "t", "agent": "nop"});
    check_same(made, asked, "id = 't'\ninstruction = 'go'");
}

/// One of each, separated by semicolons.
const FLAGS: &str = "--instruction=go;--task-id=t;--setup=a;--setup-shell=b;--services=serve\
    ;--verify-services=serve again;--test-script=c;--reward=file;--reward-range=-1,1;--tests-passed=a::b\
    ;--tests-passed=c;--tests-report=ctrf.json;--git-strip;--verify-trust=modules;--files=/tmp/x=X\
    ;--agent-timeout-s=5;--command-timeout-s=7;--limits=memory_mb=64,cpus=0.5,shm_mb=8\
    ;--network=verify=none;--allow-host=*.example.org:8443;--budget=calls=3,idle_s=1.5\
    ;--timezone=Europe/Berlin;--locale=de_DE.UTF-8;--mode=black_box;--max-tokens-cap=-1;--env=A=1\
    ;--effort=low;--group=g;--labels=step=12;--base-url=http://127.0.0.1:9;--model=m";

#[test]
fn options_mean_the_same_everywhere() {
    let made = read_flags(&FLAGS.split(';').collect::<Vec<_>>());
    assert_eq!(made.settings.tokens_max, None);
    let asked = json!({
        "instruction": "go", "task_id": "t", "setup": ["a"], "setup_shell": "b", "test_script": "c",
        "reward": "file", "reward_range": [-1, 1],
        "tests": {"passed": ["a::b", "c"], "report": "ctrf.json"}, "git_strip": true, "verify_trust": ["modules"],
        "services": ["serve"], "verify_services": [{"run": "serve again"}],
        "upload_files": {"/tmp/x": "X"}, "agent_timeout_s": 5, "command_timeout_s": 7,
        "limits": {"memory_mb": 64, "cpus": 0.5, "shm_mb": 8},
        "timezone": "Europe/Berlin", "locale": "de_DE.UTF-8",
        "network": {"agent": "allowlist", "verify": "none", "allow_hosts": ["*.example.org:8443"]}, "budget": {"calls": 3, "idle_s": 1.5}, "mode": "black_box",
        "max_tokens_cap": 0, "env": {"A": "1"}, "agent_options": {"effort": "low"}, "group": "g",
        "labels": {"step": "12"}, "endpoint": "vllm",
        "base_url": "http://127.0.0.1:9", "model": "m",
    });
    let file = "task_id = 't'\ninstruction = 'go'\nsetup = ['a']\nsetup_shell = 'b'\ntest_script = 'c'\nreward = 'file'\nreward_range = [-1, 1]\n\
        tests = {passed = ['a::b', 'c'], report = 'ctrf.json'}\ngit_strip = true\nverify_trust = ['modules']\n\
        timezone = 'Europe/Berlin'\nlocale = 'de_DE.UTF-8'\nservices = ['serve']\nverify_services = [{run = 'serve again'}]\n\
        agent_timeout_s = 5\ncommand_timeout_s = 7\nmode = 'black_box'\n\
        upload_files = {'/tmp/x' = 'X'}\nlimits = {memory_mb = 64, cpus = 0.5, shm_mb = 8}\n\
        network = {agent = 'allowlist', verify = 'none', allow_hosts = ['*.example.org:8443']}\n\
        budget = {calls = 3, idle_s = 1.5}\nenv = {A = '1'}\nagent_options = {effort = 'low'}";
    check_same(made, asked, file);
}
