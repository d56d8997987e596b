//! The endpoint over a real socket, driven as an agent would.

mod dialect;

use std::sync::Arc;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use rollcage_model::script::Step;
use serde_json::{Value, json};

use super::{Log, Options, Script, ScriptedEndpoint, ScriptedError, ServedAnswer};

struct Endpoint {
    scripted: ScriptedEndpoint,
    log: Arc<Log>,
    key: String,
    client: reqwest::Client,
}

/// An answer in a form that is the same for streams and JSON.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    reasoning: String,
    content: String,
    /// Id, name and arguments.
    call: Option<(String, String, String)>,
    finish_reason: String,
    prompt_ids: Vec<u64>,
    sampled_ids: Vec<u64>,
    logprobs: Vec<Value>,
    usage: Value,
}

impl Endpoint {
    async fn start(steps: Vec<Step>) -> Self {
        let log = Log::new(100);
        let options = Options {
            log: Some(Arc::clone(&log)),
            ..Options::default()
        };
        let scripted = ScriptedEndpoint::start(options).await.unwrap();
        let key = scripted.add(Script::new(steps)).unwrap();
        Endpoint {
            scripted,
            log,
            key,
            client: client(),
        }
    }

    async fn post(&self, body: &Value) -> (u16, String, String) {
        let url = format!("{}/chat/completions", self.scripted.base_url());
        let request = self
            .client
            .post(url)
            .header(AUTHORIZATION, format!("Bearer {}", self.key));
        let response = request.body(body.to_string()).send().await.unwrap();
        let kind = response.headers()[CONTENT_TYPE]
            .to_str()
            .unwrap()
            .to_owned();
        (
            response.status().as_u16(),
            kind,
            response.text().await.unwrap(),
        )
    }

    async fn whole(&self, mut body: Value) -> Answer {
        body["stream"] = false.into();
        let (status, kind, text) = self.post(&body).await;
        assert_eq!((status, kind.as_str()), (200, "application/json"), "{text}");
        read_whole(&serde_json::from_str(&text).unwrap())
    }

    async fn streamed(&self, mut body: Value) -> Answer {
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        let (status, kind, text) = self.post(&body).await;
        assert_eq!(
            (status, kind.as_str()),
            (200, "text/event-stream; charset=utf-8"),
            "{text}"
        );
        read_stream(&text)
    }
}

fn client() -> reqwest::Client {
    // Fails if another test was first, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn numbers(value: &Value) -> Vec<u64> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().map(|number| number.as_u64().unwrap()).collect()
}

fn entries(logprobs: &Value) -> Vec<Value> {
    logprobs["content"].as_array().cloned().unwrap_or_default()
}

fn read_whole(body: &Value) -> Answer {
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "scripted");
    let choice = &body["choices"][0];
    let message = &choice["message"];
    let call = message["tool_calls"].get(0).map(|call| {
        let function = &call["function"];
        (
            text(&call["id"]),
            text(&function["name"]),
            text(&function["arguments"]),
        )
    });
    Answer {
        reasoning: text(&message["reasoning_content"]),
        content: text(&message["content"]),
        call,
        finish_reason: text(&choice["finish_reason"]),
        prompt_ids: numbers(&body["prompt_token_ids"]),
        sampled_ids: numbers(&choice["token_ids"]),
        logprobs: entries(&choice["logprobs"]),
        usage: body["usage"].clone(),
    }
}

fn read_stream(stream: &str) -> Answer {
    let mut events: Vec<_> = stream.split_terminator("\n\n").collect();
    assert_eq!(events.pop(), Some("data: [DONE]"));
    let mut answer = Answer::default();
    for (index, event) in events.iter().enumerate() {
        let chunk: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(chunk["object"], "chat.completion.chunk");
        if index == 0 {
            assert_eq!(
                chunk["choices"][0]["delta"],
                json!({"role": "assistant", "content": ""})
            );
            answer.prompt_ids = numbers(&chunk["prompt_token_ids"]);
        }
        let Some(choice) = chunk["choices"].get(0) else {
            assert_eq!(index, events.len() - 1, "only the last event has no choice");
            answer.usage = chunk["usage"].clone();
            continue;
        };
        assert_eq!(
            answer.finish_reason, "",
            "nothing comes after the finish reason"
        );
        read_choice(choice, &mut answer);
    }
    answer
}

fn read_choice(choice: &Value, answer: &mut Answer) {
    let delta = &choice["delta"];
    answer.reasoning += &text(&delta["reasoning_content"]);
    answer.content += &text(&delta["content"]);
    if let Some(call) = delta["tool_calls"].get(0) {
        assert_eq!(call["index"], 0);
        let function = &call["function"];
        let new = || (text(&call["id"]), text(&function["name"]), String::new());
        answer.call.get_or_insert_with(new).2 += &text(&function["arguments"]);
    }
    let (ids, logprobs) = (numbers(&choice["token_ids"]), entries(&choice["logprobs"]));
    if !choice["logprobs"].is_null() && !choice["token_ids"].is_null() {
        assert_eq!(
            ids.len(),
            logprobs.len(),
            "each event has the logprobs of its own tokens"
        );
    }
    answer.sampled_ids.extend(ids);
    answer.logprobs.extend(logprobs);
    answer.finish_reason = text(&choice["finish_reason"]);
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "bash", "description": "Runs", "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}, "description": {"type": "string"}},
            "required": ["command", "description"]}}},
        {"type": "function", "function": {"name": "write", "description": "Writes", "parameters": {
            "type": "object",
            "properties": {"content": {"type": "string"}, "filePath": {"type": "string"}},
            "required": ["content", "filePath"]}}},
    ])
}

fn first_request() -> Value {
    json!({
        "model": "any",
        "max_tokens": 32000,
        "messages": [
            {"role": "system", "content": "You are OpenCode. <|im_end|>"},
            {"role": "user", "content": [{"type": "text", "text": "Grüße schreiben 🦀"}]},
        ],
        "tools": tools(),
        "tool_choice": "auto",
        "logprobs": true,
        "top_logprobs": 2,
        "return_token_ids": true,
    })
}

fn solution() -> Vec<Step> {
    let content = Some("Grüße 🦀\n\t\"quoted\" \\ \u{1}\n".to_owned());
    vec![
        Step {
            think: Some("Erst schauen… 🦀".into()),
            ..Step::shell("ls -la && echo 'ö'")
        },
        Step {
            say: Some("Now I write.".into()),
            write: Some("a.txt".into()),
            content,
            ..Step::default()
        },
        Step {
            say: Some("Fertig ✓".into()),
            ..Step::default()
        },
    ]
}

/// Appends an answer the way OpenCode sends it back, and the result of its tool call.
fn send_back(body: &mut Value, answer: &Answer) {
    let mut message = json!({"role": "assistant", "content": answer.content});
    if !answer.reasoning.is_empty() {
        message["reasoning_content"] = answer.reasoning.clone().into();
    }
    let messages = body["messages"].as_array_mut().unwrap();
    let Some((id, name, arguments)) = &answer.call else {
        messages.push(message);
        messages.push(json!({"role": "user", "content": "And now?"}));
        return;
    };
    let parsed: Value = serde_json::from_str(arguments).unwrap();
    let function = json!({"name": name, "arguments": parsed.to_string()});
    message["tool_calls"] = json!([{"id": id, "type": "function", "function": function}]);
    messages.push(message);
    messages.push(json!({"role": "tool", "tool_call_id": id, "content": "ok\n"}));
}

#[tokio::test]
async fn every_prompt_starts_with_the_previous_prompt_and_answer() {
    let endpoint = Endpoint::start(solution()).await;
    let mut body = first_request();
    let mut before: Vec<u64> = Vec::new();
    let mut finishes = Vec::new();
    for _ in 0..4 {
        let answer = endpoint.streamed(body.clone()).await;
        assert!(answer.prompt_ids.starts_with(&before));
        assert!(answer.prompt_ids.len() > before.len());
        before = [answer.prompt_ids.as_slice(), &answer.sampled_ids].concat();
        send_back(&mut body, &answer);
        finishes.push((answer.finish_reason, answer.content));
    }
    let finish = |reason: &str, content: &str| (reason.to_owned(), content.to_owned());
    let expected = [
        finish("tool_calls", ""),
        finish("tool_calls", "Now I write."),
        finish("stop", "Fertig ✓"),
        finish("stop", "Done."),
    ];
    assert_eq!(finishes, expected);
    endpoint.scripted.close().await;
}

#[tokio::test]
async fn streamed_and_whole_answers_are_the_same_at_every_length() {
    let endpoint = Endpoint::start(solution()).await;
    let mut body = first_request();
    for _ in 0..3 {
        let answer = endpoint.whole(body.clone()).await;
        for limit in 1..=answer.sampled_ids.len() {
            body["max_tokens"] = limit.into();
            let (whole, streamed) = (
                endpoint.whole(body.clone()).await,
                endpoint.streamed(body.clone()).await,
            );
            assert_eq!(whole, streamed);
            assert_eq!(whole.sampled_ids, answer.sampled_ids[..limit]);
            assert_eq!(whole.logprobs, answer.logprobs[..limit]);
            assert_eq!(whole.usage["completion_tokens"], limit);
            assert_eq!(whole.usage["prompt_tokens"], answer.prompt_ids.len());
            let is_cut = limit < answer.sampled_ids.len();
            assert_eq!(whole.finish_reason == "length", is_cut);
        }
        body["max_tokens"] = 32000.into();
        send_back(&mut body, &answer);
    }
    endpoint.scripted.close().await;
}

#[tokio::test]
async fn the_first_answers_are_exactly_these() {
    let endpoint = Endpoint::start(solution()).await;
    let mut body = first_request();
    let first = endpoint.streamed(body.clone()).await;
    assert_eq!(first.reasoning, "Erst schauen… 🦀");
    let (_, name, arguments) = first.call.as_ref().unwrap();
    let expected =
        r#"{"command":"ls -la && echo 'ö'","description":"Step 1 of the reference solution"}"#;
    assert_eq!((name.as_str(), arguments.as_str()), ("bash", expected));
    let think = &first.logprobs[0];
    assert_eq!(
        (&think["token"], &think["bytes"]),
        (&json!("<think>"), &json!(b"<think>"))
    );
    assert_eq!(think["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(think["top_logprobs"][0]["token"], "<think>");

    send_back(&mut body, &first);
    let (_, name, arguments) = endpoint.streamed(body).await.call.unwrap();
    let arguments: Value = serde_json::from_str(&arguments).unwrap();
    assert_eq!(name, "write");
    assert_eq!(arguments["filePath"], "/home/user/workdir/a.txt");
    assert_eq!(arguments["content"], solution()[1].content.clone().unwrap());
    endpoint.scripted.close().await;
}

#[tokio::test]
async fn the_log_contains_what_was_sent() {
    let endpoint = Endpoint::start(solution()).await;
    let answer = endpoint.streamed(first_request()).await;
    let served = endpoint.log.served();
    let [
        ServedAnswer {
            arrived: _,
            key,
            request,
            prompt_ids,
            sampled_ids,
            logprobs,
            finish_reason,
            is_stream,
            played: None,
        },
    ] = &served[..]
    else {
        panic!("one answer, not {}", served.len());
    };
    let wide = |ids: &[u32]| ids.iter().map(|id| u64::from(*id)).collect::<Vec<_>>();
    assert_eq!(
        (wide(prompt_ids), wide(sampled_ids)),
        (answer.prompt_ids, answer.sampled_ids)
    );
    let sent: Vec<_> = answer
        .logprobs
        .iter()
        .map(|entry| entry["logprob"].as_f64().unwrap())
        .collect();
    assert_eq!(*logprobs, sent);
    assert_eq!(
        (key, *finish_reason, *is_stream),
        (&endpoint.key, "tool_calls", true)
    );
    assert!(request.contains("You are OpenCode."));
    endpoint.scripted.close().await;
}

#[tokio::test]
async fn ids_and_logprobs_come_only_on_request() {
    let endpoint = Endpoint::start(solution()).await;
    let mut body = first_request();
    for option in ["logprobs", "top_logprobs", "return_token_ids"] {
        body.as_object_mut().unwrap().remove(option);
    }
    for answer in [
        endpoint.whole(body.clone()).await,
        endpoint.streamed(body.clone()).await,
    ] {
        assert!(
            answer.prompt_ids.is_empty()
                && answer.sampled_ids.is_empty()
                && answer.logprobs.is_empty()
        );
        assert_eq!(answer.finish_reason, "tool_calls");
    }
    body["logprobs"] = true.into();
    body["return_tokens_as_token_ids"] = true.into();
    let answer = endpoint.whole(body).await;
    let first = &answer.logprobs[0];
    assert!(text(&first["token"]).starts_with("token_id:"));
    assert_eq!(first["top_logprobs"], json!([]));
    endpoint.scripted.close().await;
}

#[tokio::test]
async fn a_title_request_uses_up_no_step() {
    let endpoint = Endpoint::start(solution()).await;
    let title = json!({"messages": [{"role": "system", "content": "You are a title generator"}]});
    assert_eq!(endpoint.streamed(title).await.content, "Scripted task");
    assert!(endpoint.whole(first_request()).await.call.is_some());
    endpoint.scripted.close().await;
}

#[tokio::test]
async fn invalid_requests_get_an_openai_error() {
    let mut endpoint = Endpoint::start(vec![Step::shell("ls")]).await;
    let mut body = first_request();
    body["tools"].as_array_mut().unwrap().remove(0);
    let (status, _, text) = endpoint.post(&body).await;
    let error: Value = serde_json::from_str(&text).unwrap();
    let message =
        "step 1 of the script runs a shell command, but no offered tool does that; offered: write";
    let expected =
        json!({"message": message, "type": "BadRequestError", "param": null, "code": 400});
    assert_eq!((status, &error["error"]), (400, &expected));
    assert_eq!(endpoint.post(&json!({"messages": "hello"})).await.0, 400);

    endpoint.scripted.remove(&endpoint.key);
    assert_eq!(endpoint.post(&first_request()).await.0, 401);
    endpoint.key = "sk-other".into();
    let (status, _, text) = endpoint.post(&first_request()).await;
    assert_eq!(status, 401);
    assert!(text.contains("AuthenticationError"));
    endpoint.scripted.close().await;
}

#[tokio::test]
async fn other_routes_respond_too() {
    let script = Script {
        model: "tiny".into(),
        ..Script::new(Vec::new())
    };
    let options = Options {
        default_script: Some(script),
        ..Options::default()
    };
    let scripted = ScriptedEndpoint::start(options).await.unwrap();
    let base = scripted.base_url();
    let get = async |url: String| {
        let response = client().get(url).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    let (status, models) = get(format!("{base}/models")).await;
    let models: Value = serde_json::from_str(&models).unwrap();
    assert_eq!((status, &models["data"][0]["id"]), (200, &json!("tiny")));
    assert_eq!(get(base.replace("/v1", "/health")).await.0, 200);
    let (status, error) = get(format!("{base}/chat/completions")).await;
    assert_eq!(status, 404);
    assert!(error.contains("there is no GET /v1/chat/completions"));
    assert_eq!(get(format!("{base}/embeddings")).await.0, 404);
    scripted.close().await;
    assert!(
        client().get(format!("{base}/models")).send().await.is_err(),
        "closed means closed"
    );
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let first = ScriptedEndpoint::start(Options::default()).await.unwrap();
    let port = first.port();
    let error = ScriptedEndpoint::start(Options {
        port,
        ..Options::default()
    })
    .await
    .unwrap_err();
    assert!(matches!(error, ScriptedError::PortInUse(taken) if taken == port));
    assert!(
        error
            .to_string()
            .contains(&format!("port {port} on 127.0.0.1 is in use"))
    );
    first.close().await;
    ScriptedEndpoint::start(Options {
        port,
        ..Options::default()
    })
    .await
    .unwrap()
    .close()
    .await;
}
