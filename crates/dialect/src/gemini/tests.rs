use proptest::prelude::*;

use super::*;
use crate::chat::Render;
use crate::chat::{Delta, Reply, read_reply};

fn chat_of(body: &str) -> Value {
    let translation = to_chat(body.as_bytes(), "m", ResponseEncoding::Events).unwrap();
    serde_json::from_slice(&translation.chat).unwrap()
}

/// The translated messages, one per line.
#[track_caller]
fn check(contents: Value, expect: &[&str]) {
    let chat = chat_of(&json!({ "contents": contents }).to_string());
    let messages = chat["messages"].as_array().unwrap();
    let got: Vec<String> = messages.iter().map(Value::to_string).collect();
    assert_eq!(got, expect);
}

fn call(id: &str, name: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

fn reply(message: Value, finish: &str) -> Reply {
    let choice = json!({"message": message, "finish_reason": finish});
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}});
    read_reply(
        &json!({"choices": [choice], "usage": usage}).to_string(),
        false,
    )
}

fn answer(encoding: ResponseEncoding) -> GeminiRenderer {
    let config = json!({"thinkingConfig": {"includeThoughts": true}});
    let body = json!({"contents": [], "generationConfig": config});
    to_chat(body.to_string().as_bytes(), "m", encoding)
        .unwrap()
        .answer
}

fn stream(answer: &mut GeminiRenderer, deltas: &[Delta]) -> String {
    let mut out = answer.start();
    for delta in deltas {
        out.extend(answer.push(delta));
        out.extend(answer.keep_alive());
    }
    out.extend(answer.finish());
    String::from_utf8(out).unwrap()
}

/// The events of a stream as Google's SDK parses them.
fn events(stream: &str) -> Vec<Value> {
    let mut out = Vec::new();
    let mut rest = stream;
    while let Some(event) = rest.trim_start().strip_prefix("data: ") {
        let (data, more) = event.split_once("\n\n").unwrap();
        out.push(serde_json::from_str(data).unwrap());
        rest = more;
    }
    assert_eq!(rest.trim(), "");
    out
}

/// All parts of the chunks, with adjacent texts of the same type joined.
fn joined(chunks: &[Value]) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::new();
    for part in chunks
        .iter()
        .flat_map(|it| it["candidates"][0]["content"]["parts"].as_array().unwrap())
    {
        let Some(text) = part["text"].as_str() else {
            out.push(part.clone());
            continue;
        };
        match out.last_mut() {
            _ if text.is_empty() => {}
            Some(last) if last["text"].is_string() && last["thought"] == part["thought"] => {
                last["text"] = format!("{}{text}", last["text"].as_str().unwrap()).into();
            }
            _ => out.push(part.clone()),
        }
    }
    out
}

#[test]
fn an_aborted_stream_ends_within_an_event() {
    let mut answer = answer(ResponseEncoding::Events);
    let mut sent = answer.start();
    sent.extend(answer.push(&Delta::Text("a".to_owned())));
    sent.extend(answer.broken_off().unwrap());
    let sent = String::from_utf8(sent).unwrap();
    let (_, rest) = sent.rsplit_once("\n\n").unwrap();
    let data = rest.strip_prefix("data: ").unwrap();
    assert!(serde_json::from_str::<Value>(data).is_err(), "{sent}");
}

#[test]
fn what_gemini_cli_sends_back_is_what_the_model_said() {
    let turns = [
        include_str!("../../tests/transcripts/gemini-cli-1.json"),
        include_str!("../../tests/transcripts/gemini-cli-2.json"),
        include_str!("../../tests/transcripts/gemini-cli-3.json"),
    ];
    let chats: Vec<Value> = turns.iter().map(|turn| chat_of(turn)).collect();
    let said = [
        json!({"role": "assistant", "content": "Writing the file.", "reasoning_content": "**Plan** I think I should write the file.", "tool_calls": [
            call("call_a1", "write_file", r#"{"file_path":"hello.txt","content":"hi"}"#),
            call("call_a2", "run_shell_command", r#"{"command":"echo two"}"#),
        ]}),
        json!({"role": "assistant", "content": null, "reasoning_content": "odd", "tool_calls": [
            call("call_2", "list_directory", "not json"),
        ]}),
    ];
    for (pair, said) in chats.windows(2).zip(said) {
        let [before, after] = [&pair[0], &pair[1]].map(|it| it["messages"].as_array().unwrap());
        let before_text: Vec<String> = before.iter().map(Value::to_string).collect();
        let after_text: Vec<String> = after.iter().map(Value::to_string).collect();
        assert_eq!(before_text, after_text[..before.len()]);
        assert_eq!(after[before.len()].to_string(), said.to_string());
        assert_eq!(pair[0]["tools"].to_string(), pair[1]["tools"].to_string());
    }
    let results: Vec<String> = chats[2]["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "tool")
        .map(|message| format!("{}: {}", message["tool_call_id"], message["content"]))
        .collect();
    assert_eq!(results.len(), 3);
    assert!(
        results[0].starts_with(r#""call_a1": "Successfully created"#),
        "{results:?}"
    );
    assert_eq!(chats[0]["tools"].as_array().unwrap().len(), 15);
    assert_eq!(
        (&chats[0]["temperature"], &chats[0]["top_p"]),
        (&json!(1), &json!(0.95))
    );
}

#[test]
fn a_path_gives_model_and_encoding() {
    let generate = |model: &str, encoding| {
        let model = model.to_owned();
        Some(ModelMethod::Generate { model, encoding })
    };
    for (path, query, expect) in [
        (
            "/v1beta/models/m:generateContent",
            "",
            generate("m", ResponseEncoding::Whole),
        ),
        (
            "/v1beta/models/a/b:c:streamGenerateContent",
            "key=k&alt=sse",
            generate("a/b:c", ResponseEncoding::Events),
        ),
        (
            "/v1beta/models/m:streamGenerateContent",
            "",
            generate("m", ResponseEncoding::Array),
        ),
        (
            "/v1/models/m:countTokens",
            "",
            Some(ModelMethod::CountTokens {
                model: "m".to_owned(),
            }),
        ),
        ("/v1beta/models/m:embedContent", "", None),
        ("/v1beta/models", "", None),
    ] {
        assert_eq!(ModelMethod::parse(path, query), expect, "{path}");
    }
}

#[test]
fn results_are_matched_to_calls_by_id_or_by_name_and_order() {
    check(
        json!([
            {"parts": [{"text": "a"}]},
            {"role": "model", "parts": [
                {"text": "thinks", "thought": true}, {"text": "b"}, {"text": "c"},
                {"functionCall": {"name": "f", "args": {"x": 1}}, "thoughtSignature": "Zm9v"},
                {"functionCall": {"name": "f"}},
                {"functionCall": {"name": "g", "id": "g__7", "args": {}}},
            ]},
            {"role": "user", "parts": [
                {"functionResponse": {"name": "g", "id": "g__7", "response": {"error": "no"}}},
                {"functionResponse": {"name": "f", "id": "f-1794", "response": {"output": "one"}}},
                {"text": "go on"},
                {"functionResponse": {"name": "f", "response": {"output": "two", "more": 1}, "parts": [{"inlineData": {"mimeType": "image/png", "data": "AA=="}}]}},
            ]},
        ]),
        &[
            r#"{"role":"user","content":"a"}"#,
            r#"{"role":"assistant","content":"bc","reasoning_content":"thinks","tool_calls":[{"id":"call_0","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},{"id":"call_1","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"7","type":"function","function":{"name":"g","arguments":"{}"}}]}"#,
            r#"{"role":"tool","tool_call_id":"7","content":"{\"error\":\"no\"}"}"#,
            r#"{"role":"tool","tool_call_id":"call_0","content":"one"}"#,
            r#"{"role":"tool","tool_call_id":"call_1","content":"{\"output\":\"two\",\"more\":1}"}"#,
            r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}},{"type":"text","text":"go on"}]}"#,
        ],
    );
}

#[test]
fn a_result_that_is_only_text_is_that_text() {
    for (response, expect) in [
        (json!({"output": "a"}), "a"),
        (json!({"result": "a"}), "a"),
        (json!({"name": "f", "content": "a"}), "a"),
        (
            json!({"name": "g", "content": "a"}),
            r#"{"name":"g","content":"a"}"#,
        ),
        (json!({"output": {"b": 1}}), r#"{"output":{"b":1}}"#),
    ] {
        let part = json!({"functionResponse": {"name": "f", "response": response}});
        let chat =
            chat_of(&json!({"contents": [{"role": "function", "parts": [part]}]}).to_string());
        assert_eq!(chat["messages"][0]["content"], expect);
    }
}

#[test]
fn tools_and_settings_get_their_names_in_chat() {
    let body = json!({
        "system_instruction": {"parts": [{"text": "be"}, {"text": "good"}]},
        "contents": {"parts": [{"text": "hi"}]},
        "tools": [
            {"googleSearch": {}},
            {"functionDeclarations": [
                {"name": "f", "description": "F.", "parameters": {"type": "OBJECT", "properties": {
                    "type": {"type": "STRING", "nullable": true},
                    "list": {"type": "ARRAY", "items": {"type": "INTEGER"}, "minItems": "1"},
                }, "required": ["list"], "propertyOrdering": ["type", "list"]}},
                {"name": "g"},
            ]},
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
        "generationConfig": {"temperature": 0.5, "top_p": 0.9, "topK": 64, "maxOutputTokens": 7, "stopSequences": ["x"],
            "responseMimeType": "application/json", "responseSchema": {"type": "STRING"},
            "thinkingConfig": {"thinkingLevel": "LOW", "thinkingBudget": 5}},
    });
    let translation = to_chat(body.to_string().as_bytes(), "m", ResponseEncoding::Whole).unwrap();
    assert!(!translation.is_stream);
    assert_eq!(
        translation.dropped,
        ["tool googleSearch", "topK", "thinkingBudget"]
    );
    assert_eq!(
        String::from_utf8(translation.chat).unwrap(),
        r#"{"model":"m","messages":[{"role":"system","content":"be\n\ngood"},{"role":"user","content":"hi"}],"tool_choice":{"type":"function","function":{"name":"f"}},"tools":[{"type":"function","function":{"name":"f","description":"F.","parameters":{"type":"object","properties":{"type":{"type":["string","null"]},"list":{"type":"array","items":{"type":"integer"},"minItems":1}},"required":["list"]}}},{"type":"function","function":{"name":"g","description":"","parameters":{"type":"object","properties":{}}}}],"temperature":0.5,"top_p":0.9,"max_tokens":7,"stop":["x"],"response_format":{"type":"json_schema","json_schema":{"name":"response","schema":{"type":"string"}}},"reasoning_effort":"low"}"#
    );
}

#[test]
fn untranslatable_requests_are_refused_with_the_reason() {
    for (body, expect) in [
        ("1", "the request body is not a JSON object"),
        ("{}", "the request's member `contents` is missing"),
        (
            r#"{"contents":[],"cachedContent":"c"}"#,
            "`cachedContent` (nothing is stored here)",
        ),
        (
            r#"{"contents":[{"role":"robot"}]}"#,
            "the request's member `contents[0].role`",
        ),
        (
            r#"{"contents":[{"parts":1}]}"#,
            "the request's member `contents[0].parts` is no list",
        ),
        (
            r#"{"contents":[{"parts":[{"executableCode":{}}]}]}"#,
            "a user's part with `executableCode`",
        ),
        (
            r#"{"contents":[],"generationConfig":{"candidateCount":2}}"#,
            "more than one candidate",
        ),
    ] {
        let error = to_chat(body.as_bytes(), "m", ResponseEncoding::Whole)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(expect), "{error}");
    }
}

#[test]
fn text_is_streamed_and_calls_are_sent_whole_at_the_end() {
    let reply = reply(
        json!({"reasoning_content": "hm", "content": "ok", "tool_calls": [call("c1", "f", r#"{"a": 1}"#), call("c2", "g", "[")]}),
        "tool_calls",
    );
    let text = stream(&mut answer(ResponseEncoding::Events), &reply.deltas());
    let shown: Vec<String> = events(&text).iter().map(Value::to_string).collect();
    assert_eq!(
        shown,
        [
            r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"hm","thought":true}]},"index":0}],"modelVersion":"m"}"#,
            r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"ok"}]},"index":0}],"modelVersion":"m"}"#,
            r#"{"candidates":[{"content":{"role":"model","parts":[{"functionCall":{"id":"c1","name":"f","args":{"a":1}},"thoughtSignature":"rollcage686d"},{"functionCall":{"id":"c2","name":"g","args":{"__raw_arguments":"["}}}]},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":4,"totalTokenCount":14,"cachedContentTokenCount":3,"thoughtsTokenCount":0},"modelVersion":"m"}"#,
        ]
    );
}

#[test]
fn javascript_line_separators_are_escaped_in_streams() {
    let said = "a\u{2028}b\u{2029}c";
    let arguments = json!({"text": said}).to_string();
    let message = json!({"content": said, "tool_calls": [call("c1", "t", &arguments)]});
    for encoding in [ResponseEncoding::Events, ResponseEncoding::Array] {
        let text = stream(
            &mut answer(encoding),
            &reply(message.clone(), "tool_calls").deltas(),
        );
        assert!(!text.contains(['\u{2028}', '\u{2029}']), "{text}");
        assert!(text.contains(r"a\u2028b\u2029c"), "{text}");
    }
    let sent = reply(message, "tool_calls").deltas();
    let events = events(&stream(&mut answer(ResponseEncoding::Events), &sent));
    let part = &events[0]["candidates"][0]["content"]["parts"][0];
    assert_eq!(part["text"], said, "and mean what they meant");
}

#[test]
fn finish_reasons_are_geminis_and_come_with_a_part() {
    for (finish, expect) in [
        ("stop", "STOP"),
        ("tool_calls", "STOP"),
        ("length", "MAX_TOKENS"),
        ("content_filter", "SAFETY"),
    ] {
        let reply = reply(json!({"content": ""}), finish);
        let events = events(&stream(
            &mut answer(ResponseEncoding::Events),
            &reply.deltas(),
        ));
        let candidate = &events.last().unwrap()["candidates"][0];
        assert_eq!(candidate["finishReason"], expect);
        assert_eq!(candidate["content"]["parts"], json!([{"text": ""}]));
    }
}

#[test]
fn an_error_in_a_stream_is_a_chunk_of_its_own() {
    let message = r#"{"error":{"code":502,"message":"gone","status":"UNAVAILABLE"}}"#;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    assert_eq!(
        text(answer(ResponseEncoding::Events).error("gone")),
        format!("{message}\n")
    );
    let mut array = answer(ResponseEncoding::Array);
    assert_eq!(text(array.error("gone")), format!("{message}]"));
    assert_eq!(array.broken_off(), None);
    array.push(&Delta::Text("a".to_owned()));
    assert_eq!(text(array.error("gone")), format!(",\n{message}]"));
    assert_eq!(
        text(error_body(429, "slow")),
        r#"{"error":{"code":429,"message":"slow","status":"RESOURCE_EXHAUSTED"}}"#
    );
    assert_eq!(text(count_tokens_answer(5)), r#"{"totalTokens":5}"#);
    assert!(text(models_answer("m")).contains(r#""name":"models/m""#));
}

/// Splits a text at `cuts`.
fn split_at_cuts(text: &str, cuts: &[usize]) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    let mut out = Vec::new();
    let (mut at, mut cuts) = (0, cuts.iter().cycle());
    while at < letters.len() {
        let end = (at + cuts.next().copied().unwrap_or(1).max(1)).min(letters.len());
        out.push(letters[at..end].iter().collect());
        at = end;
    }
    out
}

proptest! {
    #[test]
    fn any_split_of_an_answer_renders_the_same_answer(
        reasoning in ".{0,12}",
        text in ".{0,12}",
        arguments in prop::collection::vec(prop_oneof![".{0,12}", Just(r#"{"a":[1]}"#.to_owned())], 0..4),
        cuts in prop::collection::vec(1..5_usize, 1..5),
    ) {
        let calls: Vec<Value> = arguments.iter().enumerate()
            .map(|(at, text)| call(&format!("c{at}"), "f", text))
            .collect();
        let whole_reply = reply(json!({"reasoning_content": reasoning, "content": text, "tool_calls": calls}), "stop");
        let whole: Value = serde_json::from_slice(&answer(ResponseEncoding::Whole).whole(&whole_reply)).unwrap();

        let mut deltas: Vec<Delta> = Vec::new();
        deltas.extend(split_at_cuts(&reasoning, &cuts).into_iter().map(Delta::Reasoning));
        deltas.extend(split_at_cuts(&text, &cuts).into_iter().map(Delta::Text));
        let mut waiting = Vec::new();
        for (index, text) in arguments.iter().enumerate() {
            deltas.push(Delta::Call { index, id: format!("c{index}"), name: "f".to_owned() });
            waiting.push(split_at_cuts(text, &cuts).into_iter().map(move |text| Delta::Arguments { index, text }));
        }
        // The deltas of all calls interleave.
        for _ in 0..12 {
            deltas.extend(waiting.iter_mut().filter_map(Iterator::next));
        }
        deltas.extend([Delta::Finish("stop".to_owned()), Delta::Usage(whole_reply.usage.unwrap())]);
        let sent = events(&stream(&mut answer(ResponseEncoding::Events), &deltas));
        prop_assert_eq!(joined(&sent), joined(std::slice::from_ref(&whole)));
        prop_assert_eq!(&sent.last().unwrap()["usageMetadata"], &whole["usageMetadata"]);
        let array: Vec<Value> = serde_json::from_str(&stream(&mut answer(ResponseEncoding::Array), &deltas)).unwrap();
        prop_assert_eq!(array, sent);

        // Sent back without the thoughts, as the CLI does, it becomes the same message.
        let mut content = whole["candidates"][0]["content"].clone();
        content["parts"].as_array_mut().unwrap().retain(|part| part["thought"] != true);
        let chat = chat_of(&json!({"contents": [content]}).to_string());
        let message = &chat["messages"][0];
        prop_assert_eq!(message["content"].as_str().unwrap_or_default(), text);
        for (call, arguments) in message["tool_calls"].as_array().into_iter().flatten().zip(&arguments) {
            let back = call["function"]["arguments"].as_str().unwrap();
            prop_assert_eq!(back, if arguments.trim().is_empty() { "{}" } else { arguments.as_str() });
            prop_assert_eq!(message["reasoning_content"].as_str().unwrap_or_default(), &reasoning);
        }
    }
}
