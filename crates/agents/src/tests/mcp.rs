use serde_json::{Value, json};

use rollcage_model::task::mcp::McpServer;

use super::super::*;
use super::{access, bundle};

const ABLE: [&str; 6] = ["opencode", "claude", "codex", "gemini", "qwen", "goose"];

fn task() -> Task {
    let program = McpServer {
        command: vec!["python3".into(), "it's $HOME.py".into()],
        env: [("UNITS".to_owned(), "a\nb".to_owned())].into(),
        ..McpServer::default()
    };
    let remote = McpServer {
        url: Some("http://elsewhere:9000/mcp".into()),
        headers: [("Authorization".to_owned(), "Bearer ${TOKEN}".to_owned())].into(),
        ..McpServer::default()
    };
    Task {
        env: [("a.b".to_owned(), "c".to_owned())].into(),
        mcp: [("weather".to_owned(), program), ("docs".to_owned(), remote)].into(),
        ..Task::default()
    }
}

fn launch(agent: &dyn Agent, task: &Task) -> Result<Launch, LaunchError> {
    agent.launch(&LaunchRequest {
        task,
        access: &access(),
        bundle: &bundle(agent.source()),
    })
}

fn file<'a>(launch: &'a Launch, path: &str) -> &'a str {
    let found = launch.files.iter().find(|(known, _)| known.ends_with(path));
    found.map(|(_, text)| text.as_str()).unwrap()
}

#[test]
fn every_agent_that_can_gets_both_kinds_of_servers_and_no_secret() {
    for name in ABLE {
        let agent = find(name).unwrap().0;
        let plain = launch(&*agent, &Task::default()).unwrap();
        let launch = launch(&*agent, &task()).unwrap();
        let script = "/home/user/.config/rollcage-mcp/weather.sh";
        assert_eq!(
            file(&launch, script),
            "cd /home/user/workdir || exit 1\nset -- \"$@\" 'a.b=c'\nset -- \"$@\" 'UNITS=a\nb'\n\
             exec env -- \"$@\" 'python3' 'it'\\''s $HOME.py'\n"
        );
        let told: String = launch.files.iter().map(|(_, text)| text.as_str()).collect();
        assert!(told.contains(script), "{name}: {told}");
        assert!(
            told.contains("http://127.0.0.1:7000/mcp/docs"),
            "{name}: {told}"
        );
        assert!(told.contains("Bearer session-key"), "{name}: {told}");
        assert!(
            !told.contains("elsewhere") && !told.contains("TOKEN"),
            "{name}: {told}"
        );
        assert!(!launch.argv.iter().any(|word| word.contains("session-key")));
        // None of this is there without servers.
        assert!(!plain.files.iter().any(|(_, text)| text.contains("/mcp/")));
    }
}

#[test]
fn servers_stand_beside_what_the_configuration_holds() {
    let codex = launch(&*find("codex").unwrap().0, &task()).unwrap();
    let config: toml::Table = toml::from_str(file(&codex, "config.toml")).unwrap();
    assert_eq!(config["approval_policy"].as_str(), Some("never"));
    assert_eq!(config["mcp_servers"].as_table().unwrap().len(), 2);
    let gemini = launch(&*find("gemini").unwrap().0, &task()).unwrap();
    let config: Value = serde_json::from_str(file(&gemini, "settings.json")).unwrap();
    assert_eq!(config["ide"], json!({"enabled": false}));
    assert_eq!(
        config["mcpServers"]["docs"]["url"],
        "http://127.0.0.1:7000/mcp/docs"
    );
    let goose = launch(&*find("goose").unwrap().0, &task()).unwrap();
    assert!(
        !goose.argv.contains(&"--no-profile".to_owned()),
        "{:?}",
        goose.argv
    );
}

#[test]
fn an_agent_without_mcp_names_those_that_have_it() {
    for agent in all() {
        let answer = launch(&*agent, &task());
        let name = agent.name();
        match (agent.dialect(), ABLE.contains(&name)) {
            (None, _) | (_, true) => assert!(answer.is_ok(), "{name}: {answer:?}"),
            (Some(_), false) => assert_eq!(
                answer.unwrap_err().to_string(),
                format!("{name} takes no MCP servers; these do: {}", ABLE.join(", "))
            ),
        }
    }
    let mut named = task();
    let server = named.mcp.remove("weather").unwrap();
    named.mcp.insert("developer".to_owned(), server);
    let error = launch(&*find("goose").unwrap().0, &named).unwrap_err();
    assert!(
        error.to_string().contains("`developer`: rename it"),
        "{error}"
    );
}

#[test]
fn an_invalid_section_is_reported_with_its_mistake() {
    #[track_caller]
    fn check(section: &str, expect: &str) {
        let head = "name = \"a\"\ncommand = [\"x\"]\n[mcp]\nstdio = {}\nhttp = {}\n";
        let error = Manifest::read(&format!("{head}{section}")).unwrap_err();
        assert!(error.to_string().contains(expect), "{error}");
    }
    let tool = "tool = '{server}_{tool}'\nat = ['mcp']";
    check("tool = '{server}_{tool}'", "missing field `at`");
    check(tool, "name the file");
    check(&format!("{tool}\nfile = '/etc/x.json'"), "below the home");
    check(&format!("{tool}\nfile = 'x.ini'"), "must end in .json");
    check(
        "at = []\nfile = 'x.json'\ntool = '{server}_{tool}'",
        "`at` lists",
    );
    for pattern in [
        "{tool}",
        "{server}{tool}",
        "{tool}_{server}",
        "{server}_{tool}_x",
    ] {
        let section = format!("at = ['mcp']\nfile = 'x.json'\ntool = '{pattern}'");
        check(&section, "`tool` is like");
    }
    let file = format!("{tool}\nfile = 'x.json'");
    check(&format!("{file}\ncommand = ['{{key}}']"), "every process");
    check(
        &format!("{file}\ncommand = ['{{mcp_url}}']"),
        "`{mcp_url}` in `mcp`",
    );
    check(
        &format!("{file}\nconfig = {{ a = '{{server}}' }}"),
        "`{server}` in `mcp`",
    );
}
