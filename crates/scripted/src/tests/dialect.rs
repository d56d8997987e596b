//! The other three dialects over a real socket: two turns of a script, streamed and not, and refusals.

use reqwest::header::CONTENT_TYPE;
use rollcage_dialect::sse::Splitter;
use rollcage_model::script::Step;
use serde_json::{Value, json};

use super::{Endpoint, text};

/// One answer: reasoning, text, call (id, name, arguments), finish reason, and the tokens of the prompt.
#[derive(Debug, Default, PartialEq)]
struct ParsedAnswer {
    thought: String,
    words: String,
    call: Option<(String, Value)>,
    end: String,
    prompt_tokens: u64,
}

/// Everything that differs between dialects, so that all share the same tests.
struct Speaker {
    key_header: &'static str,
    path: fn(is_stream: bool) -> &'static str,
    request: fn() -> Value,
    read_whole: fn(&Value) -> ParsedAnswer,
    read_events: fn(&[(String, Value)]) -> ParsedAnswer,
    /// Appends an answer with a call, and the call's result, as a client sends them back.
    go_on: fn(&mut Value, &Value),
    /// The finish reasons of an answer with a call and of one without.
    ends: [&'static str; 2],
    /// The path of an error's type, and the type for a bad request.
    error: (&'static str, &'static str),
}

const ANTHROPIC: Speaker = Speaker {
    key_header: "x-api-key",
    path: |_| "/v1/messages?beta=true",
    request: || {
        json!({"model": "m", "max_tokens": 4096, "system": [{"type": "text", "text": "You help."}],
            "messages": [{"role": "user", "content": "Look."}],
            "tools": [{"name": "Bash", "input_schema": schema()}]})
    },
    read_whole: |body| {
        assert_eq!(
            (&body["type"], &body["role"]),
            (&json!("message"), &json!("assistant"))
        );
        let mut said = ParsedAnswer {
            end: text(&body["stop_reason"]),
            prompt_tokens: body["usage"]["input_tokens"].as_u64().unwrap(),
            ..ParsedAnswer::default()
        };
        for block in body["content"].as_array().unwrap() {
            match block["type"].as_str().unwrap() {
                "thinking" => said.thought += block["thinking"].as_str().unwrap(),
                "text" => said.words += block["text"].as_str().unwrap(),
                _ => said.call = Some((text(&block["name"]), block["input"].clone())),
            }
        }
        said
    },
    read_events: read_anthropic_events,
    go_on: |request, answer| {
        let id = answer["content"].as_array().unwrap().last().unwrap()["id"].clone();
        let result = json!([{"type": "tool_result", "tool_use_id": id, "content": "ok"}]);
        let messages = request["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": "assistant", "content": answer["content"]}));
        messages.push(json!({"role": "user", "content": result}));
    },
    ends: ["tool_use", "end_turn"],
    error: ("/error/type", "invalid_request_error"),
};

const RESPONSES: Speaker = Speaker {
    key_header: "authorization",
    path: |_| "/v1/responses",
    request: || {
        json!({"model": "m", "store": false, "instructions": "You help.",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Look."}]}],
            "tools": [{"type": "function", "name": "Bash", "parameters": schema()}]})
    },
    read_whole: read_response,
    read_events: |events| {
        let kinds: Vec<_> = events.iter().map(|(kind, _)| kind.as_str()).collect();
        assert_eq!(kinds[..2], ["response.created", "response.in_progress"]);
        assert_eq!(kinds.last(), Some(&"response.completed"));
        for (at, (_, event)) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], at);
        }
        read_response(&events.last().unwrap().1["response"])
    },
    go_on: |request, answer| {
        let output = answer["output"].as_array().unwrap();
        let result = json!({"type": "function_call_output", "call_id": output.last().unwrap()["call_id"], "output": "ok"});
        let input = request["input"].as_array_mut().unwrap();
        input.extend(output.iter().cloned());
        input.push(result);
    },
    ends: ["completed", "completed"],
    error: ("/error/type", "invalid_request_error"),
};

const GEMINI: Speaker = Speaker {
    key_header: "x-goog-api-key",
    path: |is_stream| match is_stream {
        true => "/v1beta/models/m:streamGenerateContent?alt=sse",
        false => "/v1beta/models/m:generateContent",
    },
    request: || {
        json!({"systemInstruction": {"parts": [{"text": "You help."}]},
            "contents": [{"role": "user", "parts": [{"text": "Look."}]}],
            "generationConfig": {"thinkingConfig": {"includeThoughts": true}},
            "tools": [{"functionDeclarations": [{"name": "Bash", "parametersJsonSchema": schema()}]}]})
    },
    read_whole: |body| read_gemini([body]),
    read_events: |events| read_gemini(events.iter().map(|(_, event)| event)),
    go_on: |request, answer| {
        let content = &answer["candidates"][0]["content"];
        let call = &content["parts"].as_array().unwrap().last().unwrap()["functionCall"];
        let result = json!({"functionResponse": {"id": call["id"], "name": call["name"], "response": {"output": "ok"}}});
        let contents = request["contents"].as_array_mut().unwrap();
        contents.push(content.clone());
        contents.push(json!({"role": "user", "parts": [result]}));
    },
    ends: ["STOP", "STOP"],
    error: ("/error/status", "INVALID_ARGUMENT"),
};

fn schema() -> Value {
    json!({"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]})
}

fn read_anthropic_events(events: &[(String, Value)]) -> ParsedAnswer {
    let mut said = ParsedAnswer::default();
    let mut arguments = String::new();
    assert_eq!(events[0].0, "message_start");
    assert_eq!(events.last().unwrap().0, "message_stop");
    for (_, event) in events {
        let delta = &event["delta"];
        match (event["type"].as_str().unwrap(), delta["type"].as_str()) {
            ("content_block_start", _) if event["content_block"]["type"] == "tool_use" => {
                said.call = Some((text(&event["content_block"]["name"]), Value::Null));
            }
            (_, Some("thinking_delta")) => said.thought += delta["thinking"].as_str().unwrap(),
            (_, Some("text_delta")) => said.words += delta["text"].as_str().unwrap(),
            (_, Some("input_json_delta")) => arguments += delta["partial_json"].as_str().unwrap(),
            ("message_delta", _) => {
                said.end = text(&delta["stop_reason"]);
                said.prompt_tokens = event["usage"]["input_tokens"].as_u64().unwrap();
            }
            _ => {}
        }
    }
    if let Some((_, input)) = &mut said.call {
        *input = serde_json::from_str(&arguments).unwrap();
    }
    said
}

fn read_response(body: &Value) -> ParsedAnswer {
    let mut said = ParsedAnswer {
        end: text(&body["status"]),
        prompt_tokens: body["usage"]["input_tokens"].as_u64().unwrap(),
        ..ParsedAnswer::default()
    };
    for item in body["output"].as_array().unwrap() {
        match item["type"].as_str().unwrap() {
            "reasoning" => said.thought += &text(&item["summary"][0]["text"]),
            "message" => said.words += item["content"][0]["text"].as_str().unwrap(),
            _ => {
                let arguments = item["arguments"].as_str().unwrap();
                let arguments = serde_json::from_str(arguments).unwrap();
                said.call = Some((text(&item["name"]), arguments));
            }
        }
    }
    said
}

fn read_gemini<'a>(pieces: impl IntoIterator<Item = &'a Value>) -> ParsedAnswer {
    let mut said = ParsedAnswer::default();
    for piece in pieces {
        let candidate = &piece["candidates"][0];
        for part in candidate["content"]["parts"]
            .as_array()
            .into_iter()
            .flatten()
        {
            if let Some(call) = part.get("functionCall") {
                said.call = Some((text(&call["name"]), call["args"].clone()));
            } else if part["thought"] == true {
                said.thought += part["text"].as_str().unwrap();
            } else {
                said.words += &text(&part["text"]);
            }
        }
        said.end += candidate["finishReason"].as_str().unwrap_or_default();
        let tokens = piece["usageMetadata"]["promptTokenCount"].as_u64();
        said.prompt_tokens = tokens.unwrap_or(said.prompt_tokens);
    }
    said
}

impl Endpoint {
    async fn ask(&self, speaker: &Speaker, path: &str, body: &Value) -> (u16, String, String) {
        let root = self.scripted.root_url();
        let key = match speaker.key_header {
            "authorization" => format!("bearer {}", self.key),
            _ => self.key.clone(),
        };
        let request = self.client.post(format!("{root}{path}"));
        let request = request.header(speaker.key_header, key);
        let response = request.body(body.to_string()).send().await.unwrap();
        let kind = response.headers()[CONTENT_TYPE]
            .to_str()
            .unwrap()
            .to_owned();
        let status = response.status().as_u16();
        (status, kind, response.text().await.unwrap())
    }

    /// The answer as JSON and, requested again, as a stream.
    async fn both(&self, speaker: &Speaker, body: &Value) -> (Value, Vec<(String, Value)>) {
        let (status, kind, whole) = self.ask(speaker, (speaker.path)(false), body).await;
        assert_eq!(
            (status, kind.as_str()),
            (200, "application/json"),
            "{whole}"
        );
        let mut streamed = body.clone();
        if speaker.key_header != GEMINI.key_header {
            streamed["stream"] = true.into();
        }
        let (status, kind, stream) = self.ask(speaker, (speaker.path)(true), &streamed).await;
        assert_eq!(
            (status, kind.as_str()),
            (200, "text/event-stream"),
            "{stream}"
        );
        let events = Splitter::new(1 << 20).push(stream.as_bytes()).unwrap();
        let events = events.into_iter().map(|event| {
            let data = serde_json::from_str(&event.data.unwrap()).unwrap();
            (event.name, data)
        });
        (serde_json::from_str(&whole).unwrap(), events.collect())
    }
}

fn steps() -> Vec<Step> {
    let think = Some("Erst schauen… 🦀".to_owned());
    let say = Some("Now I look.".to_owned());
    vec![
        Step {
            think,
            say,
            ..Step::shell("echo 'ö'")
        },
        Step {
            say: Some("Fertig ✓".into()),
            ..Step::default()
        },
    ]
}

async fn check(speaker: Speaker) {
    let endpoint = Endpoint::start(steps()).await;
    let mut body = (speaker.request)();
    let (whole, events) = endpoint.both(&speaker, &body).await;
    let first = (speaker.read_whole)(&whole);
    assert_eq!((speaker.read_events)(&events), first);
    let tokens = endpoint.log.served()[0].prompt_ids.len() as u64;
    assert_eq!(
        first,
        ParsedAnswer {
            thought: "Erst schauen… 🦀".into(),
            words: "Now I look.".into(),
            call: Some(("Bash".into(), json!({"command": "echo 'ö'"}))),
            end: speaker.ends[0].into(),
            prompt_tokens: tokens,
        }
    );

    (speaker.go_on)(&mut body, &whole);
    let (whole, events) = endpoint.both(&speaker, &body).await;
    let second = (speaker.read_whole)(&whole);
    assert_eq!((speaker.read_events)(&events), second);
    assert_eq!(
        (second.words.as_str(), second.call, second.end.as_str()),
        ("Fertig ✓", None, speaker.ends[1])
    );
    // The history comes back as the same tokens.
    let served = endpoint.log.served();
    let before = [&served[0].prompt_ids[..], &served[0].sampled_ids].concat();
    assert!(served[2].prompt_ids.starts_with(&before));

    refuses(endpoint, &speaker).await;
}

async fn refuses(mut endpoint: Endpoint, speaker: &Speaker) {
    let path = (speaker.path)(true);
    let kind = |body: &str| {
        let error: Value = serde_json::from_str(body).unwrap();
        text(error.pointer(speaker.error.0).unwrap())
    };
    let mut body = (speaker.request)();
    body["tools"] = match speaker.key_header {
        "x-goog-api-key" => json!([{"functionDeclarations": [{"name": "other"}]}]),
        "x-api-key" => json!([{"name": "other", "input_schema": {"type": "object"}}]),
        _ => json!([{"type": "function", "name": "other", "parameters": {"type": "object"}}]),
    };
    let (status, _, answer) = endpoint.ask(speaker, path, &body).await;
    assert_eq!((status, kind(&answer).as_str()), (400, speaker.error.1));
    assert!(answer.contains("step 1 of the script runs a shell command"));
    let (status, _, answer) = endpoint.ask(speaker, path, &json!([])).await;
    assert_eq!((status, kind(&answer).as_str()), (400, speaker.error.1));

    endpoint.key = "sk-other".into();
    let (status, _, answer) = endpoint.ask(speaker, path, &body).await;
    assert_eq!(status, 401);
    assert!(
        kind(&answer).to_lowercase().contains("authenticat"),
        "{answer}"
    );
    endpoint.scripted.close().await;
}

#[tokio::test]
async fn anthropic_messages_are_served() {
    check(ANTHROPIC).await;
}

#[tokio::test]
async fn openai_responses_are_served() {
    check(RESPONSES).await;
}

#[tokio::test]
async fn gemini_is_served() {
    check(GEMINI).await;
}

#[tokio::test]
async fn a_truncated_answer_is_marked_in_every_dialect() {
    let endpoint = Endpoint::start(steps()).await;
    let cut = async |speaker: &Speaker, member: &str, value: Value, pointer: &str| {
        let mut body = (speaker.request)();
        body[member] = value;
        let (_, _, whole) = endpoint.ask(speaker, (speaker.path)(false), &body).await;
        let whole: Value = serde_json::from_str(&whole).unwrap();
        text(whole.pointer(pointer).unwrap())
    };
    let reason = cut(&ANTHROPIC, "max_tokens", json!(3), "/stop_reason").await;
    assert_eq!(reason, "max_tokens");
    let limit = json!({"maxOutputTokens": 3});
    let reason = cut(
        &GEMINI,
        "generationConfig",
        limit,
        "/candidates/0/finishReason",
    )
    .await;
    assert_eq!(reason, "MAX_TOKENS");
    let pointer = "/incomplete_details/reason";
    let reason = cut(&RESPONSES, "max_output_tokens", json!(3), pointer).await;
    assert_eq!(reason, "max_output_tokens");
    endpoint.scripted.close().await;
}

#[tokio::test]
async fn token_counts_match_the_prompts_of_model_calls() {
    let endpoint = Endpoint::start(steps()).await;
    let counted = async |speaker: &Speaker, path: &str, pointer: &str| {
        let body = (speaker.request)();
        let (status, _, answer) = endpoint.ask(speaker, path, &body).await;
        assert_eq!(status, 200, "{answer}");
        endpoint.ask(speaker, (speaker.path)(false), &body).await;
        let asked = endpoint.log.served().pop().unwrap().prompt_ids.len();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        (
            answer.pointer(pointer).unwrap().as_u64().unwrap(),
            asked as u64,
        )
    };
    let (count, asked) = counted(&ANTHROPIC, "/v1/messages/count_tokens", "/input_tokens").await;
    assert_eq!(count, asked);
    let (count, asked) = counted(&GEMINI, "/v1beta/models/m:countTokens", "/totalTokens").await;
    assert_eq!(count, asked);
    endpoint.scripted.close().await;
}

#[tokio::test]
async fn each_client_gets_its_own_list_of_models() {
    let endpoint = Endpoint::start(steps()).await;
    let list = async |headers: &[(&str, &str)]| {
        let url = format!("{}/models", endpoint.scripted.base_url());
        let request = endpoint.client.get(url);
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        let text = request.send().await.unwrap().text().await.unwrap();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let key = endpoint.key.as_str();
    let bearer = format!("Bearer {key}");
    let openai = list(&[("authorization", &bearer)]).await;
    assert_eq!(openai["data"][0]["object"], "model");
    let anthropic = list(&[("x-api-key", key), ("anthropic-version", "2023-06-01")]).await;
    assert_eq!(anthropic["data"][0]["type"], "model");
    let gemini = list(&[("x-goog-api-key", key)]).await;
    assert_eq!(gemini["models"][0]["name"], "models/scripted");
    endpoint.scripted.close().await;
}
