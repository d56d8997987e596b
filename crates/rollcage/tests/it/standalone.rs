//! `rollcage proxy` as a harness of somebody else's meets it: sessions, dialects, budgets, retries.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rollcage_model::exchange::{self, Exchange};
use rollcage_testkit::sglang;
use rollcage_testkit::upstream::{ReceivedRequest, Reply, StreamEnd, Upstream};
use serde_json::{Value, json};

use crate::support::{API_KEY, says, streams};

mod tries;

const ADMIN_KEY: &str = "admin-secret-long-enough";

/// The proxy as a process of its own.
pub(crate) struct Proxy {
    child: Child,
    pub(crate) url: String,
    home: tempfile::TempDir,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Proxy {
    pub(crate) fn start(upstream: &Upstream, extra: &[&str]) -> Self {
        let common = [
            "--model",
            "test-model",
            "--upstream-key-env",
            "UPSTREAM_KEY",
        ];
        let arguments = [&["--upstream", upstream.base_url()], &common[..], extra].concat();
        Self::start_with(
            &arguments,
            &[("UPSTREAM_KEY", API_KEY), ("ADMIN", ADMIN_KEY)],
        )
    }

    fn start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_rollcage"))
            .args(["proxy", "--port", "0"])
            .args(arguments)
            .env("ROLLCAGE_HOME", home.path())
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let url = line
            .split_whitespace()
            .find(|word| word.starts_with("http://"))
            .unwrap()
            .to_owned();
        Proxy { child, url, home }
    }

    pub(crate) async fn session(&self, wanted: Value) -> Value {
        let (status, answer) = self.send("POST", "/sessions", "", &wanted).await;
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    /// The record of the only session.
    pub(crate) fn record(&self) -> PathBuf {
        let sessions = self.home.path().join("sessions");
        let mut files: Vec<_> = std::fs::read_dir(sessions).unwrap().flatten().collect();
        assert_eq!(files.len(), 1);
        files.remove(0).path()
    }

    /// What was recorded of the only session.
    pub(crate) fn exchanges(&self) -> Vec<Exchange> {
        let (exchanges, problems) = exchange::read(&std::fs::read(self.record()).unwrap());
        assert_eq!(problems, Vec::<String>::new());
        exchanges
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        key: &str,
        body: &Value,
    ) -> (u16, String) {
        let (status, text, is_whole) = self.read(method, path, key, body).await;
        assert!(is_whole, "{path}: the answer broke off: {text}");
        (status, text)
    }

    /// As `send`, for an answer that may break off. The last value is whether it came to its end.
    pub(crate) async fn read(
        &self,
        method: &str,
        path: &str,
        key: &str,
        body: &Value,
    ) -> (u16, String, bool) {
        let client = rollcage_proxy::outbound::client(&self.url).unwrap();
        let method = method.parse().unwrap();
        let request = client
            .request(method, format!("{}{path}", self.url))
            .header("content-type", "application/json; charset=utf-8")
            .bearer_auth(key);
        let mut answer = request.body(body.to_string()).send().await.unwrap();
        let (status, mut bytes) = (answer.status().as_u16(), Vec::new());
        let is_whole = loop {
            match answer.chunk().await {
                Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        (status, String::from_utf8(bytes).unwrap(), is_whole)
    }
}

#[tokio::test]
async fn an_endpoint_is_named_as_it_is_for_rollouts() {
    let upstream = Upstream::start(vllm).unwrap();
    let variables = [("VLLM_URL", upstream.base_url()), ("VLLM_API_KEY", API_KEY)];
    for arguments in [
        &["--upstream", "vllm/test-model"][..],
        &["--upstream", "vllm", "--model", "test-model"],
    ] {
        let proxy = Proxy::start_with(arguments, &variables);
        let session = proxy.session(json!({})).await;
        assert_eq!(session["capture_level"], "tokens");
        let key = session["session_id"].as_str().unwrap();
        let path = "/v1/chat/completions";
        assert_eq!(proxy.send("POST", path, key, &chat()).await.0, 200);
        let asked = upstream.requests().pop().unwrap();
        let key = ("authorization".to_owned(), format!("Bearer {API_KEY}"));
        assert!(asked.headers.contains(&key), "{:?}", asked.headers);
        assert!(asked.body.contains("\"model\":\"test-model\""));
    }
}

#[test]
fn a_signal_right_after_its_address_ends_it_in_order() {
    let upstream = Upstream::start(vllm).unwrap();
    let mut proxy = Proxy::start(&upstream, &[]);
    let id = proxy.child.id().to_string();
    let mut kill = Command::new("/bin/sh");
    kill.args(["-c", &format!("kill -TERM {id}")]);
    assert!(kill.status().unwrap().success());
    assert_eq!(proxy.child.wait().unwrap().code(), Some(0));
}

/// Answers what the probe and agents ask, in the mode they ask for.
fn vllm(_: usize, asked: &ReceivedRequest) -> Reply {
    if asked.body.contains("\"stream\":true") {
        streams(true, StreamEnd::Clean)
    } else {
        says("ok")
    }
}

pub(crate) fn chat() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function", "function": {"name": "bash", "parameters": {}}}]})
}

#[tokio::test]
async fn a_session_is_captured_and_exported_as_openenv_does() {
    let upstream = Upstream::start(vllm).unwrap();
    let proxy = Proxy::start(&upstream, &[]);
    let session = proxy.session(json!({"metadata": {"task": "t1"}})).await;
    assert_eq!(
        (&session["capture_level"], &session["rollout_type"]),
        (&json!("tokens"), &json!("train"))
    );
    let key = session["session_id"].as_str().unwrap();
    assert_eq!(
        proxy
            .send("POST", "/v1/chat/completions", "sk-other", &chat())
            .await
            .0,
        401
    );
    let (status, answer) = proxy
        .send("POST", "/v1/chat/completions", key, &chat())
        .await;
    assert_eq!(status, 200, "{answer}");
    assert!(!answer.contains("token_ids"), "{answer}");

    let (_, document) = proxy
        .send("GET", &format!("/sessions/{key}/rollout"), "", &json!({}))
        .await;
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["metadata"], json!({"task": "t1"}));
    assert_eq!(
        document["sequences"][0]["input_ids"],
        json!([1, 2, 3, 4, 7, 8])
    );
    assert_eq!(
        document["sequences"][0]["loss_mask"],
        json!([0, 0, 0, 0, 1, 1])
    );
    let (status, entries) = proxy
        .send(
            "GET",
            &format!("/sessions/{key}/trace_entries"),
            "",
            &json!({}),
        )
        .await;
    assert_eq!(status, 200, "{entries}");
    let (_, list) = proxy.send("GET", "/sessions", "", &json!({})).await;
    assert!(
        list.contains(key) && list.contains("\"task\":\"t1\""),
        "{list}"
    );
    let (_, deleted) = proxy
        .send("DELETE", &format!("/sessions/{key}"), "", &json!({}))
        .await;
    assert_eq!(deleted, r#"{"deleted":true}"#);
    assert_eq!(
        proxy
            .send("GET", &format!("/sessions/{key}"), "", &json!({}))
            .await
            .0,
        404
    );
}

#[tokio::test]
async fn every_dialect_is_answered_in_its_own_shape_and_captured() {
    let upstream = Upstream::start(vllm).unwrap();
    let proxy = Proxy::start(&upstream, &[]);
    let message = json!([{"role": "user", "content": "hi"}]);
    let anthropic = json!({"model": "m", "max_tokens": 10, "messages": message, "tools": [{"name": "bash", "input_schema": {"type": "object"}}]});
    let responses = json!({"model": "m", "input": "hi", "tools": [{"type": "function", "name": "bash", "parameters": {}}]});
    let gemini = json!({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]});
    let streamed = |body: &Value| {
        let mut body = body.clone();
        body["stream"] = json!(true);
        body
    };
    let cases = [
        (
            "/v1/messages",
            anthropic.clone(),
            "\"stop_reason\":\"end_turn\"",
        ),
        ("/v1/messages", streamed(&anthropic), "event: message_stop"),
        ("/v1/responses", responses.clone(), "\"output_text\""),
        (
            "/v1/responses",
            streamed(&responses),
            "event: response.completed",
        ),
        (
            "/v1beta/models/m:generateContent",
            gemini.clone(),
            "\"finishReason\":\"STOP\"",
        ),
        (
            "/v1/models/m:generateContent",
            gemini.clone(),
            "\"finishReason\":\"STOP\"",
        ),
        (
            "/v1beta/models/m:streamGenerateContent?alt=sse",
            gemini.clone(),
            "data: {",
        ),
        ("/v1/chat/completions", streamed(&chat()), "data: [DONE]"),
    ];
    for (path, body, expect) in cases {
        let session = proxy.session(json!({})).await;
        let key = session["session_id"].as_str().unwrap();
        let (status, answer) = proxy.send("POST", path, key, &body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        assert!(
            answer.contains(expect) && answer.contains("ok"),
            "{path}: {answer}"
        );
        assert!(
            path.contains("chat") || !answer.contains("[DONE]"),
            "{path}: {answer}"
        );
        let (_, document) = proxy
            .send("GET", &format!("/sessions/{key}/rollout"), "", &json!({}))
            .await;
        let document: Value = serde_json::from_str(&document).unwrap();
        assert_eq!(
            document["sequences"][0]["input_ids"],
            json!([1, 2, 3, 4, 7, 8]),
            "{path}: {document}"
        );
        assert_eq!(document["trainable"], true, "{path}");
    }
}

#[tokio::test]
async fn requests_that_are_not_model_calls_are_answered_and_not_recorded() {
    let upstream = Upstream::start(vllm).unwrap();
    let proxy = Proxy::start(&upstream, &[]);
    let session = proxy.session(json!({})).await;
    let key = session["session_id"].as_str().unwrap();
    let probes = upstream.requests().len();
    let (_, counted) = proxy
        .send(
            "POST",
            "/v1/messages/count_tokens",
            key,
            &json!({"messages": []}),
        )
        .await;
    assert!(counted.contains("input_tokens"), "{counted}");
    let (_, counted) = proxy
        .send(
            "POST",
            "/v1beta/models/m:countTokens",
            key,
            &json!({"contents": []}),
        )
        .await;
    assert!(counted.contains("totalTokens"), "{counted}");
    assert!(
        proxy
            .send("GET", "/v1/models", key, &json!({}))
            .await
            .1
            .contains("test-model")
    );
    assert_eq!(proxy.send("HEAD", "/", "", &json!({})).await.0, 200);
    let (_, status) = proxy
        .send("GET", &format!("/sessions/{key}"), "", &json!({}))
        .await;
    assert!(status.contains("\"n_turns\":0"), "{status}");
    assert_eq!(
        upstream.requests().len(),
        probes,
        "nothing of it went upstream"
    );
}

#[tokio::test]
async fn at_the_limit_every_dialect_gets_a_last_answer() {
    let upstream = Upstream::start(vllm).unwrap();
    let proxy = Proxy::start(&upstream, &[]);
    let session = proxy.session(json!({"max_model_calls": 1})).await;
    let key = session["session_id"].as_str().unwrap();
    assert_eq!(
        proxy
            .send("POST", "/v1/chat/completions", key, &chat())
            .await
            .0,
        200
    );
    let asked = upstream.requests().len();
    let message = json!([{"role": "user", "content": "hi"}]);
    let cases = [
        ("/v1/chat/completions", chat(), "\"finish_reason\":\"stop\""),
        (
            "/v1/chat/completions",
            json!({"stream": true, "messages": message}),
            "data: [DONE]",
        ),
        (
            "/v1/messages",
            json!({"model": "m", "max_tokens": 9, "stream": true, "messages": message}),
            "message_stop",
        ),
        (
            "/v1/responses",
            json!({"model": "m", "input": "hi", "stream": true}),
            "response.completed",
        ),
        (
            "/v1beta/models/m:streamGenerateContent?alt=sse",
            json!({"contents": [{"parts": [{"text": "hi"}]}]}),
            "STOP",
        ),
    ];
    for (path, body, expect) in &cases {
        let (status, answer) = proxy.send("POST", path, key, body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        assert!(
            answer.contains("budget of this task is used up") && answer.contains(expect),
            "{path}: {answer}"
        );
    }
    assert_eq!(upstream.requests().len(), asked);
    let (_, document) = proxy
        .send("GET", &format!("/sessions/{key}/rollout"), "", &json!({}))
        .await;
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["budget_stop_count"], cases.len());
    assert_eq!(document["stats"]["n_turns"], 1, "a last answer is no turn");
}

#[tokio::test]
async fn the_session_routes_require_the_admin_key() {
    let upstream = Upstream::start(vllm).unwrap();
    let proxy = Proxy::start(&upstream, &["--admin-key-env", "ADMIN"]);
    assert_eq!(proxy.send("GET", "/sessions", "", &json!({})).await.0, 401);
    assert_eq!(
        proxy
            .send("GET", "/sessions", "admin-secreT", &json!({}))
            .await
            .0,
        401
    );
    assert_eq!(
        proxy
            .send("GET", "/sessions", ADMIN_KEY, &json!({}))
            .await
            .0,
        200
    );
    let output = Command::new(env!("CARGO_BIN_EXE_rollcage"))
        .args([
            "proxy",
            "--upstream",
            upstream.base_url(),
            "--host",
            "0.0.0.0",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--admin-key-env"));
}

/// Each client asks something of its own over and over, and remembers what it was answered.
async fn ask_until_it_ends(url: String, key: String, client: usize) -> Vec<String> {
    let mut answered = Vec::new();
    let http = rollcage_proxy::outbound::client(&url).unwrap();
    for number in 0.. {
        let text = format!("question {client}-{number} {}", "x".repeat(5000));
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": text}]});
        let is_stream = number % 2 == 1;
        body["stream"] = json!(is_stream);
        let request = http
            .post(format!("{url}/v1/chat/completions"))
            .header("content-type", "application/json")
            .bearer_auth(&key)
            .body(body.to_string());
        let Ok(answer) = request.send().await else {
            break;
        };
        // Only an answer that came whole counts.
        match answer.text().await {
            Ok(text) if text.contains("[DONE]") || !is_stream && text.ends_with('}') => {}
            _ => break,
        }
        answered.push(format!("question {client}-{number} "));
    }
    answered
}

#[tokio::test]
async fn what_was_answered_is_in_the_record_whenever_the_proxy_is_killed() {
    let upstream = Upstream::start(vllm).unwrap();
    let mut proxy = Proxy::start(&upstream, &[]);
    let session = proxy.session(json!({})).await;
    let key = session["session_id"].as_str().unwrap();
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..4 {
        clients.spawn(ask_until_it_ends(proxy.url.clone(), key.to_owned(), client));
    }
    while upstream.requests().len() < 60 {
        tokio::task::yield_now().await;
    }
    // SIGKILL.
    proxy.child.kill().unwrap();
    let answered = clients.join_all().await.concat();
    assert!(answered.len() > 20, "{answered:?}");
    let sessions = proxy.home.path().join("sessions");
    let file = std::fs::read_dir(sessions)
        .unwrap()
        .flatten()
        .next()
        .unwrap();
    let (exchanges, problems) = exchange::read(&std::fs::read(file.path()).unwrap());
    assert!(
        problems.len() <= 1 && problems.iter().all(|it| it.contains("torn")),
        "{problems:?}"
    );
    for question in answered {
        let found = exchanges
            .iter()
            .find(|it| it.request.text().contains(&question));
        let response = found.and_then(|it| it.response.as_ref());
        let response =
            response.unwrap_or_else(|| panic!("{question} was answered and is not there"));
        assert_eq!(
            (response.status, &response.error),
            (Some(200), &None),
            "{question}"
        );
        assert!(
            response.text().contains("\"finish_reason\":\"stop\""),
            "{question}"
        );
    }
}

#[tokio::test]
async fn with_an_admin_key_sessions_name_public_addresses_and_what_is_allowed() {
    let upstream = Upstream::start(vllm).unwrap();
    let other = Upstream::start(vllm).unwrap();
    let wanted = json!({"llm_url": other.base_url(), "model": "m", "api_key": "k-2"});
    let place = other.base_url().trim_end_matches("/v1");
    let key = ["--admin-key-env", "ADMIN"];
    for (arguments, expected) in [
        (&[][..], 200),
        (&key[..], 400),
        (&[&key[..], &["--allow-url", place]].concat(), 200),
    ] {
        let proxy = Proxy::start(&upstream, arguments);
        let (status, answer) = proxy.send("POST", "/sessions", ADMIN_KEY, &wanted).await;
        assert_eq!(status, expected, "{arguments:?}: {answer}");
        assert_eq!(answer.contains("--allow-url"), expected == 400, "{answer}");
    }
}

/// What a page in a browser on this machine can send: under a name that it points here, or across origins.
#[tokio::test]
async fn a_web_page_cannot_use_it() {
    let upstream = Upstream::start(vllm).unwrap();
    let proxy = Proxy::start(&upstream, &[]);
    let session = proxy.session(json!({})).await;
    let key = session["session_id"].as_str().unwrap();
    let asked = upstream.requests().len();
    let client = rollcage_proxy::outbound::client(&proxy.url).unwrap();
    let attacks = [
        ("host", "evil.example:8100", 403),
        ("host", "127.0.0.1.evil.example", 403),
        ("origin", "https://evil.example", 403),
        ("origin", "null", 403),
        ("origin", "http://localhost:3000", 403),
        ("content-type", "text/plain;charset=UTF-8", 415),
        ("content-type", "application/x-www-form-urlencoded", 415),
        ("content-type", "multipart/form-data; boundary=x", 415),
        ("x-nothing", "said", 415),
    ];
    for path in ["/sessions", "/v1/chat/completions", "/v1/messages"] {
        for (name, value, expected) in attacks {
            let request = client.post(format!("{}{path}", proxy.url)).bearer_auth(key);
            let request = match expected {
                415 => request,
                _ => request.header("content-type", "application/json"),
            };
            let body = chat().to_string();
            let answer = request.header(name, value).body(body).send().await.unwrap();
            assert_eq!(answer.status(), expected, "{path} {name}: {value}");
        }
    }
    for path in [
        "/sessions",
        &format!("/sessions/{key}/rollout"),
        "/v1/models",
    ] {
        let request = client.get(format!("{}{path}", proxy.url)).bearer_auth(key);
        let request = request.header("host", "evil.example");
        assert_eq!(request.send().await.unwrap().status(), 403, "{path}");
    }
    assert_eq!(upstream.requests().len(), asked);
    let (_, listed) = proxy.send("GET", "/sessions", "", &json!({})).await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1);
    // A page whose origin is allowed, and a request that says nothing.
    let proxy = Proxy::start(&upstream, &["--allow-origin", "http://localhost:3000"]);
    for (origin, expected) in [
        (Some("http://localhost:3000"), 200),
        (Some("http://localhost:3001"), 403),
        (None, 200),
    ] {
        let mut request = client.post(format!("{}/sessions", proxy.url));
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        assert_eq!(
            request.send().await.unwrap().status(),
            expected,
            "{origin:?}"
        );
    }
}

#[tokio::test]
async fn wrong_admin_keys_are_refused_and_soon_not_even_looked_at() {
    let upstream = Upstream::start(vllm).unwrap();
    let arguments = ["--admin-key-env", "ADMIN", "--trust-proxy", "127.0.0.1"];
    let proxy = Proxy::start(&upstream, &arguments);
    let client = rollcage_proxy::outbound::client(&proxy.url).unwrap();
    let ask = async |key: &str, from: &str| {
        let request = client
            .get(format!("{}/sessions", proxy.url))
            .bearer_auth(key);
        let request = request.header("x-forwarded-for", from);
        request.send().await.unwrap().status().as_u16()
    };
    for _ in 0..10 {
        assert_eq!(ask("a-key-that-is-wrong", "192.0.2.1").await, 401);
    }
    assert_eq!(ask(ADMIN_KEY, "192.0.2.1").await, 429);
    assert_eq!(ask(ADMIN_KEY, "192.0.2.2").await, 200);
}

#[tokio::test]
async fn a_key_in_the_query_is_geminis_alone() {
    let upstream = Upstream::start(vllm).unwrap();
    let proxy = Proxy::start(&upstream, &[]);
    let session = proxy.session(json!({})).await;
    let key = session["session_id"].as_str().unwrap();
    let client = rollcage_proxy::outbound::client(&proxy.url).unwrap();
    let gemini = json!({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]});
    for (path, body, expected) in [
        ("/v1beta/models/m:generateContent", &gemini, 200),
        ("/v1/chat/completions", &chat(), 401),
        ("/v1/messages", &chat(), 401),
        ("/v1/responses", &chat(), 401),
    ] {
        let request = client.post(format!("{}{path}?key={key}", proxy.url));
        let request = request.header("content-type", "application/json");
        let answer = request.body(body.to_string()).send().await.unwrap();
        assert_eq!(answer.status(), expected, "{path}");
    }
}

#[test]
fn a_short_admin_key_is_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_rollcage"))
        .args([
            "proxy",
            "--upstream",
            "http://127.0.0.1:9",
            "--admin-key-env",
            "SHORT",
        ])
        .env("SHORT", "fifteen-letters")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("shorter than 16 characters"), "{error}");
    assert!(!error.contains("fifteen-letters"), "{error}");
}

/// The resident memory of the proxy at its highest.
fn memory_peak_mib(proxy: &Proxy) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() / 1024
}

/// An endpoint that never stops answering, in chunks of this.
fn endless(head: &'static str, chunk: Vec<u8>) -> std::net::SocketAddr {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let chunk = chunk.clone();
            std::thread::spawn(move || {
                let mut seen = [0; 64 << 10];
                let count = std::io::Read::read(&mut stream, &mut seen).unwrap_or(0);
                if seen[..count].starts_with(b"GET") {
                    let body =
                        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
                    let _ = stream.write_all(body.as_bytes());
                    return;
                }
                let _ = stream.write_all(head.as_bytes());
                // Twice of what an answer may be, and a little.
                let mut left = (513 << 20) / chunk.len();
                let size = format!("{:x}\r\n", chunk.len());
                while left > 0
                    && stream.write_all(size.as_bytes()).is_ok()
                    && stream.write_all(&chunk).is_ok()
                    && stream.write_all(b"\r\n").is_ok()
                {
                    left -= 1;
                }
            });
        }
    });
    address
}

const HUGE_JSON: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
const HUGE_EVENTS: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_end_costs_no_more_than_its_limit() {
    let mut comment = vec![b'x'; 1 << 20];
    comment[0] = b':';
    comment.extend_from_slice(b"\n\n");
    let mut line = b"data: ".to_vec();
    line.resize(1 << 20, b'x');
    for (head, chunk, expected) in [
        (HUGE_JSON, vec![b' '; 1 << 20], "larger than"),
        (HUGE_EVENTS, comment, "larger than"),
        (HUGE_EVENTS, line, "longer than"),
    ] {
        let address = endless(head, chunk);
        let url = format!("http://{address}");
        let upstream = Upstream::start(vllm).unwrap();
        let proxy = Proxy::start(&upstream, &[]);
        // An endpoint that says nothing of tokens is asked live.
        let wanted =
            json!({"llm_url": url, "model": "claude", "api_key": "k-2", "provider": "anthropic"});
        let session = proxy.session(wanted).await;
        let key = session["session_id"].as_str().unwrap();
        let client = rollcage_proxy::outbound::client(&proxy.url).unwrap();
        let is_stream = head == HUGE_EVENTS;
        let body = json!({"model": "m", "max_tokens": 9, "stream": is_stream, "messages": [{"role": "user", "content": "hi"}]});
        let request = client.post(format!("{}/v1/messages", proxy.url));
        let request = request.header("content-type", "application/json");
        let request = request.bearer_auth(key).body(body.to_string());
        // It is broken off by a reset, which may overtake the head of the answer.
        if let Ok(mut answer) = request.send().await {
            while let Ok(Some(_)) = answer.chunk().await {}
        }
        let response = loop {
            match proxy.exchanges().pop().unwrap().response {
                Some(response) => break response,
                None => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            }
        };
        let error = response.error.unwrap();
        assert!(error.contains(expected), "{error}");
        let peak = memory_peak_mib(&proxy);
        assert!(peak < 320, "{expected}: {peak} MiB");
    }
}

/// The endpoint's key in an answer that is no error: whole, in a header, and torn between the chunks of a stream.
#[tokio::test]
async fn a_key_that_is_echoed_in_a_good_answer_is_removed() {
    let upstream = Upstream::start(|_, asked| {
        let (one, two) = API_KEY.split_at(9);
        if !asked.body.contains("echo") {
            return vllm(0, asked);
        }
        if asked.body.contains("\"stream\":true") {
            let events = vec![
                "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"your key is ".to_owned(),
                one.to_owned(),
                format!("{two}, is it not\"}}}}]}}\n\ndata: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"stop\"}}]}}\n\n"),
                "data: [DONE]\n\n".to_owned(),
            ];
            return Reply::Events {
                events,
                ending: StreamEnd::Clean,
            };
        }
        says(&format!("your key is {API_KEY}, is it not"))
    })
    .unwrap();
    let proxy = Proxy::start(&upstream, &[]);
    let session = proxy.session(json!({})).await;
    let key = session["session_id"].as_str().unwrap();
    for is_stream in [false, true] {
        let body = json!({"model": "m", "stream": is_stream, "messages": [{"role": "user", "content": "echo"}]});
        let (status, answer) = proxy.send("POST", "/v1/chat/completions", key, &body).await;
        assert_eq!(status, 200, "{answer}");
        assert!(!answer.contains(API_KEY), "{answer}");
        assert!(answer.contains("your key is ***, is it not"), "{answer}");
    }
    let record = std::fs::read(proxy.record()).unwrap();
    let bodies: Vec<_> = proxy
        .exchanges()
        .into_iter()
        .map(|exchange| exchange.response.unwrap().text().into_owned())
        .collect();
    assert!(!String::from_utf8_lossy(&record).contains(API_KEY));
    assert!(
        bodies.iter().all(|body| body.contains("key is ***")),
        "{bodies:?}"
    );
    // What is no key is as it was.
    let (_, answer) = proxy
        .send("POST", "/v1/chat/completions", key, &chat())
        .await;
    assert!(answer.contains("\"content\":\"ok\""), "{answer}");
}
