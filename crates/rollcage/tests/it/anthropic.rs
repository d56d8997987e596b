//! Agents of all four dialects before an endpoint that speaks Anthropic.

use std::sync::atomic::{AtomicUsize, Ordering};

use rollcage_dialect::{Dialect, EndpointDialect};
use rollcage_testkit::anthropic::{self, CALL_ID, SIGNATURE};
use rollcage_testkit::upstream::{ReceivedRequest, Reply, StreamEnd, Upstream};
use serde_json::{Value, json};

use crate::standalone::Proxy;
use crate::support::API_KEY;

const ANTHROPIC: [&str; 2] = ["--upstream-dialect", "anthropic"];

/// A call first; the end once there is a result.
fn claude(_: usize, asked: &ReceivedRequest) -> Reply {
    if asked.path.contains("/count_tokens") {
        let body = r#"{"input_tokens":4711}"#.to_owned();
        return Reply::Whole {
            status: 200,
            content_type: "application/json",
            body,
        };
    }
    if asked.body.contains("tool_result") {
        anthropic::says(asked, "Done: é.")
    } else {
        anthropic::calls(asked)
    }
}

async fn open(upstream: &Upstream, wanted: Value) -> (Proxy, String) {
    let proxy = Proxy::start(upstream, &ANTHROPIC);
    let session = proxy.session(wanted).await;
    assert_eq!(
        (&session["capture_level"], &session["rollout_type"]),
        (&json!("text"), &json!("eval"))
    );
    let key = session["session_id"].as_str().unwrap().to_owned();
    (proxy, key)
}

fn header<'a>(asked: &'a ReceivedRequest, name: &str) -> Option<&'a str> {
    let found = asked.headers.iter().find(|(other, _)| other == name);
    found.map(|(_, value)| value.as_str())
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The `data` of every event, as far as it is JSON.
fn data_of(stream: &str) -> Vec<Value> {
    let lines = stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    lines
        .filter_map(|data| serde_json::from_str(data).ok())
        .collect()
}

#[tokio::test]
async fn an_agent_of_the_same_dialect_gets_the_bytes_as_they_came() {
    let upstream = Upstream::start(claude).unwrap();
    let (proxy, key) = open(&upstream, json!({})).await;
    for is_stream in [false, true] {
        let before = upstream.requests().len();
        let body = format!(
            r#"{{ "model": "claude-x", "max_tokens":64, "stream":{is_stream},"thinking": {{"type":"adaptive"}},"messages":[ {{"role":"user","content":"\u00e9"}}] }}"#
        );
        let client = rollcage_proxy::outbound::client(&proxy.url).unwrap();
        let request = client
            .post(format!("{}/v1/messages?beta=true", proxy.url))
            .header("x-api-key", &key)
            .header("content-type", "application/json")
            .header("anthropic-version", "2023-06-01")
            .header("anthropic-beta", "interleaved-thinking-2025-05-14")
            .body(body.clone());
        let answer = request.send().await.unwrap().text().await.unwrap();
        let asked = upstream.requests()[before].clone();
        assert_eq!(asked.path, "/v1/messages?beta=true");
        assert_eq!(header(&asked, "x-api-key"), Some(API_KEY));
        assert_eq!(header(&asked, "authorization"), None);
        assert_eq!(header(&asked, "anthropic-version"), Some("2023-06-01"));
        assert_eq!(
            header(&asked, "anthropic-beta"),
            Some("interleaved-thinking-2025-05-14")
        );
        let expect = format!(
            r#"{{"model":"test-model","max_tokens":64,"stream":{is_stream},"thinking":{{"type":"adaptive"}},"messages":[ {{"role":"user","content":"\u00e9"}}]}}"#
        );
        assert_eq!(asked.body, expect);
        let sent = match claude(0, &asked) {
            Reply::Events { events, .. } => events.concat(),
            Reply::Whole { body, .. } => body,
            other => panic!("{other:?}"),
        };
        assert_eq!(answer, sent);
        let exchange = proxy.exchanges().pop().unwrap();
        assert_eq!(exchange.request.body, body.as_bytes());
        assert_eq!(
            exchange.request.endpoint_dialect,
            EndpointDialect::Anthropic
        );
        assert_eq!(exchange.sent, None);
        assert_eq!(exchange.response.unwrap().body, sent.as_bytes());
    }
}

#[tokio::test]
async fn a_prompt_is_counted_by_the_endpoint_itself() {
    let upstream = Upstream::start(claude).unwrap();
    let (proxy, key) = open(&upstream, json!({})).await;
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    let (_, counted) = proxy
        .send("POST", "/v1/messages/count_tokens", &key, &body)
        .await;
    assert_eq!(counted, r#"{"input_tokens":4711}"#);
    let asked = upstream.requests().pop().unwrap();
    assert_eq!(asked.path, "/v1/messages/count_tokens");
    assert_eq!(json_of(&asked.body)["model"], "test-model");
    assert_eq!(proxy.exchanges().len(), 0);
}

/// An agent's first request and, with what it was answered, its second.
struct Agent {
    dialect: Dialect,
    path: &'static str,
    stream_path: &'static str,
    first: Value,
    /// The same conversation with the answer and a tool's result behind it.
    second: fn(&Value, &Value) -> Value,
    /// Arguments and thoughts of the one call in a whole answer.
    read: fn(&Value) -> (Value, Value),
}

fn chat_agent() -> Agent {
    let tool =
        json!({"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}});
    Agent {
        dialect: Dialect::Chat,
        path: "/v1/chat/completions",
        stream_path: "/v1/chat/completions",
        first: json!({"model": "m", "seed": 7, "messages": [{"role": "user", "content": "go"}], "tools": [tool]}),
        second: |first, answer| {
            let mut second = first.clone();
            let message = answer["choices"][0]["message"].clone();
            let result = json!({"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "x"});
            second["messages"]
                .as_array_mut()
                .unwrap()
                .extend([message, result]);
            second
        },
        read: |answer| {
            let message = &answer["choices"][0]["message"];
            assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
            assert_eq!(answer["usage"]["prompt_tokens"], 472);
            assert_eq!(
                answer["usage"]["prompt_tokens_details"]["cached_tokens"],
                300
            );
            let call = &message["tool_calls"][0];
            assert_eq!(call["id"], CALL_ID);
            (
                call["function"]["arguments"].clone(),
                message["reasoning_content"].clone(),
            )
        },
    }
}

fn responses_agent() -> Agent {
    let tool = json!({"type": "function", "name": "bash", "parameters": {"type": "object"}});
    Agent {
        dialect: Dialect::Responses,
        path: "/v1/responses",
        stream_path: "/v1/responses",
        first: json!({"model": "m", "input": [{"role": "user", "content": "go"}], "tools": [tool], "include": ["reasoning.encrypted_content"]}),
        second: |first, answer| {
            let mut second = first.clone();
            let mut items = answer["output"].as_array().unwrap().clone();
            items.push(json!({"type": "function_call_output", "call_id": CALL_ID, "output": "x"}));
            second["input"].as_array_mut().unwrap().extend(items);
            second
        },
        read: |answer| {
            assert_eq!(answer["usage"]["input_tokens"], 472);
            let items = answer["output"].as_array().unwrap();
            let of = |kind: &str| items.iter().find(|item| item["type"] == kind).unwrap();
            assert_eq!(of("function_call")["call_id"], CALL_ID);
            let thoughts = of("reasoning")["summary"][0]["text"].clone();
            (of("function_call")["arguments"].clone(), thoughts)
        },
    }
}

fn gemini_agent() -> Agent {
    let tool =
        json!({"functionDeclarations": [{"name": "bash", "parameters": {"type": "OBJECT"}}]});
    Agent {
        dialect: Dialect::Gemini,
        path: "/v1beta/models/m:generateContent",
        stream_path: "/v1beta/models/m:streamGenerateContent?alt=sse",
        first: json!({
            "contents": [{"role": "user", "parts": [{"text": "go"}]}], "tools": [tool],
            "generationConfig": {"thinkingConfig": {"includeThoughts": true}},
        }),
        second: |first, answer| {
            let mut second = first.clone();
            let content = answer["candidates"][0]["content"].clone();
            let result = json!({"role": "user", "parts": [{"functionResponse": {"id": CALL_ID, "name": "bash", "response": {"output": "x"}}}]});
            second["contents"]
                .as_array_mut()
                .unwrap()
                .extend([content, result]);
            second
        },
        read: |answer| {
            assert_eq!(answer["usageMetadata"]["promptTokenCount"], 472);
            let parts = answer["candidates"][0]["content"]["parts"]
                .as_array()
                .unwrap();
            let call = parts
                .iter()
                .find(|part| part["functionCall"].is_object())
                .unwrap();
            assert_eq!(call["functionCall"]["id"], CALL_ID);
            let thoughts = parts.iter().find(|part| part["thought"] == true).unwrap();
            (
                call["functionCall"]["args"].to_string().into(),
                thoughts["text"].clone(),
            )
        },
    }
}

/// A stream's answer as the whole answer it stands for.
fn joined(dialect: Dialect, stream: &str) -> Value {
    let events = data_of(stream);
    match dialect {
        Dialect::Responses => events.last().unwrap()["response"].clone(),
        Dialect::Gemini => {
            let mut whole = events.last().unwrap().clone();
            let parts = events.iter().flat_map(|event| {
                let parts = event["candidates"][0]["content"]["parts"].as_array();
                parts.into_iter().flatten().cloned()
            });
            let mut out: Vec<Value> = Vec::new();
            for part in parts {
                match out.last_mut() {
                    Some(last)
                        if last["text"].is_string()
                            && part["text"].is_string()
                            && last["thought"] == part["thought"] =>
                    {
                        let text = format!(
                            "{}{}",
                            last["text"].as_str().unwrap(),
                            part["text"].as_str().unwrap()
                        );
                        last["text"] = text.into();
                    }
                    _ => out.push(part),
                }
            }
            whole["candidates"][0]["content"]["parts"] = out.into();
            whole
        }
        Dialect::Chat | Dialect::Anthropic => {
            assert!(stream.ends_with("data: [DONE]\n\n"), "{stream}");
            let reply = rollcage_dialect::chat::read_reply(stream, true);
            let usage = events.iter().find(|event| event["usage"].is_object());
            json!({
                "choices": [{"message": reply.message.to_value(), "finish_reason": reply.finish_reason}],
                "usage": usage.unwrap()["usage"],
            })
        }
    }
}

async fn ask(proxy: &Proxy, key: &str, agent: &Agent, body: &Value, is_stream: bool) -> Value {
    let mut body = body.clone();
    if is_stream && agent.dialect != Dialect::Gemini {
        body["stream"] = json!(true);
    }
    if is_stream && agent.dialect == Dialect::Chat {
        body["stream_options"] = json!({"include_usage": true});
    }
    let path = if is_stream {
        agent.stream_path
    } else {
        agent.path
    };
    let (status, answer) = proxy.send("POST", path, key, &body).await;
    assert_eq!(status, 200, "{path}: {answer}");
    match is_stream {
        true => joined(agent.dialect, &answer),
        false => json_of(&answer),
    }
}

#[tokio::test]
async fn other_dialects_are_translated_both_ways_with_thoughts_and_calls() {
    for agent in [chat_agent(), responses_agent(), gemini_agent()] {
        for is_stream in [false, true] {
            let upstream = Upstream::start(claude).unwrap();
            let (proxy, key) = open(&upstream, json!({})).await;
            let what = format!("{:?} {is_stream}", agent.dialect);
            let answer = ask(&proxy, &key, &agent, &agent.first, is_stream).await;
            let (arguments, thoughts) = (agent.read)(&answer);
            let arguments = json_of(arguments.as_str().unwrap());
            assert_eq!(arguments, json!({"command": "ls \"a b\""}), "{what}");
            assert_eq!(thoughts, "Look first.", "{what}");
            let second = (agent.second)(&agent.first, &answer);
            let last = ask(&proxy, &key, &agent, &second, is_stream).await;
            assert!(last.to_string().contains("Done: é."), "{what}: {last}");

            let asked = json_of(&upstream.requests()[1].body);
            assert_eq!(asked["model"], "test-model");
            assert_eq!(
                asked["stream"].as_bool().unwrap_or(false),
                is_stream,
                "{what}"
            );
            let content = asked["messages"][1]["content"].as_array().unwrap();
            assert_eq!(
                content[0],
                json!({"type": "thinking", "thinking": "Look first.", "signature": SIGNATURE}),
                "{what}"
            );
            assert_eq!(content[1]["text"], "I look.");
            assert_eq!(content[2]["input"], json!({"command": "ls \"a b\""}));
            let result = &asked["messages"][2]["content"][0];
            assert_eq!(
                (&result["type"], &result["tool_use_id"]),
                (&json!("tool_result"), &json!(CALL_ID)),
                "{what}"
            );
            check_document(&proxy, &key, &agent, &what).await;
        }
    }
}

/// What is made of the record afterwards.
async fn check_document(proxy: &Proxy, key: &str, agent: &Agent, what: &str) {
    let path = format!("/sessions/{key}/rollout?include_messages=true");
    let (_, document) = proxy.send("GET", &path, "", &json!({})).await;
    let document = json_of(&document);
    assert_eq!(document["trainable"], false, "{what}: {document}");
    let text = document.to_string();
    for expect in ["no_tokens_in_dialect", "Look first.", "Done: é.", CALL_ID] {
        assert!(text.contains(expect), "{what}: {expect} in {document}");
    }
    let is_left_out = text.contains("left_out_in_translation") && text.contains("seed");
    assert_eq!(
        is_left_out,
        agent.dialect == Dialect::Chat,
        "{what}: {text}"
    );
    let (_, status) = proxy
        .send("GET", &format!("/sessions/{key}"), "", &json!({}))
        .await;
    let status = json_of(&status);
    assert_eq!(
        (&status["n_turns"], &status["n_roots"]),
        (&json!(2), &json!(1)),
        "{what}: {status}"
    );
    let exchanges = proxy.exchanges();
    let seen = rollcage_model::trace::interpret(&exchanges);
    let usage = seen.turns[0].usage.unwrap();
    assert_eq!(
        (
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.cache_write_tokens,
            usage.completion_tokens
        ),
        (472, 300, 100, 89),
        "{what}"
    );
    let reasons: Vec<_> = seen
        .turns
        .iter()
        .map(|turn| turn.finish_reason.as_deref())
        .collect();
    assert_eq!(reasons, [Some("tool_calls"), Some("stop")], "{what}");
    let call = &seen.turns[0].message.as_ref().unwrap().tool_calls[0];
    assert_eq!(call.id.as_deref(), Some(CALL_ID));
    assert_eq!(seen.turns[1].messages.len(), 3, "{what}");
}

fn first_requests(is_stream: bool) -> [(&'static str, Value); 4] {
    let message = json!([{"role": "user", "content": "hi"}]);
    let gemini = json!({"contents": [{"parts": [{"text": "hi"}]}]});
    let gemini_path = match is_stream {
        true => "/v1beta/models/m:streamGenerateContent?alt=sse",
        false => "/v1beta/models/m:generateContent",
    };
    [
        (
            "/v1/chat/completions",
            json!({"model": "m", "stream": is_stream, "messages": message}),
        ),
        (
            "/v1/messages",
            json!({"model": "m", "max_tokens": 9, "stream": is_stream, "messages": message}),
        ),
        (
            "/v1/responses",
            json!({"model": "m", "input": "hi", "stream": is_stream}),
        ),
        (gemini_path, gemini),
    ]
}

#[tokio::test]
async fn an_error_in_mid_stream_is_reported_in_the_agents_dialect() {
    let upstream = Upstream::start(|_, asked| anthropic::fails_midway(asked)).unwrap();
    let (proxy, key) = open(&upstream, json!({})).await;
    for (path, body) in first_requests(true) {
        let (status, answer, is_whole) = proxy.read("POST", path, &key, &body).await;
        assert_eq!(status, 200, "{path}");
        // Chat has no event that every client takes for an error.
        assert_eq!(is_whole, !path.contains("chat"), "{path}");
        assert!(
            answer.contains("Overloaded") && answer.contains("error"),
            "{path}: {answer}"
        );
        for end in ["[DONE]", "message_stop", "response.completed", "STOP"] {
            assert!(!answer.contains(end), "{path}: {answer}");
        }
        let exchange = proxy.exchanges().pop().unwrap();
        assert_eq!(
            exchange.response.unwrap().error.as_deref(),
            Some("Overloaded")
        );
    }
    let (_, document) = proxy
        .send("GET", &format!("/sessions/{key}"), "", &json!({}))
        .await;
    assert_eq!(json_of(&document)["upstream_errors"], 4);
}

#[tokio::test]
async fn a_busy_service_is_retried_as_it_advises() {
    for (status, kind) in [(529, "overloaded_error"), (429, "rate_limit_error")] {
        let busy = AtomicUsize::new(0);
        let upstream =
            Upstream::start(
                move |_, asked| match busy.fetch_add(1, Ordering::Relaxed) % 2 {
                    0 => anthropic::refuses(status, "retry-after: 0\r\n", kind, "Try later"),
                    _ => anthropic::says(asked, "é"),
                },
            )
            .unwrap();
        let (proxy, key) = open(&upstream, json!({})).await;
        for (path, body) in first_requests(false)
            .into_iter()
            .chain(first_requests(true))
        {
            let (status, answer) = proxy.send("POST", path, &key, &body).await;
            assert!(status == 200 && answer.contains("é"), "{path}: {answer}");
            let response = proxy.exchanges().pop().unwrap().response.unwrap();
            assert_eq!(response.attempts.len(), 1, "{path}");
            assert!(response.attempts[0].error.contains(kind), "{path}");
        }
    }
}

#[tokio::test]
async fn a_stream_that_begins_with_a_transient_error_is_retried() {
    let busy = AtomicUsize::new(0);
    let upstream = Upstream::start(move |_, asked| {
        let kind = match busy.fetch_add(1, Ordering::Relaxed) {
            8 => "invalid_request_error",
            number if number % 2 == 0 => "overloaded_error",
            _ => return anthropic::says(asked, "é"),
        };
        let error = json!({"type": "error", "error": {"type": kind, "message": "Not now"}});
        let ping = "event: ping\ndata: {\"type\": \"ping\"}\n\n".to_owned();
        Reply::Events {
            events: vec![ping, format!("event: error\ndata: {error}\n\n")],
            ending: StreamEnd::Clean,
        }
    })
    .unwrap();
    let (proxy, key) = open(&upstream, json!({})).await;
    for (path, body) in first_requests(true) {
        let (status, answer) = proxy.send("POST", path, &key, &body).await;
        assert!(status == 200 && answer.contains("é"), "{path}: {answer}");
        assert!(!answer.contains("Not now"), "{path}: {answer}");
        let response = proxy.exchanges().pop().unwrap().response.unwrap();
        assert_eq!(response.attempts.len(), 1, "{path}");
        assert_eq!(response.attempts[0].status, Some(200));
        assert!(response.attempts[0].error.contains("overloaded_error"));
    }
    let (path, body) = &first_requests(true)[1];
    let (_, answer) = proxy.send("POST", path, &key, body).await;
    assert!(answer.contains("Not now"), "{answer}");
    assert_eq!(
        upstream.requests().len(),
        9,
        "what will not pass is told at once"
    );
}

#[tokio::test]
async fn a_refusal_keeps_its_status_and_its_message() {
    let upstream = Upstream::start(|_, _| {
        let message = format!("max_tokens: too large, key {API_KEY}");
        anthropic::refuses(
            400,
            "request-id: req_1\r\n",
            "invalid_request_error",
            &message,
        )
    })
    .unwrap();
    let (proxy, key) = open(&upstream, json!({})).await;
    for (path, body) in first_requests(true)
        .into_iter()
        .chain(first_requests(false))
    {
        let (status, answer) = proxy.send("POST", path, &key, &body).await;
        assert_eq!(status, 400, "{path}");
        let answer = json_of(&answer);
        let message = answer["error"]["message"].as_str().unwrap();
        assert_eq!(message, "max_tokens: too large, key ***", "{path}");
    }
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_reported_in_the_agents_dialect() {
    let upstream = Upstream::start(|_, _| {
        let message = "prompt is too long: 210000 tokens > 200000 maximum";
        anthropic::refuses(400, "", "invalid_request_error", message)
    })
    .unwrap();
    let (proxy, key) = open(&upstream, json!({})).await;
    for (path, body) in first_requests(true) {
        let (status, answer) = proxy.send("POST", path, &key, &body).await;
        assert_eq!(status, 400, "{path}: {answer}");
        let answer = json_of(&answer);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(
            message.starts_with("prompt is too long"),
            "{path}: {message}"
        );
    }
    let (_, document) = proxy
        .send("GET", &format!("/sessions/{key}/rollout"), "", &json!({}))
        .await;
    assert!(document.contains("context_budget_exhausted"), "{document}");
}

#[tokio::test]
async fn at_the_limit_of_calls_the_last_answer_is_in_the_agents_dialect() {
    let upstream = Upstream::start(|_, asked| anthropic::says(asked, "ok")).unwrap();
    let (proxy, key) = open(&upstream, json!({"max_model_calls": 1})).await;
    let [(path, body), ..] = first_requests(false);
    assert_eq!(proxy.send("POST", path, &key, &body).await.0, 200);
    let ends = ["[DONE]", "message_stop", "response.completed", "STOP"];
    for ((path, body), end) in first_requests(true).into_iter().zip(ends) {
        let (status, answer) = proxy.send("POST", path, &key, &body).await;
        assert!(
            status == 200 && answer.contains("used up") && answer.contains(end),
            "{path}: {answer}"
        );
    }
    let message = json_of(
        &proxy
            .send("POST", "/v1/messages", &key, &first_requests(false)[1].1)
            .await
            .1,
    );
    assert_eq!(
        (&message["type"], &message["stop_reason"]),
        (&json!("message"), &json!("end_turn"))
    );
    assert_eq!(upstream.requests().len(), 1);
}

#[tokio::test]
async fn a_session_names_its_own_provider() {
    let upstream = Upstream::start(claude).unwrap();
    let other = Upstream::start(|_, asked| anthropic::says(asked, "mine")).unwrap();
    let proxy = Proxy::start(&upstream, &ANTHROPIC);
    let wanted = json!({"llm_url": other.base_url(), "model": "claude-y", "api_key": "k-2", "provider": "anthropic"});
    let session = proxy.session(wanted).await;
    assert_eq!(session["capture_level"], "text");
    let key = session["session_id"].as_str().unwrap();
    let [(path, body), ..] = first_requests(false);
    assert!(
        proxy
            .send("POST", path, key, &body)
            .await
            .1
            .contains("mine")
    );
    let asked = other.requests().pop().unwrap();
    assert_eq!(
        (asked.path.as_str(), header(&asked, "x-api-key")),
        ("/v1/messages", Some("k-2"))
    );
    assert_eq!(json_of(&asked.body)["model"], "claude-y");
    let wrong = json!({"purpose": "train"});
    assert_eq!(proxy.send("POST", "/sessions", "", &wrong).await.0, 400);
}
