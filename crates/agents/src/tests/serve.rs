//! Agents that run as servers.

use super::*;

fn served(task: &str) -> ServeLaunch {
    let (agent, _) = find("opencode").unwrap();
    let task = Task::from_toml(&format!("instruction = 'go'\n{task}")).unwrap();
    let request = LaunchRequest {
        task: &task,
        access: &access(),
        bundle: &bundle(agent.source()),
    };
    agent.serve(&request).unwrap().unwrap()
}

#[test]
fn a_server_gets_what_the_command_gets_and_effort_with_each_message() {
    let (agent, _) = find("opencode").unwrap();
    let (served, launched) = (served(""), launch(&*agent, "go"));
    assert_eq!(
        (&served.env, &served.files),
        (&launched.env, &launched.files)
    );
    let told = served.argv.join(" ");
    assert!(
        told.contains("serve --hostname 127.0.0.1 --port {port}"),
        "{told}"
    );
    assert!(!told.contains("go") && !told.contains("session-key"));
    let options = "[agent]\neffort = 'high'\nlog_level = 'DEBUG'\nsystem_prompt = 'Be brief.'";
    let served = self::served(options);
    assert_eq!(served.variant.as_deref(), Some("high"));
    assert!(!served.argv.contains(&"--variant".to_owned()));
    assert!(
        served
            .argv
            .join(" ")
            .ends_with("--print-logs --log-level DEBUG")
    );
    assert!(served.files.iter().any(|(_, text)| text == "Be brief."));
    // A variant that no configuration has is dropped without a word.
    let (_, config) = &served.files[0];
    let config: serde_json::Value = serde_json::from_str(config).unwrap();
    let model = &config["provider"]["rollcage"]["models"]["Qwen/Qwen3 \"x\""];
    let expected = serde_json::json!({"high": {"reasoningEffort": "high"}});
    assert_eq!(model["variants"], expected);
}

#[test]
fn a_task_may_not_set_the_servers_password_or_want_a_server_that_is_not_there() {
    let check = |agent: &str, task: &str| {
        let (agent, _) = find(agent).unwrap();
        let task = Task::from_toml(&format!("instruction = 'go'\n{task}")).unwrap();
        check_options(&*agent, &task).map_err(|error| error.to_string())
    };
    let password = "[agent.env]\nOPENCODE_SERVER_PASSWORD = 'x'";
    let error = check("opencode", password).unwrap_err();
    assert!(error.contains("`OPENCODE_SERVER_PASSWORD`"), "{error}");
    assert_eq!(check("opencode", "driver = 'serve'"), Ok(()));
    assert_eq!(check("claude", "driver = 'cli'"), Ok(()));
    let error = check("claude", "driver = 'serve'").unwrap_err();
    assert!(error.ends_with("these can: opencode"), "{error}");
}

#[test]
fn a_servers_command_has_a_port_and_no_key() {
    let read = |command: &str| {
        let text = format!("name = 'a'\ncommand = ['a']\n[serve]\ncommand = {command}");
        Manifest::read(&text)
            .map(drop)
            .map_err(|error| error.to_string())
    };
    assert_eq!(read("['a', '{port}']"), Ok(()));
    for (command, why) in [
        ("[]", "`serve.command` is empty"),
        ("['a']", "does not say where `{port}` goes"),
        ("['{port}', '{key}']", "the session's key"),
        ("['{port}', '{nothing}']", "`{nothing}` in `serve.command`"),
    ] {
        let error = read(command).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}
