//! MCP servers: every real agent that takes them calls a tool of a program inside the sandbox and of a server outside,
//! and nothing but what the task declares can be reached.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::agents::{plan, shared_home};
use crate::support::Plan;
use crate::support::{Home, open_engine, run_one, task, traced};
use rollcage_model::ending::Ended;
use rollcage_model::finding::Code;
use rollcage_model::record::RolloutResult;
use rollcage_model::script::Step;
use rollcage_model::task::Task;
use rollcage_model::task::mcp::{McpServer, McpServers};
use rollcage_proxy::remote::RemoteMcpServers;
use rollcage_testkit::upstream::Upstream;

const PROGRAM: &str = include_str!("mcp_server.py");
/// What the server outside wants to see; it must never be found anywhere else.
const TOKEN: &str = "sekrit-8d1f0c77";

/// A server outside, on the loopback of this machine.
struct Outside {
    child: Child,
    port: u16,
    directory: tempfile::TempDir,
}

impl Outside {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("server.py");
        std::fs::write(&program, PROGRAM).unwrap();
        let mut child = Command::new("python3")
            .arg(&program)
            .arg("http")
            .arg(directory.path().join("log"))
            .env("TOKEN", TOKEN)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        Outside {
            child,
            port: line.trim().parse().unwrap(),
            directory,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Method, path and headers of every request.
    fn asked(&self) -> Vec<(String, String, Value)> {
        let log = std::fs::read_to_string(self.directory.path().join("log"));
        let log = log.unwrap_or_default();
        let lines = log.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn remote(url: String) -> McpServer {
    let header = (
        "Authorization".to_owned(),
        "Bearer ${DOCS_TOKEN}".to_owned(),
    );
    McpServer {
        url: Some(url),
        headers: [header].into(),
        ..McpServer::default()
    }
}

fn step(server: &str, tool: &str, about: &str) -> Step {
    let arguments = serde_json::json!({ "about": about });
    Step {
        mcp: Some(server.to_owned()),
        tool: Some(tool.to_owned()),
        arguments: arguments.as_object().cloned(),
        ..Step::default()
    }
}

/// The server's name has a dash and its tool's too, which some agents change.
fn mcp_task(agent: &str, outside: &Outside) -> Task {
    let words = ["python3", "server.py", "stdio", "$HOME ${X} it's"];
    let program = McpServer {
        command: words.map(str::to_owned).to_vec(),
        env: [("UNITS".to_owned(), "$HOME {model}".to_owned())].into(),
        ..McpServer::default()
    };
    Task {
        id: agent.to_owned(),
        instruction: "Tell the weather of Oslo and look the walrus up.".to_owned(),
        files: [("server.py".to_owned(), PROGRAM.to_owned())].into(),
        mcp: McpServers::from([
            ("weather".to_owned(), program),
            ("my-docs".to_owned(), remote(outside.url("/mcp"))),
        ]),
        verify: vec![
            // The programs end with the agent that started them.
            "! grep -lz '^server.py$' /proc/[0-9]*/cmdline".to_owned(),
            // In two parts, since the command itself is kept.
            format!(
                "! grep -rq {}''{} /home/user /tmp",
                &TOKEN[..6],
                &TOKEN[6..]
            ),
        ],
        solution: vec![
            step("weather", "forecast", "Oslo"),
            step("my-docs", "look-up", "walrus"),
            Step {
                say: Some("Both are told.".to_owned()),
                ..Step::default()
            },
        ],
        ..Task::default()
    }
}

/// Every file of a record.
fn is_kept(directory: &Path, words: &str) -> bool {
    std::fs::read_dir(directory).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return is_kept(&path, words);
        }
        let bytes = std::fs::read(&path).unwrap();
        bytes
            .windows(words.len())
            .any(|part| part == words.as_bytes())
    })
}

fn check_result(result: &RolloutResult, outside: &Outside) {
    let agent = &result.agent.name;
    let told = format!("{agent}: {:?}\n{}", result.error, result.agent_log_tail);
    assert_eq!(result.ended, Ended::Completed, "{told}");
    assert_eq!(result.reward, Some(1.0), "{:#?}", result.verify_results);
    let turns = traced(result).proxy_turns;
    assert_eq!(turns.len(), 3, "one turn for each step");
    let asked = |turn: usize| {
        let messages = turns[turn].request["messages"].as_array();
        let last = messages.unwrap().last().unwrap();
        // Text, or a list of texts.
        let content = &last["content"];
        let text = content.as_str().or(content[0]["text"].as_str());
        text.unwrap_or_default().to_owned()
    };
    let weather = "weather of Oslo in $HOME {model} at /home/user/workdir said $HOME ${X} it's";
    assert!(asked(1).contains(weather), "{agent}: {}", asked(1));
    assert!(
        asked(2).contains("entry on walrus"),
        "{agent}: {}",
        asked(2)
    );
    let calls = serde_json::to_value(&result.agent_report.mcp_calls).unwrap();
    let expected = serde_json::json!({"weather": {"forecast": 1}, "my-docs": {"look-up": 1}});
    assert_eq!(calls, expected, "{agent}");

    assert!(!is_missed(result), "{agent}: {:?}", result.findings);

    let requests = outside.asked();
    assert!(!requests.is_empty());
    for (_, path, headers) in &requests {
        assert_eq!(path, "/mcp");
        assert_eq!(headers["authorization"], format!("Bearer {TOKEN}"));
        assert!(!headers.to_string().contains("sk-rollcage"), "{headers}");
    }
    let record = Path::new(&result.record);
    assert!(!is_kept(record, TOKEN), "{agent} keeps the secret");
    assert!(
        is_kept(record, "DOCS_TOKEN"),
        "the task is kept as it was written"
    );
}

fn is_missed(result: &RolloutResult) -> bool {
    let mut findings = result.findings.iter();
    findings.any(|finding| finding.code == Code::McpNotOffered)
}

/// With one of the agent's own tools left to it: those of the servers are not meant by that.
async fn calls_both(agent: &str, tool: &str) {
    let outside = Outside::start();
    let engine = open_engine(shared_home()).await;
    let mut task = mcp_task(agent, &outside);
    task.agent.tools = Some(vec![tool.to_owned()]);
    let variable = |name: &str| (name == "DOCS_TOKEN").then(|| TOKEN.to_owned());
    let mcp = RemoteMcpServers::take(&mut task.mcp, variable).unwrap();
    let plan = Arc::into_inner(plan(&engine, agent, task).await).unwrap();
    let plan = Plan { mcp, ..plan };
    let result = run_one(&engine, plan, &CancellationToken::new()).await;
    engine.close().await;
    check_result(&result, &outside);
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_calls_mcp_tools() {
    calls_both("opencode", "bash").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_code_calls_mcp_tools() {
    calls_both("claude", "Bash").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gemini_cli_calls_mcp_tools() {
    calls_both("gemini", "run_shell_command").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn qwen_code_calls_mcp_tools() {
    calls_both("qwen", "run_shell_command").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn goose_calls_mcp_tools() {
    calls_both("goose", "shell").await;
}

/// Most agents go on without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_start_is_a_finding() {
    let engine = open_engine(shared_home()).await;
    let server = McpServer {
        command: vec!["false".to_owned()],
        ..McpServer::default()
    };
    let task = Task {
        instruction: "Say yes.".to_owned(),
        mcp: McpServers::from([("broken".to_owned(), server)]),
        solution: vec![Step {
            say: Some("Yes.".to_owned()),
            ..Step::default()
        }],
        ..Task::default()
    };
    let plan = plan(&engine, "claude", task).await;
    let plan = Arc::into_inner(plan).unwrap();
    let result = run_one(&engine, plan, &CancellationToken::new()).await;
    engine.close().await;
    assert_eq!(result.ended, Ended::Completed, "{:?}", result.error);
    assert!(is_missed(&result), "{:?}", result.findings);
}

/// On the command line, on a machine whose own settings have a server too.
#[test]
fn codex_calls_mcp_tools_and_knows_nothing_of_the_users_own() {
    let outside = Outside::start();
    let home = tempfile::tempdir().unwrap();
    let mut task = mcp_task("codex", &outside);
    // The command line replaces both, and the variable of the program becomes one of the whole task.
    let program = McpServer {
        command: vec!["false".to_owned()],
        ..McpServer::default()
    };
    let program = task.mcp.insert("weather".to_owned(), program);
    task.env = program.unwrap().env;
    task.mcp
        .insert("my-docs".to_owned(), remote(outside.url("/refuse")));
    let file = home.path().join("task.json");
    std::fs::write(&file, serde_json::to_string(&task).unwrap()).unwrap();
    let mark = home.path().join("mark");
    std::fs::create_dir(home.path().join(".codex")).unwrap();
    let own = format!("[mcp_servers.own]\ncommand = \"touch\"\nargs = [{mark:?}]\n");
    std::fs::write(home.path().join(".codex/config.toml"), own).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_rollcage"))
        .arg("run")
        .arg(&file)
        .args(["--agent", "codex", "--json"])
        .args([
            "--mcp",
            "weather=python3 server.py stdio '$HOME ${X} it'\\''s'",
        ])
        .args(["--mcp", &format!("my-docs={}", outside.url("/mcp"))])
        .args(["--mcp-header", "my-docs:Authorization=Bearer ${DOCS_TOKEN}"])
        .env("HOME", home.path())
        .env("ROLLCAGE_HOME", shared_home())
        .env("DOCS_TOKEN", TOKEN)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(!stderr.contains(TOKEN) && !stdout.contains(TOKEN));
    let result: RolloutResult = serde_json::from_str(stdout.trim()).unwrap();
    check_result(&result, &outside);
    assert!(!mark.exists(), "the user's own server was started");
    assert!(!is_kept(Path::new(&result.record), "mcp__own"));
}

#[test]
fn a_missing_variable_is_wrong_use() {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_rollcage"))
        .args(["run", "--instruction", "x", "--solution", "true"])
        .args(["--mcp", "docs=http://127.0.0.1:9/mcp"])
        .args(["--mcp-header", "docs:Authorization=Bearer ${NOT_SET_HERE}"])
        .env("ROLLCAGE_HOME", home.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("needs the environment variable NOT_SET_HERE"),
        "{stderr}"
    );
}

/// Each call writes what it got into a file of its name.
const BY_HAND: &str = r#"
ping='{"jsonrpc":"2.0","id":1,"method":"ping"}'
call() {  # FILE KEY METHOD PATH [HEADER]
    exec 3<>/dev/tcp/127.0.0.1/7000
    printf '%s %s HTTP/1.1\r\nHost: elsewhere\r\nAuthorization: Bearer %s\r\n%s\r\nContent-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: %s\r\nConnection: close\r\n\r\n%s' \
        "$3" "$4" "$2" "${5:-X-Mine: 1}" "${#ping}" "$ping" >&3
    cat <&3 > "$1"
    exec 3<&-
}
call good "$KEY" POST /mcp/docs?host=evil 'Mcp-Session-Id: s1'
exec 4<>/dev/tcp/127.0.0.1/7000
printf 'GET /mcp/events HTTP/1.1\r\nHost: x\r\nx-api-key: %s\r\nLast-Event-ID: 7\r\nConnection: close\r\n\r\n' "$KEY" >&4
while read -r line <&4; do
    echo "$line" >> events
    case $line in *first*) break ;; esac
done
call delete "$KEY" DELETE /mcp/docs 'Mcp-Session-Id: s1'
cat <&4 >> events
call other "$KEY" POST /mcp/other
call below "$KEY" POST /mcp/docs/below
call above "$KEY" POST /mcp/docs/../../etc
call wrong-key nonsense POST /mcp/docs
call put "$KEY" PUT /mcp/docs
call moved "$KEY" GET /mcp/moved
call refused "$KEY" POST /mcp/refusing
call nobody "$KEY" POST /mcp/nobody
"#;

/// What can be done with the route from inside, by hand.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_declared_url_is_reached_through_the_route() {
    let outside = Outside::start();
    // Nobody listens there any more.
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr();
    let nobody = format!("http://{}/mcp", closed.unwrap());
    let home = Home::new();
    let mut task = task(&[]);
    task.mcp = McpServers::from([
        ("docs".to_owned(), remote(outside.url("/mcp"))),
        ("events".to_owned(), remote(outside.url("/events"))),
        ("moved".to_owned(), remote(outside.url("/moved"))),
        ("refusing".to_owned(), remote(outside.url("/refuse"))),
        ("nobody".to_owned(), remote(nobody)),
    ]);
    let mcp = RemoteMcpServers::take(&mut task.mcp, |_| Some(TOKEN.to_owned())).unwrap();
    let upstream = Upstream::start(|_, _| crate::support::says("ok")).unwrap();
    let plan = Plan {
        mcp,
        ..home.plan(task, BY_HAND, upstream.base_url())
    };
    let engine = home.engine().await;
    let result = run_one(&engine, plan, &CancellationToken::new()).await;
    engine.close().await;
    let said = |name: &str| result.files[&format!("/home/user/workdir/{name}")].as_str();
    let check = |name: &str, parts: &[&str]| {
        for part in parts {
            assert!(
                said(name).contains(part),
                "{name}: {part} is missing in {}",
                said(name)
            );
        }
    };
    check("good", &["200 OK", "mcp-session-id: s1", r#""result": {}"#]);
    check(
        "events",
        &["200 OK", "text/event-stream", "data: first", "data: second"],
    );
    check("delete", &["200 OK"]);
    let none = [
        "404",
        "declares no MCP server here; reachable over HTTP: docs, events, moved",
    ];
    for name in ["other", "below", "above"] {
        check(name, &none);
    }
    check("wrong-key", &["401", "unknown API key"]);
    check("put", &["405", "POST, GET and DELETE"]);
    check(
        "moved",
        &[
            "502",
            "redirect (307 Temporary Redirect), which is not followed",
        ],
    );
    check("refused", &["403", "not with ***"]);
    check(
        "nobody",
        &["502", "the MCP server `nobody` does not answer: "],
    );
    assert!(!is_kept(Path::new(&result.record), TOKEN));

    check_asked(&outside);
    // None of this is a model call.
    assert!(traced(&result).proxy_turns.is_empty() && upstream.requests().is_empty());
    assert!(result.proxy_log_tail.contains("mcp docs: POST 200 OK"));
}

fn check_asked(outside: &Outside) {
    let asked = outside.asked();
    let seen: Vec<_> = asked
        .iter()
        .map(|(method, path, _)| format!("{method} {path}"))
        .collect();
    assert_eq!(
        seen,
        [
            "POST /mcp",
            "GET /events",
            "DELETE /mcp",
            "GET /moved",
            "POST /refuse"
        ]
    );
    for (_, _, headers) in &asked {
        assert_eq!(headers["authorization"], format!("Bearer {TOKEN}"));
        assert_eq!(headers["host"], format!("127.0.0.1:{}", outside.port));
        assert!(headers.get("x-mine").is_none(), "{headers}");
    }
    assert_eq!(asked[0].2["mcp-session-id"], "s1");
    assert_eq!(asked[1].2["last-event-id"], "7");
}
