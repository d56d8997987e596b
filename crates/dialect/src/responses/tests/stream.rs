//! Answers rendered as Responses, streamed and whole.

use super::*;

#[test]
fn a_streamed_answer_has_every_event_that_clients_wait_for() {
    let reply = reply(
        json!({"role": "assistant", "reasoning_content": "hm", "content": "ok", "tool_calls": [call("c1", "f", "{}")]}),
        "tool_calls",
    );
    let events = stream(&mut plain(), &reply.deltas());
    let names: Vec<String> = events
        .iter()
        .map(|event| {
            let name = event["type"]
                .as_str()
                .unwrap()
                .trim_start_matches("response.");
            format!("{name} {}", event["output_index"])
        })
        .collect();
    assert_eq!(
        names,
        [
            "created null",
            "in_progress null",
            "output_item.added 0",
            "reasoning_summary_part.added 0",
            "reasoning_summary_text.delta 0",
            "reasoning_summary_text.done 0",
            "reasoning_summary_part.done 0",
            "output_item.done 0",
            "output_item.added 1",
            "content_part.added 1",
            "output_text.delta 1",
            "output_text.done 1",
            "content_part.done 1",
            "output_item.done 1",
            "output_item.added 2",
            "function_call_arguments.delta 2",
            "function_call_arguments.done 2",
            "output_item.done 2",
            "completed null",
        ]
    );
    let response = &events.last().unwrap()["response"];
    assert_eq!(
        response["usage"].to_string(),
        r#"{"input_tokens":10,"input_tokens_details":{"cached_tokens":3},"output_tokens":4,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":14}"#
    );
    let done = events
        .iter()
        .filter(|event| event["type"] == "response.output_item.done");
    let items: Vec<Value> = done.map(|event| event["item"].clone()).collect();
    assert_eq!(response["output"], Value::Array(items));
}

#[test]
fn calls_go_back_under_the_names_that_the_agent_knows() {
    let request = json!({"input": "", "include": ["reasoning.encrypted_content"], "tools": [
        {"type": "namespace", "name": "mcp__s", "description": "About.", "tools": [
            {"type": "function", "name": "f", "description": "F."},
            {"type": "custom", "name": "g"},
        ]},
        {"type": "custom", "name": "patch"},
    ]});
    let reply = reply(
        json!({"role": "assistant", "reasoning": "hm", "tool_calls": [
            call("1", "mcp__s__f", "{"), call("2", "mcp__s__g", r#"{"input": "a\nb"}"#), call("3", "patch", "raw"), call("4", "other", ""),
        ]}),
        "tool_calls",
    );
    let whole: Value = serde_json::from_slice(&answer(request).whole(&reply)).unwrap();
    let items = whole["output"].as_array().unwrap();
    assert_eq!(items[0]["encrypted_content"], "rollcage");
    let shown: Vec<String> = items[1..]
        .iter()
        .map(|item| {
            let names = ["type", "namespace", "name", "call_id", "arguments", "input"];
            let texts = names.iter().filter_map(|name| item[name].as_str());
            texts.collect::<Vec<_>>().join(" ")
        })
        .collect();
    assert_eq!(
        shown,
        [
            "function_call mcp__s f 1 {",
            "custom_tool_call mcp__s g 2 a\nb",
            "custom_tool_call patch 3 raw",
            "function_call other 4 ",
        ]
    );
}

#[test]
fn an_answer_that_was_cut_is_incomplete() {
    let reply = reply(json!({"role": "assistant", "content": "half"}), "length");
    let events = stream(&mut plain(), &reply.deltas());
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(
        last["response"]["incomplete_details"],
        json!({"reason": "max_output_tokens"})
    );
}

#[test]
fn an_empty_answer_is_an_empty_message() {
    let reply = reply(json!({"role": "assistant", "content": ""}), "stop");
    let events = stream(&mut plain(), &reply.deltas());
    let output = &events.last().unwrap()["response"]["output"];
    assert_eq!(output[0]["content"][0]["text"], "");
    check(output.clone(), &[r#"{"role":"assistant","content":""}"#]);
}

#[test]
fn a_broken_stream_ends_with_a_failure_both_kinds_of_clients_see() {
    let mut answer = plain();
    answer.start();
    let events = events(&answer.error("This model's maximum context length is 5"));
    let shown: Vec<String> = events
        .iter()
        .map(|event| format!("{} {}", event["sequence_number"], event["type"]))
        .collect();
    assert_eq!(shown, [r#"2 "error""#, r#"3 "response.failed""#]);
    assert_eq!(
        events[1]["response"]["error"]["code"],
        "context_length_exceeded"
    );
    assert_eq!(answer.keep_alive()[0], b':');
    assert_eq!(
        String::from_utf8(error_body(429, "slow")).unwrap(),
        r#"{"error":{"message":"slow","type":"rate_limit_error","param":null,"code":null}}"#
    );
    assert!(
        String::from_utf8(models_answer("m"))
            .unwrap()
            .contains(r#""id":"m""#)
    );
}

#[test]
fn calls_without_ids_or_with_one_index_for_all_stay_apart() {
    let head = |index: usize, id: &str, name: &str| Delta::Call {
        index,
        id: id.to_owned(),
        name: name.to_owned(),
    };
    let arguments = |index: usize, text: &str| Delta::Arguments {
        index,
        text: text.to_owned(),
    };
    let deltas = [
        head(0, "a", "f"),
        arguments(0, "{"),
        head(0, "a", "f"),
        arguments(0, "}"),
        head(0, "b", "g"),
        arguments(0, "[]"),
        head(1, "", "h"),
        Delta::Finish("tool_calls".to_owned()),
    ];
    let events = stream(&mut plain(), &deltas);
    let output = events.last().unwrap()["response"]["output"].clone();
    let shown: Vec<String> = output
        .as_array()
        .unwrap()
        .iter()
        .map(|item| format!("{} {}", item["name"], item["arguments"]))
        .collect();
    assert_eq!(shown, [r#""f" "{}""#, r#""g" "[]""#, r#""h" """#]);
    assert!(!output[2]["call_id"].as_str().unwrap().is_empty());
}
