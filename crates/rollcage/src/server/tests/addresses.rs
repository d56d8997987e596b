//! Which addresses the clients of a server may use in URLs, over real sockets.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::Mutex;

use futures::future::BoxFuture;
use rollcage_proxy::outbound::{Guard, Resolver};
use rollcage_proxy::secret::Secret;
use rollcage_testkit::agent::ShellAgent;
use rollcage_testkit::upstream::{Reply, Upstream};

use super::*;
use crate::server::access::AccessToken;
use crate::server::harness;
use crate::server::listen::BODY_LIMIT;
use crate::server::rollouts::Backend;

const TOKEN: &str = "a-token-that-is-long";

/// An attacker's DNS: each query gets the next answer; the last one is repeated.
#[derive(Debug, Default)]
struct Names(Mutex<VecDeque<&'static str>>);

impl Names {
    fn of(answers: &[&'static str]) -> Arc<Self> {
        Arc::new(Names(Mutex::new(answers.iter().copied().collect())))
    }
}

impl Resolver for Names {
    fn resolve(&self, _: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let mut answers = self.0.lock().unwrap();
        let next = match answers.len() {
            0 | 1 => answers.front().copied(),
            _ => answers.pop_front(),
        };
        let next = next.map(|text| text.parse().unwrap());
        Box::pin(async move { Ok(next.into_iter().collect()) })
    }
}

/// A server that runs real rollouts for its clients.
struct Attacked {
    served: Served,
    backend: Arc<Backend>,
}

impl Attacked {
    async fn start(guard: Option<Arc<Guard>>, policy: AccessPolicy) -> Self {
        let backend = harness::backend_with(harness::limits(), BODY_LIMIT, |catalogue| {
            catalogue.guard = guard;
            catalogue.agents.push(ShellAgent::shared(
                r#"ask '{"model":"m","messages":[{"role":"user","content":"hi"}]}' > said"#,
            ));
        });
        let backend = backend.await;
        let options = ServerOptions {
            policy,
            extra: api::routes(Arc::clone(&backend)),
            ..options()
        };
        let served = Served::with(options).await;
        Attacked { served, backend }
    }

    /// Requires a token, as for remote clients.
    async fn with_tokens(allowed: &[&str], names: Arc<dyn Resolver>) -> Self {
        let allowed = allowed.iter().map(|rule| rule.parse().unwrap()).collect();
        let token = AccessToken {
            owner: harness::owner(),
            value: Secret::new(TOKEN),
        };
        let guard = Guard::with_resolver(allowed, names);
        Self::start(Some(guard), AccessPolicy::Tokens(vec![token])).await
    }

    async fn post(&self, arguments: Value) -> (u16, Value) {
        let url = self.served.url("/v1/rollouts");
        let request = self.served.client.post(url).bearer_auth(TOKEN);
        let request = request.header("content-type", "application/json");
        let answer = request.body(arguments.to_string()).send().await.unwrap();
        (answer.status().as_u16(), read(answer).await)
    }

    /// A rollout of the shell agent to its end.
    async fn roll_out(&self, base_url: &str) -> Value {
        let (status, taken) = self.post(asking(base_url)).await;
        assert_eq!(status, 202, "{taken}");
        let id = taken["rollout_id"].as_str().unwrap();
        let url = self.served.url(&format!("/v1/rollouts/{id}"));
        loop {
            let request = self.served.client.get(&url).bearer_auth(TOKEN);
            let result = read(request.send().await.unwrap()).await;
            if result["status"] == "ended" {
                return result;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn close(self) {
        harness::close(&self.backend).await;
    }
}

fn asking(base_url: &str) -> Value {
    json!({"instruction": "x", "agent": "shell", "base_url": base_url, "api_key": "k", "model": "m"})
}

/// A service that only this machine should reach. Connections stay in the kernel's queue until the test checks for
/// them.
struct Internal(std::net::TcpListener);

impl Internal {
    fn new() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Internal(listener)
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    #[track_caller]
    fn check_untouched(&self) {
        let accepted = self.0.accept().map(|(_, peer)| peer);
        assert!(accepted.is_err(), "{accepted:?} connected");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn internal_addresses_are_refused_at_once_however_they_are_spelled() {
    let internal = Internal::new();
    let server = Attacked::with_tokens(&[], Names::of(&["127.0.0.1"])).await;
    let hosts = [
        "127.0.0.1",
        "localhost",
        "localhost.",
        "LOCALHOST",
        "anything.example",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "0.0.0.0",
        "[::]",
        "0",
        "2130706433",
        "0x7f.1",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "127.0.0.1.",
        "１２７.0.0.1",
        "127.8.9.10",
        "169.254.169.254",
        "168.63.129.16",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
    ];
    for host in hosts {
        let url = format!("http://{host}:{}", internal.port());
        let secure = format!("https://{host}:{}/v1", internal.port());
        let attacks = [
            asking(&url),
            asking(&secure),
            json!({"instruction": "x", "agent": "shell", "endpoint": "vllm", "vllm_url": url}),
            json!({"instruction": "x", "agent": "shell", "endpoint": "ollama", "base_url": url, "model": "m"}),
            json!({"instruction": "x", "agent": "nop", "mcp": {"a": {"url": url}}}),
            json!({"instruction": "x", "agent": "nop", "mcp": {"a": {"url": secure}}}),
        ];
        for attack in attacks {
            let (status, answer) = server.post(attack.clone()).await;
            assert_eq!(status, 400, "{attack}: {answer}");
            let text = answer["error"]["message"].as_str().unwrap();
            assert!(text.contains("--allow-url"), "{attack}: {text}");
        }
    }
    internal.check_untouched();
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_changes_after_it_was_checked_gains_nothing() {
    let internal = Internal::new();
    let names = Names::of(&["8.8.8.8", "127.0.0.1"]);
    let server = Attacked::with_tokens(&[], names).await;
    let url = format!("http://rebinding.example:{}", internal.port());
    let result = server.roll_out(&url).await;
    assert_eq!(result["ended"], "upstream_failed", "{result}");
    let error = result["error"].as_str().unwrap();
    assert!(error.contains("--allow-url rebinding.example"), "{error}");
    internal.check_untouched();
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_leads_nowhere() {
    let internal = Internal::new();
    let location = format!("Location: http://127.0.0.1:{}/v1\r\n", internal.port());
    let headers: &'static str = location.leak();
    let upstream = Upstream::start(move |_, _| Reply::Refusal {
        status: 307,
        headers,
        body: String::new(),
    });
    let upstream = upstream.unwrap();
    let here = upstream.base_url().trim_end_matches("/v1").to_owned();
    let server = Attacked::with_tokens(&[&here], Names::of(&[])).await;
    let result = server.roll_out(upstream.base_url()).await;
    assert_eq!(result["ended"], "upstream_failed", "{result}");
    assert!(result["error"].as_str().unwrap().contains("307"));
    internal.check_untouched();
    server.close().await;
}

fn model() -> Upstream {
    let body = json!({
        "id": "c1", "object": "chat.completion", "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "found"}}],
        "usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6},
    });
    let body = body.to_string();
    let upstream = Upstream::start(move |_, _| Reply::Whole {
        status: 200,
        content_type: "application/json",
        body: body.clone(),
    });
    upstream.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_operator_allows_is_reached() {
    let upstream = model();
    let url: reqwest::Url = upstream.base_url().parse().unwrap();
    let port = url.port().unwrap();
    let by_name = format!("model.example:{port}");
    let by_address = "127.0.0.0/8".to_owned();
    let reached = [
        // Any name that resolves into an allowed network, and an allowed name wherever it resolves to.
        (by_address, format!("http://model.example:{port}")),
        ("127.0.0.1".to_owned(), upstream.base_url().to_owned()),
        (by_name, format!("http://model.example:{port}/other")),
    ];
    for (rule, base_url) in reached {
        let server = Attacked::with_tokens(&[&rule], Names::of(&["127.0.0.1"])).await;
        let (status, answer) = server.post(asking(&base_url)).await;
        assert_eq!(status, 202, "{rule}: {answer}");
        // A trusted name is resolved by the operating system, which does not know this one.
        if !rule.starts_with("model.example") {
            let result = server.roll_out(&base_url).await;
            assert_eq!(result["ended"], "completed", "{rule}: {result}");
            let said = result["files"]["/home/user/workdir/said"].as_str().unwrap();
            assert!(said.contains("found"), "{result}");
        }
        let (status, _) = server.post(asking("http://10.0.0.1")).await;
        assert_eq!(status, 400, "{rule} allows nothing else");
        server.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_loopback_without_tokens_has_no_guard() {
    let upstream = model();
    let server = Attacked::start(None, AccessPolicy::Loopback).await;
    let result = server.roll_out(upstream.base_url()).await;
    assert_eq!(result["ended"], "completed", "{result}");
    server.close().await;
}
