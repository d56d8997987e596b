//! `rollcage serve` as its users start and end it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

/// The server as a process of its own.
pub(crate) struct Server {
    child: Child,
    url: String,
    home: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(home: &tempfile::TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollcage"));
    command
        .arg("serve")
        .args(arguments)
        .env("ROLLCAGE_HOME", home.path())
        .env("TOKEN", "a-token-that-is-long")
        .env("OTHER", "another-token-as-long")
        .env("SHORT", "fifteen-letters")
        .env_remove("MAX_CONCURRENT_ENVS")
        .env_remove("OPENENV_MODE");
    command
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        Server::start_in(tempfile::tempdir().unwrap(), arguments)
    }

    /// With what there is in a home already.
    pub(crate) fn start_in(home: tempfile::TempDir, arguments: &[&str]) -> Self {
        let mut child = command(&home, arguments)
            .args(["--port", "0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.contains("MCPToolClient(base_url="), "{line}");
        let url = line
            .split_whitespace()
            .find(|word| word.starts_with("http://"))
            .unwrap()
            .to_owned();
        Server { child, url, home }
    }

    pub(crate) fn home(&self) -> &std::path::Path {
        self.home.path()
    }

    pub(crate) async fn text(&self, path: &str) -> String {
        let client = rollcage_proxy::outbound::client(&self.url).unwrap();
        let answer = client.get(format!("{}{path}", self.url)).send();
        answer.await.unwrap().text().await.unwrap()
    }

    pub(crate) fn post(&self, path: &str) -> reqwest::RequestBuilder {
        let client = rollcage_proxy::outbound::client(&self.url).unwrap();
        client.post(format!("{}{path}", self.url))
    }

    /// Status, headers and body as they are.
    pub(crate) async fn bytes(&self, token: &str, path: &str) -> (u16, HeaderMap, Vec<u8>) {
        let client = rollcage_proxy::outbound::client(&self.url).unwrap();
        let request = client.get(format!("{}{path}", self.url));
        let answer = request.bearer_auth(token).send().await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        (status, headers, answer.bytes().await.unwrap().to_vec())
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let client = rollcage_proxy::outbound::client(&self.url).unwrap();
        let answer = client.get(format!("{}{path}", self.url)).send();
        read(answer.await.unwrap()).await
    }

    pub(crate) async fn rpc(&self, token: &str, method: &str, params: Value) -> (u16, Value) {
        let body = json!({"jsonrpc": "2.0", "method": method, "params": params, "id": 1});
        let client = rollcage_proxy::outbound::client(&self.url).unwrap();
        let request = client.post(format!("{}/mcp", self.url)).bearer_auth(token);
        let request = request.header("content-type", "application/json");
        read(request.body(body.to_string()).send().await.unwrap()).await
    }

    fn signal(&self) {
        let id = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        kill(id, Signal::SIGTERM).unwrap();
    }
}

async fn read(answer: reqwest::Response) -> (u16, Value) {
    let status = answer.status().as_u16();
    (
        status,
        serde_json::from_str(&answer.text().await.unwrap()).unwrap(),
    )
}

#[tokio::test]
async fn it_serves_until_a_signal_ends_it() {
    let mut server = Server::start(&[]);
    assert_eq!(
        server.get("/health").await,
        (200, json!({"status": "healthy"}))
    );
    let (_, listed) = server.rpc("", "tools/list", json!({})).await;
    assert!(listed["result"]["tools"][0]["description"].is_string());
    server.signal();
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[tokio::test]
async fn it_is_ready_once_it_has_started_a_sandbox() {
    let server = Server::start(&["--token-env", "TOKEN"]);
    let ready = loop {
        let (status, standing) = server.get("/ready").await;
        if standing["reason"] != "starting" {
            break (status, standing);
        }
        assert_eq!(status, 503);
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    assert_eq!(ready, (200, json!({"ready": true})));
    assert_eq!(
        server.get("/health").await,
        (200, json!({"status": "healthy"}))
    );
    let client = rollcage_proxy::outbound::client(&server.url).unwrap();
    let request = client.get(format!("{}/openapi.json", server.url));
    let request = request.bearer_auth("a-token-that-is-long");
    let (_, document) = read(request.send().await.unwrap()).await;
    assert!(document["paths"]["/ready"]["get"].is_object());
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let mut server = Server::start(&["--grace", "3600"]);
    // A request whose body never comes keeps the server busy.
    use std::io::Write;
    let address = server.url.strip_prefix("http://").unwrap();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    // It says so when it starts to read the body.
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 100");
    server.signal();
    while std::net::TcpStream::connect(address).is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(server.child.try_wait().unwrap(), None);
    // The first that is not taken for an echo of the one before.
    while server.child.try_wait().unwrap().is_none() {
        server.signal();
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let code = server.child.wait().unwrap().code();
    assert_eq!(code, Some(130));
}

#[tokio::test]
async fn a_token_is_required() {
    let server = Server::start(&["--token-env", "TOKEN"]);
    assert_eq!(server.get("/health").await.0, 200);
    assert_eq!(server.get("/metadata").await.0, 401);
    let (status, created) = server
        .rpc("a-token-that-is-long", "openenv/session/create", json!({}))
        .await;
    assert_eq!(status, 200);
    assert!(created["result"]["session_id"].is_string());
}

/// The address of a service that only this machine should reach, named by a client.
#[tokio::test]
async fn who_may_name_internal_addresses_depends_on_who_the_clients_are() {
    let allowed = ["--token-env", "TOKEN", "--allow-url", "127.0.0.1:9"];
    for (arguments, expected) in [
        (&[][..], 202),
        (&allowed[..2], 400),
        (&allowed, 202),
        (&["--host", "0.0.0.0", "--without-token"], 400),
    ] {
        let server = Server::start(arguments);
        let client = rollcage_proxy::outbound::client(&server.url).unwrap();
        let body = json!({
            "instruction": "x", "agent": "nop", "base_url": "http://127.0.0.1:9", "api_key": "k", "model": "m",
        });
        let request = client.post(format!("{}/v1/rollouts", server.url));
        let request = request.bearer_auth("a-token-that-is-long");
        let request = request.header("content-type", "application/json");
        let answer = request.body(body.to_string()).send().await.unwrap();
        let (status, answer) = read(answer).await;
        assert_eq!(status, expected, "{arguments:?}: {answer}");
    }
}

#[test]
fn usage_errors_say_what_to_do() {
    for (arguments, expected) in [
        (&["--host", "0.0.0.0"][..], "--token-env VAR"),
        (
            &["--token-env", "NOT_SET_ANYWHERE"],
            "NOT_SET_ANYWHERE is not set",
        ),
        (&["--tasks", "/nonexistent"], "tasks /nonexistent"),
        (&["--name", "a/b"], "--name `a/b`"),
        (&["--grace", "0"], "must be between"),
        (&["--token-env", "SHORT"], "shorter than 16 characters"),
        (&["--allow-url", "10.0.0.0/99"], "ADDRESS/BITS"),
    ] {
        let home = tempfile::tempdir().unwrap();
        let output = command(&home, arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}

#[tokio::test]
async fn the_examples_are_a_folder_of_tasks() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let server = Server::start(&["--tasks", examples, "--name", "coding"]);
    assert_eq!(server.get("/list_environments").await.1, json!(["coding"]));
    let (status, splits) = server.get("/coding/splits").await;
    assert_eq!(
        (status, splits),
        (200, json!([{"name": "train", "type": "train"}]))
    );
}

#[tokio::test]
async fn agents_that_are_added_while_it_serves_are_known_at_once() {
    let server = Server::start(&[]);
    let known = async || {
        let (_, answer) = server.get("/v1/agents").await;
        let agents = answer["agents"].as_array().unwrap().iter();
        agents
            .map(|agent| agent["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let before = known().await;
    assert!(!before.contains(&"shell-loop".to_owned()), "{before:?}");
    let folder = server.home.path().join("agents");
    std::fs::create_dir_all(folder.join("shell-loop")).unwrap();
    let manifest = include_str!("../../../../manifests/shell-loop.toml");
    std::fs::write(folder.join("shell-loop.toml"), manifest).unwrap();
    // One that cannot be read hides no other.
    std::fs::write(folder.join("broken.toml"), "name = ").unwrap();
    let with = [vec!["shell-loop".to_owned()], before.clone()].concat();
    assert_eq!(known().await, with);
    std::fs::remove_file(folder.join("shell-loop.toml")).unwrap();
    assert_eq!(known().await, before);
}

#[tokio::test]
async fn it_is_not_ready_while_its_home_cannot_be_written() {
    let outside = tempfile::tempdir().unwrap();
    let server = Server::start(&[]);
    let ready = async || {
        let (status, answer) = server.get("/ready").await;
        (
            status,
            answer["reason"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let until = async |expected: u16| {
        for _ in 0..200 {
            let (status, reason) = ready().await;
            if status == expected {
                return reason;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("not {expected}");
    };
    until(200).await;
    let (home, away) = (server.home.path(), outside.path().join("away"));
    std::fs::rename(home, &away).unwrap();
    let reason = until(503).await;
    assert!(reason.starts_with("write to $ROLLCAGE_HOME: "), "{reason}");
    std::fs::rename(&away, home).unwrap();
    until(200).await;
}
