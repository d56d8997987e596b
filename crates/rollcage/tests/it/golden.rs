//! Conversations of real agents, recorded by `rollcage run`, asked again through the proxy: what goes up and what comes
//! down stays the same, byte for byte. And with the same requests: what can be captured of each agent at each endpoint.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rollcage_model::exchange::{self, Exchange};
use rollcage_testkit::upstream::{ReceivedRequest, Reply, StreamEnd, Upstream};
use rollcage_testkit::{anthropic, sglang};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::standalone::Proxy;
use crate::support::{says, streams};

const AGENTS: [&str; 6] = [
    "opencode",
    "claude",
    "codex",
    "gemini",
    "qwen",
    "mini-swe-agent",
];

/// Set it to write what is found instead of comparing with it.
const UPDATE: &str = "ROLLCAGE_UPDATE_GOLDEN";

fn golden(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("tests/golden").join(name)
}

/// What `rollcage run examples/fix-the-bug.toml --agent NAME` recorded.
fn recorded(agent: &str) -> Vec<Exchange> {
    let bytes = std::fs::read(golden(&format!("{agent}.rec"))).unwrap();
    let (exchanges, problems) = exchange::read(&bytes);
    assert_eq!(problems, Vec::<String>::new());
    assert!(exchanges.len() > 2, "a conversation of several turns");
    exchanges
}

/// An agent's request without its long texts, which are its makers' and say nothing about our work: for new recordings.
fn shorten(body: &[u8]) -> Vec<u8> {
    fn cut(value: &mut Value) {
        match value {
            Value::String(text) if text.chars().count() > 200 => {
                let start: String = text.chars().take(100).collect();
                *text = format!("{start} (cut)");
            }
            Value::Array(values) => values.iter_mut().for_each(cut),
            // A call's arguments are JSON in a string.
            Value::Object(members) => {
                let others = members.iter_mut().filter(|(name, _)| *name != "arguments");
                others.for_each(|(_, value)| cut(value));
            }
            _ => {}
        }
    }
    let mut value = serde_json::from_slice(body).unwrap();
    cut(&mut value);
    value.to_string().into_bytes()
}

/// Asks what an agent asked, as it asked it.
async fn ask(proxy: &Proxy, key: &str, exchange: &Exchange) -> (u16, String) {
    let request = &exchange.request;
    let mut url = format!("{}{}", proxy.url, request.path);
    if request.path.ends_with(":streamGenerateContent") {
        url.push_str("?alt=sse");
    }
    let mut asking = rollcage_proxy::outbound::client(&url)
        .unwrap()
        .post(url)
        .bearer_auth(key);
    // The client sets these itself.
    let own = ["content-length", "host", "connection", "transfer-encoding"];
    for (name, value) in &request.headers {
        if !own.contains(&name.as_str()) {
            asking = asking.header(name, value);
        }
    }
    let answer = asking.body(request.body.clone()).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

/// One exchange as both sides saw it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct ExchangeSeen {
    /// The request that the endpoint got. It is long, so it is kept as its length and a digest.
    up_bytes: usize,
    up_digest: String,
    /// What the agent got.
    down: String,
}

#[tokio::test]
async fn real_conversations_are_passed_on_as_they_were() {
    for agent in AGENTS {
        check_conversation(agent).await;
    }
}

async fn check_conversation(agent: &str) {
    let mut exchanges = recorded(agent);
    let is_update = std::env::var_os(UPDATE).is_some();
    if is_update {
        for exchange in &mut exchanges {
            exchange.request.body = shorten(&exchange.request.body).into();
        }
    }
    // What is to be answered next; before there is anything, the probe asks.
    let next: Arc<Mutex<Option<Reply>>> = Arc::default();
    let answering = Arc::clone(&next);
    let upstream = Upstream::start(move |_, asked| {
        let reply = answering.lock().unwrap().take();
        reply.unwrap_or_else(|| vllm(asked))
    })
    .unwrap();
    let proxy = Proxy::start(&upstream, &[]);
    let session = proxy.session(json!({})).await;
    let key = session["session_id"].as_str().unwrap().to_owned();
    let mut seen = Vec::new();
    for exchange in &exchanges {
        let response = exchange.response.as_ref().unwrap();
        *next.lock().unwrap() = Some(Reply::Whole {
            status: response.status.unwrap(),
            content_type: if response.is_stream {
                "text/event-stream"
            } else {
                "application/json"
            },
            body: response.text().into_owned(),
        });
        let (status, down) = ask(&proxy, &key, exchange).await;
        assert_eq!(status, 200, "{agent}: {down}");
        let up = upstream.requests().pop().unwrap().body;
        seen.push(ExchangeSeen {
            up_bytes: up.len(),
            up_digest: digest(up.as_bytes()),
            down: steady(&down),
        });
    }
    let path = golden(&format!("{agent}.json"));
    if is_update {
        std::fs::write(&path, serde_json::to_string_pretty(&seen).unwrap() + "\n").unwrap();
        std::fs::copy(proxy.record(), golden(&format!("{agent}.rec"))).unwrap();
        return;
    }
    for (again, before) in proxy.exchanges().iter().zip(&exchanges) {
        assert_eq!(again.request.body, before.request.body, "{agent}");
        assert_eq!(again.sent, before.sent, "{agent}: the translation");
    }
    let expect: Vec<ExchangeSeen> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(seen, expect, "{agent}");
}

fn digest(bytes: &[u8]) -> String {
    use sha1::Digest;
    let hash = sha1::Sha1::digest(bytes);
    hash.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// The same text whenever it was made: some dialects tell the time of an answer, and ids of ours are new each time.
fn steady(text: &str) -> String {
    let mut text = text.to_owned();
    for member in ["\"created_at\":", "\"completed_at\":", "\"created\":"] {
        let mut parts = text.split(member);
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let is_number = |character: char| character.is_ascii_digit() || character == '.';
            out.push_str(member);
            out.push('0');
            out.push_str(part.trim_start_matches(is_number));
        }
        text = out;
    }
    let mut out = String::new();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let is_other = |character: char| !character.is_ascii_hexdigit();
        let run = rest.find(is_other).unwrap_or(rest.len());
        out.push_str(if run == 32 { "ID" } else { &rest[..run] });
        let after = rest[run..].chars().next().map_or(0, char::len_utf8);
        out.push_str(&rest[run..run + after]);
        rest = &rest[run + after..];
    }
    out
}

/// An endpoint as it is known by what it gives.
struct EndpointKind {
    name: &'static str,
    arguments: &'static [&'static str],
    answer: fn(&ReceivedRequest) -> Reply,
}

const KINDS: [EndpointKind; 7] = [
    EndpointKind {
        name: "vLLM",
        arguments: &[],
        answer: vllm,
    },
    EndpointKind {
        name: "vLLM, streams lose ids",
        arguments: &[],
        answer: lossy,
    },
    EndpointKind {
        name: "SGLang",
        arguments: &[],
        answer: sglang::says,
    },
    EndpointKind {
        name: "SGLang, no ids in streams",
        arguments: &[],
        answer: sglang::says_without_sglext,
    },
    EndpointKind {
        name: "hosted, with logprobs",
        arguments: &[],
        answer: with_logprobs,
    },
    EndpointKind {
        name: "hosted, text alone",
        arguments: &[],
        answer: text_alone,
    },
    EndpointKind {
        name: "Anthropic",
        arguments: &["--upstream-dialect", "anthropic"],
        answer: |asked| anthropic::says(asked, "ok"),
    },
];

fn is_stream(asked: &ReceivedRequest) -> bool {
    asked.body.contains("\"stream\":true")
}

fn vllm(asked: &ReceivedRequest) -> Reply {
    if is_stream(asked) {
        streams(true, StreamEnd::Clean)
    } else {
        says("ok")
    }
}

fn lossy(asked: &ReceivedRequest) -> Reply {
    if is_stream(asked) {
        without(vllm(asked), &["token_ids"])
    } else {
        vllm(asked)
    }
}

fn with_logprobs(asked: &ReceivedRequest) -> Reply {
    without(vllm(asked), &["token_ids", "prompt_token_ids"])
}

fn text_alone(asked: &ReceivedRequest) -> Reply {
    without(vllm(asked), &["token_ids", "prompt_token_ids", "logprobs"])
}

/// The answer of an endpoint that does not know these members.
fn without(reply: Reply, members: &[&str]) -> Reply {
    let strip = |text: String| match serde_json::from_str::<Value>(&text) {
        Ok(mut value) => {
            for member in members {
                remove(&mut value, member);
            }
            value.to_string()
        }
        Err(_) => text,
    };
    match reply {
        Reply::Whole {
            status,
            content_type,
            body,
        } => Reply::Whole {
            status,
            content_type,
            body: strip(body),
        },
        Reply::Stream { data, ending } => Reply::Stream {
            data: data.into_iter().map(strip).collect(),
            ending,
        },
        other => other,
    }
}

fn remove(value: &mut Value, member: &str) {
    if let Some(object) = value.as_object_mut() {
        object.remove(member);
    }
    for choice in value["choices"].as_array_mut().into_iter().flatten() {
        if let Some(choice) = choice.as_object_mut() {
            choice.remove(member);
        }
    }
}

/// The level that one call of an agent gets, and how its answer came.
async fn capture(kind: &EndpointKind, agent: &str) -> String {
    let exchanges = recorded(agent);
    let answer = kind.answer;
    let upstream = Upstream::start(move |_, asked| answer(asked)).unwrap();
    let proxy = Proxy::start(&upstream, kind.arguments);
    let session = proxy.session(json!({})).await;
    let key = session["session_id"].as_str().unwrap();
    let (status, text) = ask(&proxy, key, &exchanges[0]).await;
    assert_eq!(status, 200, "{agent} at {}: {text}", kind.name);
    let path = format!("/sessions/{key}/rollout");
    let (_, document) = proxy.send("GET", &path, "", &json!({})).await;
    let document: Value = serde_json::from_str(&document).unwrap();
    let asked = proxy.exchanges().pop().unwrap();
    let response = asked.response.unwrap();
    let way = match (response.is_stream, response.is_replayed) {
        (true, _) => "live",
        (false, true) => "replayed",
        (false, false) => "whole",
    };
    format!("{}, {way}", document["capture_level"].as_str().unwrap())
}

#[tokio::test]
async fn what_is_captured_of_each_agent_at_each_endpoint_is_what_the_documents_say() {
    let mut cells: BTreeMap<(usize, usize), String> = BTreeMap::new();
    for (row, agent) in AGENTS.into_iter().enumerate() {
        for (column, kind) in KINDS.iter().enumerate() {
            cells.insert((row, column), capture(kind, agent).await);
        }
    }
    let mut table = String::from("| |");
    for kind in &KINDS {
        write!(table, " {} |", kind.name).unwrap();
    }
    write!(table, "\n|---|{}\n", "---|".repeat(KINDS.len())).unwrap();
    for (row, agent) in AGENTS.into_iter().enumerate() {
        write!(table, "| {agent} |").unwrap();
        for column in 0..KINDS.len() {
            write!(table, " {} |", cells[&(row, column)]).unwrap();
        }
        table.push('\n');
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/capture.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once("<!-- table -->\n").unwrap();
    let (shown, after) = rest.split_once("<!-- end -->").unwrap();
    if std::env::var_os(UPDATE).is_some() {
        let new = format!("{before}<!-- table -->\n{table}<!-- end -->{after}");
        std::fs::write(&path, new).unwrap();
        return;
    }
    assert_eq!(
        shown, table,
        "docs/capture.md is out of date: set {UPDATE}=1 to write it anew"
    );
}
