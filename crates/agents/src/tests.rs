mod mcp;
mod serve;

use std::collections::BTreeMap;

use super::*;
use crate::bundle::Origin;

pub(super) fn access() -> ModelAccess {
    ModelAccess {
        base_url: "http://127.0.0.1:7000/v1".into(),
        key: "session-key".into(),
        model: "Qwen/Qwen3 \"x\"".into(),
        context_tokens: 131_072,
        output_tokens: 8192,
        patience_ms: 600_000,
    }
}

pub(super) fn bundle(source: &Source) -> Bundle {
    Bundle {
        agent: source.agent.clone(),
        version: source.default_version.clone(),
        package: String::new(),
        path: "/bundles/a".into(),
        program: "/bundles/a/bin/program".into(),
        bytes: 0,
        integrity: String::new(),
        components: BTreeMap::new(),
        interpreter: Some("/usr/bin/python3.11".into()),
    }
}

fn launch(agent: &dyn Agent, instruction: &str) -> Launch {
    let task = Task {
        instruction: instruction.to_owned(),
        solution: vec![rollcage_model::script::Step::shell("echo 'a b'")],
        ..Task::default()
    };
    let request = LaunchRequest {
        task: &task,
        access: &access(),
        bundle: &bundle(agent.source()),
    };
    agent.launch(&request).unwrap()
}

#[test]
fn every_built_in_manifest_is_read_and_pins_a_version() {
    let agents = all();
    assert_eq!(agents.len(), BUILT_IN.len() + 1);
    for (text, list) in BUILT_IN {
        Manifest::built_in(text, list).unwrap();
    }
    for agent in agents {
        let source = agent.source();
        let is_installed = matches!(source.origin, Origin::Npm(_) | Origin::Pypi(_));
        assert_eq!(
            is_installed,
            !source.default_version.is_empty(),
            "{}",
            agent.name()
        );
    }
}

#[test]
fn the_instruction_arrives_as_it_is_and_no_key_in_the_arguments() {
    let instruction = "say \"hi\"\n{model} 'x' \\";
    for agent in all().into_iter().filter(|agent| agent.dialect().is_some()) {
        let launch = launch(&*agent, instruction);
        let name = agent.name();
        let in_arguments = launch.argv.iter().any(|text| text.contains("session-key"));
        assert!(!in_arguments, "{name}");
        let of_files = launch
            .files
            .iter()
            .map(|(path, text)| match path.ends_with(".yaml") {
                // The content of the one YAML file is JSON.
                true => serde_json::from_str::<serde_json::Value>(text).unwrap()["run"]["task"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
                false => text.clone(),
            });
        let mut places = of_files.chain([launch.stdin.clone()]);
        assert!(places.any(|text| text == instruction), "{name}");
    }
}

#[test]
fn files_stay_well_formed_whatever_the_model_is_called() {
    for agent in all() {
        for (path, text) in launch(&*agent, "x").files {
            if path.ends_with(".json") {
                serde_json::from_str::<serde_json::Value>(&text).unwrap();
            } else if path.ends_with(".toml") {
                toml::from_str::<toml::Table>(&text).unwrap();
            }
        }
        for (path, text) in agent.home_files() {
            if path.ends_with(".json") {
                serde_json::from_str::<serde_json::Value>(&text).unwrap();
            }
        }
    }
    let opencode = find("opencode").unwrap().0;
    let files = launch(&*opencode, "x").files;
    let config: serde_json::Value = serde_json::from_str(&files[0].1).unwrap();
    assert_eq!(config["model"], "rollcage/Qwen/Qwen3 \"x\"");
    assert_eq!(
        config["provider"]["rollcage"]["options"]["headerTimeout"],
        600_000
    );
}

#[test]
fn a_version_follows_the_name() {
    let (agent, version) = find("codex@1.2.3").unwrap();
    assert_eq!(agent.name(), "codex");
    assert_eq!(version, VersionRequest::Exact("1.2.3".to_owned()));
    let error = find("cursor").err().unwrap().to_string();
    assert!(
        error.starts_with("unknown agent `cursor`: there is opencode, claude (claude-code), "),
        "{error}"
    );
    assert!(find("/etc/agent.toml").is_err(), "a path is no name");
}

fn no_pins() -> Pins {
    Pins::new("/nowhere".into())
}

#[test]
fn an_agent_is_also_found_by_its_other_names() {
    let others = [
        ("claude-code", "claude"),
        ("gemini-cli", "gemini"),
        ("qwen-code", "qwen"),
        ("qwen-coder@1.2.3", "qwen"),
    ];
    for (other, name) in others {
        assert_eq!(find(other).unwrap().0.name(), name);
    }
    let error = find("cursor").err().unwrap().to_string();
    assert!(error.contains("claude (claude-code), codex,"), "{error}");

    let folder = tempfile::tempdir().unwrap();
    let text = "name = \"claude-code\"\naliases = [\"mine\"]\ncommand = [\"/bin/true\"]\n";
    std::fs::write(folder.path().join("own.toml"), text).unwrap();
    for name in ["claude-code", "mine"] {
        let (agent, _) = find_in(folder.path(), &no_pins(), name).unwrap();
        assert_eq!(agent.name(), "claude-code", "a name comes before an alias");
    }
    let wrong = Manifest::read("name = \"a\"\naliases = [\"b c\"]\ncommand = [\"x\"]");
    assert!(wrong.unwrap_err().to_string().contains("not \"b c\""));
}

#[test]
fn a_users_own_agent_comes_before_ours() {
    let folder = tempfile::tempdir().unwrap();
    let text = "name = \"codex\"\ntitle = \"mine\"\ncommand = [\"/bin/true\"]\n\
                [bundle]\nfrom = \"path\"\ndirectory = \"bin\"\n";
    std::fs::write(folder.path().join("codex.toml"), text).unwrap();
    let (agent, _) = find_in(folder.path(), &no_pins(), "codex").unwrap();
    assert_eq!(agent.title(), "mine");
    let expected = Origin::Path {
        directory: folder.path().join("bin"),
    };
    assert_eq!(agent.source().origin, expected);
    assert_eq!(
        all_in(folder.path(), &no_pins()).unwrap().len(),
        all().len()
    );

    std::fs::write(folder.path().join("bad.toml"), "name = \"a b\"").unwrap();
    let error = all_in(folder.path(), &no_pins()).err().unwrap().to_string();
    assert!(error.contains("bad.toml"), "{error}");
}

#[test]
fn an_invalid_manifest_is_reported_with_its_mistake() {
    let wrong = |text: &str| Manifest::read(text).unwrap_err().to_string();
    assert!(wrong("name = \"a\"\ncommand = []").contains("`command` is empty"));
    let typo = wrong("name = \"a\"\ncommand = [\"{modle}\"]");
    assert!(
        typo.starts_with("`{modle}` in `command` means nothing"),
        "{typo}"
    );
    assert!(wrong("name = \"a\"\ncommand = [\"x\", \"--key={key}\"]").contains("every process"));
    let outside = "name = \"a\"\ncommand = [\"x\"]\n[files]\n\"../x\" = \"\"";
    assert!(wrong(outside).contains("must stay below the home"));
    assert!(wrong("name = \"a\"\ncommand = [\"x\"]\ncolour = 1").contains("colour"));
}

#[test]
fn the_oracle_plays_shell_steps_and_refuses_tools() {
    let oracle = Oracle::new();
    let script = launch(&oracle, "x").stdin;
    assert!(
        script.contains(r"/bin/bash -c 'echo '\''a b'\''' < /dev/null"),
        "{script}"
    );
    let step = rollcage_model::script::Step {
        tool: Some("todo".to_owned()),
        ..Default::default()
    };
    let task = Task {
        solution: vec![step],
        ..Task::default()
    };
    let request = LaunchRequest {
        task: &task,
        access: &access(),
        bundle: &bundle(oracle.source()),
    };
    let refused = LaunchError::Tool {
        step: 1,
        tool: "todo".to_owned(),
    };
    assert_eq!(oracle.launch(&request), Err(refused));
}

#[test]
fn an_option_that_an_agent_lacks_is_refused_with_those_that_have_it() {
    let task = |options| Task {
        agent: options,
        ..Task::default()
    };
    let effort = task(rollcage_model::task::AgentOptions {
        effort: Some("high".to_owned()),
        ..Default::default()
    });
    let (codex, goose) = (find("codex").unwrap().0, find("goose").unwrap().0);
    let request = LaunchRequest {
        task: &effort,
        access: &access(),
        bundle: &bundle(codex.source()),
    };
    let launch = codex.launch(&request).unwrap();
    assert!(
        launch
            .argv
            .ends_with(&["-c".to_owned(), "model_reasoning_effort=high".to_owned()])
    );
    let refused = check_options(&*goose, &effort).unwrap_err().to_string();
    assert_eq!(
        refused,
        "goose has no way to set `effort`; these have: opencode, claude, codex, gemini, qwen, mini-swe-agent, pi, aider"
    );
    let wrong = "name = \"a\"\ncommand = [\"x\"]\n[options.colour]\n";
    assert!(
        Manifest::read(wrong)
            .unwrap_err()
            .to_string()
            .contains("no option `colour`")
    );
}

#[test]
fn a_value_that_an_agent_does_not_know_is_refused() {
    let text = |values: &str| {
        format!("name = 'a'\ncommand = ['x']\n[options.effort]\n{values}\ncommand = ['{{value}}']")
    };
    let agent = Manifest::read(&text("values = ['low', 'high']")).unwrap();
    let argv = launch_with(&agent, "effort = 'high'").unwrap().argv;
    assert_eq!(argv, ["x", "high"]);
    let error = launch_with(&agent, "effort = 'max'")
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "a has no way to set `max` in `effort`: it knows low, high"
    );
    let any = Manifest::read(&text("")).unwrap();
    assert_eq!(
        launch_with(&any, "effort = 'max'").unwrap().argv,
        ["x", "max"]
    );
    let list = "name = 'a'\ncommand = ['x']\n[options.tools]\nvalues = ['a']";
    let error = Manifest::read(list).unwrap_err().to_string();
    assert_eq!(error, "option `tools` is a list: `values` is for texts");
}

#[test]
fn an_option_may_change_the_configuration_file() {
    let text = |config: &str, option: &str| {
        format!(
            "name = \"a\"\ncommand = [\"x\"]\n{config}\n[files]\n\"c.json\" = '{{\"a\": {{\"b\": 1}}}}'\n\
             [options.effort]\nconfig = {option}\n"
        )
    };
    let named = "config = \"c.json\"";
    let agent = Manifest::read(&text(named, r#"{ a = { effort = "{value}" } }"#)).unwrap();
    let task = Task {
        agent: rollcage_model::task::AgentOptions {
            effort: Some("\"high\"".to_owned()),
            ..Default::default()
        },
        ..Task::default()
    };
    let request = LaunchRequest {
        task: &task,
        access: &access(),
        bundle: &bundle(agent.source()),
    };
    let files = agent.launch(&request).unwrap().files;
    assert_eq!(files[0].0, "/home/user/c.json");
    let config: serde_json::Value = serde_json::from_str(&files[0].1).unwrap();
    let expected = serde_json::json!({"a": {"b": 1, "effort": "\"high\""}});
    assert_eq!((config, files.len()), (expected, 1));

    let wrong = |text: &str| Manifest::read(text).unwrap_err().to_string();
    assert!(wrong(&text("", "{ a = 1 }")).contains("`config` names none"));
    assert!(wrong(&text(named, "[1]")).contains("config"));
    assert!(wrong(&text(named, "{ a = \"{valeu}\" }")).contains("`{valeu}`"));
    assert!(wrong(&text("config = \"c.ini\"", "{}")).contains("must end in .json"));
    assert!(wrong(&text("config = \"../c.json\"", "{}")).contains("below the home"));
}

fn launch_with(agent: &dyn Agent, options: &str) -> Result<Launch, LaunchError> {
    let task = Task::from_toml(&format!("instruction = 'x'\n[agent]\n{options}")).unwrap();
    check_options(agent, &task)?;
    agent.launch(&LaunchRequest {
        task: &task,
        access: &access(),
        bundle: &bundle(agent.source()),
    })
}

#[test]
fn a_list_of_tools_is_passed_in_each_agents_format() {
    let of = |name: &str| find(name).unwrap().0;
    let argv = |name: &str, options: &str| launch_with(&*of(name), options).unwrap().argv;
    let json = |name: &str, file: &str, options: &str| -> serde_json::Value {
        let files = launch_with(&*of(name), options).unwrap().files;
        let (_, text) = files.iter().find(|(path, _)| path.ends_with(file)).unwrap();
        serde_json::from_str(text).unwrap()
    };
    let claude = argv("claude", "tools = ['Bash', 'Read']");
    assert!(claude.ends_with(&["--tools".to_owned(), "Bash,Read".to_owned()]));
    let count = claude.iter().filter(|text| *text == "--tools").count();
    assert_eq!(count, 1, "in place of our own list");
    assert_eq!(
        argv("pi", "disabled_tools = ['bash', 'write']")
            .last()
            .unwrap(),
        "read,edit"
    );
    let opencode = json("opencode", "rollcage.json", "tools = ['bash']");
    let expected = serde_json::json!({"*": false, "bash": true});
    assert_eq!(opencode["agent"]["build"]["tools"], expected);
    let expected = serde_json::json!({"*": "allow", "webfetch": "deny", "question": "deny"});
    assert_eq!(opencode["permission"], expected, "the rest stays");
    let gemini = json("gemini", "settings.json", "tools = ['{key}', 'a']");
    let expected = serde_json::json!(["{key}", "a", "mcp_*"]);
    assert_eq!(gemini["tools"]["core"], expected);
    let goose = argv("goose", "tools = ['shell']\ninstructions = 'developer'");
    assert!(!goose.contains(&"--no-profile".to_owned()), "{goose:?}");
    let told = ["--system".to_owned(), "developer".to_owned()];
    assert!(
        goose.ends_with(&told),
        "only our own arguments go: {goose:?}"
    );
    let own = "name = \"a\"\ncommand = [\"x\"]\nconfig = \"c.json\"\n[options.tools]\n\
               config = { a = [{ \"{value}\" = \"{list}\" }] }\nall = [\"p\", \"q\", \"r\"]";
    let files = launch_with(&Manifest::read(own).unwrap(), "tools = ['q']")
        .unwrap()
        .files;
    let config: serde_json::Value = serde_json::from_str(&files[0].1).unwrap();
    assert_eq!(config, serde_json::json!({"a": [{"p,r": ["p", "r"]}]}));
    let wrong = |text: &str, expect: &str| {
        let text = format!("name = \"a\"\ncommand = [\"x\"]\n{text}");
        let error = Manifest::read(&text).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    };
    wrong("[options.tools]\ncommand = [\"{list}\"]", "`{list}` in");
    wrong(
        "[options.effort]\nall = [\"a\"]",
        "option `effort` is a text",
    );
    let inner = "name = \"a\"\ncommand = [\"x\"]\n[options.tools.each]\ndrop = [\"x\"]";
    assert!(
        Manifest::read(inner)
            .unwrap_err()
            .to_string()
            .contains("not in them")
    );

    let error = launch_with(&*of("codex"), "disabled_tools = ['nope']").unwrap_err();
    let expected = "codex has no way to set `nope` in `disabled_tools`: it knows create_goal, ";
    assert!(error.to_string().starts_with(expected), "{error}");
    let error = launch_with(&*of("aider"), "tools = ['a']").unwrap_err();
    assert!(
        error.to_string().contains("these have: opencode, "),
        "{error}"
    );
}

#[test]
fn a_tasks_own_configuration_and_variables_reach_the_agent_as_they_are() {
    let codex = find("codex").unwrap().0;
    let launch = launch_with(
        &*codex,
        "env = { CODEX_HOME = '/x', A = '{key} $HOME' }\n\
         config = { note = '{key}', features = { apps = true } }",
    )
    .unwrap();
    assert_eq!(launch.env["CODEX_HOME"], "/x");
    assert_eq!(launch.env["A"], "{key} $HOME");
    let config: toml::Table = toml::from_str(&launch.files[0].1).unwrap();
    assert_eq!(config["note"].as_str(), Some("{key}"));
    assert_eq!(config["features"]["apps"].as_bool(), Some(true));
    assert_eq!(config["features"]["plugins"].as_bool(), Some(false));

    let error = |agent: &str, options: &str| {
        let refused = launch_with(&*find(agent).unwrap().0, options).unwrap_err();
        refused.to_string()
    };
    assert!(error("codex", "env = { ROLLCAGE_KEY = 'x' }").contains("`ROLLCAGE_KEY`"));
    assert!(error("codex", "config = { model = 'x' }").contains("the key `model`"));
    let inner = "config = { provider = { rollcage = { options = { apiKey = 'x' } } } }";
    assert!(error("opencode", inner).contains("`provider.rollcage.options.apiKey`"));
    assert!(error("nop", "config = { a = 1 }").contains("these have: opencode, claude, codex"));
    let oracle = launch_with(&Oracle::new(), "env = { A = 'b' }").unwrap();
    assert_eq!(oracle.env["A"], "b");
}

#[test]
fn limits_of_a_manifest_are_read_and_checked() {
    let text = |limits: &str| format!("name = \"a\"\ncommand = [\"x\"]\n[limits]\n{limits}");
    let agent = Manifest::read(&text("calls = 7\nmemory_mb = 512\nagent_timeout_s = 60")).unwrap();
    let limits = agent.limits();
    assert_eq!((limits.calls, limits.memory_mb), (Some(7), Some(512)));
    assert_eq!(limits.agent_timeout_s, Some(60.0));
    let error = Manifest::read(&text("pids = 1")).unwrap_err();
    let error = rollcage_model::text::chain(&error);
    assert!(error.contains("`pids` must be at least 8"), "{error}");
    assert!(Manifest::read(&text("colour = 1")).is_err());
}
