//! Calls that the proxy makes again, and streams that it holds back until they begin well.

use super::*;

#[tokio::test]
async fn a_busy_endpoint_is_retried_and_a_refusal_is_not() {
    let busy = std::sync::atomic::AtomicUsize::new(0);
    let upstream = Upstream::start(move |_, asked| {
        let refused = |status, message: &str| Reply::Whole {
            status,
            content_type: "application/json",
            body: json!({"error": {"message": message}}).to_string(),
        };
        match asked.body.as_str() {
            body if body.contains("busy")
                && busy.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 =>
            {
                refused(503, "loading")
            }
            body if body.contains("too long") => {
                refused(400, "maximum context length is 10 tokens")
            }
            body if body.contains("wrong") => refused(422, "no such thing"),
            _ => vllm(0, asked),
        }
    })
    .unwrap();
    let proxy = Proxy::start(&upstream, &[]);
    let session = proxy.session(json!({})).await;
    let key = session["session_id"].as_str().unwrap();
    let say = |text: &str| json!({"messages": [{"role": "user", "content": text}]});
    let before = upstream.requests().len();
    assert_eq!(
        proxy
            .send("POST", "/v1/chat/completions", key, &say("wrong"))
            .await
            .0,
        422
    );
    assert_eq!(upstream.requests().len(), before + 1);
    let (status, answer) = proxy
        .send("POST", "/v1/chat/completions", key, &say("too long"))
        .await;
    assert_eq!(status, 400, "the harness knows what to do about it");
    assert!(answer.contains("maximum context length"), "{answer}");
}

fn error(kind: &str, code: u16) -> String {
    let message = format!("not now, {API_KEY}");
    let error = json!({"error": {"message": message, "type": kind, "code": code}});
    format!("data: {error}\n\n")
}

fn streamed() -> Value {
    json!({"stream": true, "messages": [{"role": "user", "content": "again"}]})
}

#[tokio::test]
async fn a_stream_that_fails_before_its_first_content_is_retried() {
    let busy = error("InternalServerError", 500);
    // A comment says nothing; a stream may also break off, or end, before it says anything.
    let first = [
        events(
            &[": waiting\n\n", &format!("{busy}data: [DONE]\n\n")],
            StreamEnd::Clean,
        ),
        events(&[&busy], StreamEnd::Hang),
        events(&[": waiting\n\n"], StreamEnd::Cut),
        events(&[], StreamEnd::Clean),
    ];
    let tries = std::sync::atomic::AtomicUsize::new(0);
    let upstream = Upstream::start(move |_, asked| {
        if !asked.body.contains("again") {
            return vllm(0, asked);
        }
        match tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            number if number % 2 == 0 => first[number / 2].clone(),
            _ => streams(true, StreamEnd::Clean),
        }
    })
    .unwrap();
    let proxy = Proxy::start(&upstream, &[]);
    let session = proxy.session(json!({})).await;
    let key = session["session_id"].as_str().unwrap();
    for told in ["not now, ***", "not now, ***", "broke off", "was empty"] {
        let (status, answer) = proxy
            .send("POST", "/v1/chat/completions", key, &streamed())
            .await;
        assert!(status == 200 && answer.contains("[DONE]"), "{answer}");
        assert!(!answer.contains("not now"), "{answer}");
        let response = proxy.exchanges().pop().unwrap().response.unwrap();
        assert_eq!((response.status, response.error), (Some(200), None));
        assert_eq!(response.attempts.len(), 1);
        let attempt = &response.attempts[0];
        assert_eq!(attempt.status, Some(200));
        assert!(attempt.error.contains(told), "{attempt:?}");
    }
}

#[tokio::test]
async fn a_stream_that_begins_with_a_permanent_error_is_passed_on() {
    let upstream = Upstream::start(|_, asked| match asked.body.contains("again") {
        true => {
            let lasting = error("BadRequestError", 400);
            events(&[&lasting, "data: [DONE]\n\n"], StreamEnd::Clean)
        }
        false => vllm(0, asked),
    })
    .unwrap();
    let proxy = Proxy::start(&upstream, &[]);
    let session = proxy.session(json!({})).await;
    let key = session["session_id"].as_str().unwrap();
    let before = upstream.requests().len();
    let client = rollcage_proxy::outbound::client(&proxy.url).unwrap();
    let request = client.post(format!("{}/v1/chat/completions", proxy.url));
    let request = request.header("content-type", "application/json");
    let request = request.bearer_auth(key).body(streamed().to_string());
    let mut answer = request.send().await.unwrap();
    let mut seen = String::new();
    let end = loop {
        match answer.chunk().await {
            Ok(Some(bytes)) => seen.push_str(&String::from_utf8_lossy(&bytes)),
            end => break end,
        }
    };
    assert!(
        end.is_err(),
        "a stream without a finish does not end cleanly"
    );
    assert!(
        seen.contains("not now, ***") && !seen.contains(API_KEY),
        "{seen}"
    );
    assert_eq!(upstream.requests().len(), before + 1);
    let response = proxy.exchanges().pop().unwrap().response.unwrap();
    assert_eq!(response.error.as_deref(), Some("not now, ***"));
    assert!(response.text().contains("not now, ***"));
}

#[tokio::test]
async fn a_call_on_a_lost_connection_is_repeated_and_recorded() {
    let is_gone = std::sync::atomic::AtomicBool::new(false);
    let upstream = Upstream::start(move |_, asked| {
        let is_told = asked.body.contains("go away");
        match is_told && !is_gone.swap(true, std::sync::atomic::Ordering::Relaxed) {
            true => Reply::Drop,
            false => vllm(0, asked),
        }
    })
    .unwrap();
    let proxy = Proxy::start(&upstream, &[]);
    let session = proxy.session(json!({})).await;
    let key = session["session_id"].as_str().unwrap();
    let path = "/v1/chat/completions";
    assert_eq!(proxy.send("POST", path, key, &chat()).await.0, 200);
    let before = upstream.requests().len();
    let body = json!({"messages": [{"role": "user", "content": "go away"}]});
    assert_eq!(proxy.send("POST", path, key, &body).await.0, 200);
    // The endpoint has read both, and may have sampled for both.
    assert_eq!(upstream.requests().len() - before, 2);
    let response = proxy.exchanges().pop().unwrap().response.unwrap();
    assert_eq!(response.attempts.len(), 1);
    assert_eq!(response.attempts[0].status, None);
}

#[tokio::test]
async fn sglangs_streams_are_captured_live_and_without_its_extension() {
    let upstream = Upstream::start(|_, asked| sglang::says(asked)).unwrap();
    let proxy = Proxy::start(&upstream, &[]);
    let session = proxy.session(json!({})).await;
    assert_eq!(session["capture_level"], "tokens");
    let key = session["session_id"].as_str().unwrap();
    for body in [chat(), streamed()] {
        let (status, answer) = proxy.send("POST", "/v1/chat/completions", key, &body).await;
        assert_eq!(status, 200, "{answer}");
        for added in ["sglext", "output_ids", "-0.25"] {
            assert!(!answer.contains(added), "{added} in {answer}");
        }
        let asked: Value = serde_json::from_str(&upstream.requests().pop().unwrap().body).unwrap();
        assert_eq!(asked["return_output_ids_in_sglext"], true);
        assert_eq!(asked["return_token_ids"], Value::Null, "streams refuse it");
        let response = proxy.exchanges().pop().unwrap().response.unwrap();
        assert!(!response.is_replayed);
        let reply = rollcage_dialect::chat::read_reply(&response.text(), response.is_stream);
        assert_eq!(reply.prompt_token_ids, Some(vec![1, 2, 3, 4]));
        assert_eq!(reply.token_ids, Some(vec![7, 8]));
    }
}

#[tokio::test]
async fn tries_are_in_the_record_of_an_agent_that_did_not_wait_for_their_end() {
    let upstream = Upstream::start(|_, asked| match asked.body.contains("again") {
        true => Reply::Refusal {
            status: 503,
            headers: "retry-after: 20\r\n",
            body: "{}".to_owned(),
        },
        false => vllm(0, asked),
    })
    .unwrap();
    let proxy = Proxy::start(&upstream, &[]);
    let session = proxy.session(json!({})).await;
    let key = session["session_id"].as_str().unwrap();
    let client = rollcage_proxy::outbound::client(&proxy.url).unwrap();
    let request = client.post(format!("{}/v1/chat/completions", proxy.url));
    let request = request.header("content-type", "application/json");
    let request = request.bearer_auth(key).body(streamed().to_string());
    let asking = request.timeout(std::time::Duration::from_secs(1)).send();
    assert!(asking.await.is_err());
    let response = loop {
        match proxy.exchanges().pop().unwrap().response {
            Some(response) => break response,
            None => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
        }
    };
    assert!(response.error.unwrap().contains("hung up"));
    assert_eq!(response.attempts.len(), 1);
    assert_eq!(response.attempts[0].status, Some(503));
}

/// A stream of these bytes.
fn events(events: &[&str], ending: StreamEnd) -> Reply {
    let events = events.iter().map(|event| (*event).to_owned()).collect();
    Reply::Events { events, ending }
}

#[tokio::test]
async fn streams_that_lose_ids_are_replayed_from_whole_answers() {
    let upstream = Upstream::start(|_, asked| {
        if asked.body.contains("\"stream\":true") {
            // As engines do around tool parsers: usage counts two tokens, the ids are one short.
            let Reply::Stream { mut data, ending } = streams(true, StreamEnd::Clean) else {
                return Reply::Drop;
            };
            data[1] = data[1].replace("\"token_ids\":[7]", "\"token_ids\":[]");
            Reply::Stream { data, ending }
        } else {
            says("ok")
        }
    })
    .unwrap();
    let proxy = Proxy::start(&upstream, &[]);
    let session = proxy.session(json!({})).await;
    let key = session["session_id"].as_str().unwrap();
    let probes = upstream.requests().len();
    let mut body = chat();
    body["stream"] = json!(true);
    let (status, answer) = proxy.send("POST", "/v1/chat/completions", key, &body).await;
    assert_eq!(status, 200);
    assert!(
        answer.contains("\"content\":\"ok\"") && answer.ends_with("data: [DONE]\n\n"),
        "{answer}"
    );
    let asked: Value = serde_json::from_str(&upstream.requests()[probes].body).unwrap();
    assert_eq!(asked["stream"], false);
    let (_, document) = proxy
        .send("GET", &format!("/sessions/{key}/rollout"), "", &json!({}))
        .await;
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(
        document["sequences"][0]["input_ids"],
        json!([1, 2, 3, 4, 7, 8])
    );
}
