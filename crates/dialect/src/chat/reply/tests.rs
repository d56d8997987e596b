use super::*;

/// A short text of everything in a reply that the tests check.
fn show(reply: &Reply) -> String {
    let list = |ids: &Option<Vec<u32>>| {
        ids.as_ref()
            .map_or("none".to_owned(), |ids| format!("{ids:?}"))
    };
    let logprobs = reply
        .logprobs
        .as_ref()
        .map_or("none".to_owned(), |entries| {
            let shown: Vec<String> = entries
                .iter()
                .map(|entry| format!("{:?}", entry.logprob))
                .collect();
            shown.join(" ").replace("Some(", "").replace(')', "")
        });
    let usage = reply.usage.map_or("none".to_owned(), |usage| {
        format!(
            "{}+{} cached {}",
            usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
        )
    });
    format!(
        "{}\nfinish {:?} complete {}\nprompt {} sampled {} logprobs {}\nusage {}\nerror {:?} flaws {:?}",
        reply.message.to_value(),
        reply.finish_reason,
        reply.is_complete,
        list(&reply.prompt_token_ids),
        list(&reply.token_ids),
        logprobs,
        usage,
        reply.upstream_error.as_ref().map(Value::to_string),
        reply.flaws,
    )
}

#[track_caller]
fn check(body: &str, is_stream: bool, expect: &str) {
    let reply = read_reply(body, is_stream);
    assert_eq!(show(&reply), expect);
    assert_eq!(read_message(body, is_stream), reply.message);
}

/// A stream with one chunk per choice.
fn stream(choices: &[&str]) -> String {
    choices
        .iter()
        .map(|choice| format!("data: {{\"choices\":[{{{choice}}}]}}\n\n"))
        .collect()
}

#[test]
fn a_vllm_stream_is_parsed() {
    check(
        include_str!("../../../tests/transcripts/vllm_stream.sse"),
        true,
        r#"{"role":"assistant","content":"","reasoning_content":"think","tool_calls":[{"id":"call_1","type":"function","function":{"name":"bash","arguments":"{\"command\": \"ls\"}"}}]}
finish Some("tool_calls") complete true
prompt [1, 2, 3] sampled [10, 11, 12, 13, 14] logprobs -0.10000000149011612 0.0 -0.5 -0.25 -1.0
usage 3+5 cached 2
error None flaws []"#,
    );
}

#[test]
fn a_vllm_answer_is_parsed() {
    check(
        include_str!("../../../tests/transcripts/vllm.json"),
        false,
        r#"{"role":"assistant","content":"done"}
finish Some("stop") complete true
prompt [1, 2] sampled [20, 21] logprobs -0.5 -0.125
usage 2+2 cached 0
error None flaws []"#,
    );
}

#[test]
fn an_sglang_answer_has_its_ids_in_the_choice() {
    check(
        include_str!("../../../tests/transcripts/sglang.json"),
        false,
        r#"{"role":"assistant","content":"hi"}
finish Some("stop") complete true
prompt [7, 8] sampled [9] logprobs -0.5
usage 2+1 cached 0
error None flaws []"#,
    );
}

#[test]
fn an_sglang_stream_has_its_ids_in_an_extra_chunk() {
    check(
        include_str!("../../../tests/transcripts/sglang_stream.sse"),
        true,
        r#"{"role":"assistant","content":"hi"}
finish Some("stop") complete true
prompt [7, 8] sampled [9, 10] logprobs -0.5 -0.25
usage 2+2 cached 0
error None flaws []"#,
    );
}

#[test]
fn ids_in_token_strings_replace_missing_ones() {
    let body = stream(&[r#""logprobs":{"content":[{"token":"token_id:5","logprob":-1.0}]}"#]);
    let reply = read_reply(&body, true);
    assert_eq!(
        (reply.token_ids, reply.is_from_strings),
        (Some(vec![5]), true)
    );
    let body = stream(&[
        r#""logprobs":{"content":[{"token":"token_id:5","logprob":-1.0},{"token":"x","logprob":-1}]}"#,
    ]);
    assert_eq!(read_reply(&body, true).token_ids, None);
}

#[test]
fn ids_in_token_strings_that_differ_from_the_list_are_a_flaw() {
    let body = stream(&[
        r#""token_ids":[5,6],"logprobs":{"content":[{"token":"token_id:5","logprob":-1.0},{"token":"token_id:7","logprob":-1}]}"#,
    ]);
    assert_eq!(read_reply(&body, true).flaws, [Flaw::Pairing { at: 1 }]);
}

#[test]
fn invalid_numbers_are_flaws_and_not_panics() {
    let body = stream(&[
        r#""logprobs":{"content":[{"token":"a","logprob":null},{"token":"b","logprob":0.5},{"token":"c","logprob":"x"}]}"#,
    ]);
    let flaws = [
        Flaw::Logprob { at: 0 },
        Flaw::PositiveLogprob { at: 1 },
        Flaw::Logprob { at: 2 },
    ];
    assert_eq!(read_reply(&body, true).flaws, flaws);
    for ids in ["[-1]", "[4294967296]", "[1.5]", "[null]", "3"] {
        let reply = read_reply(&stream(&[&format!("\"token_ids\":{ids}")]), true);
        assert!(matches!(reply.flaws[..], [Flaw::TokenId { .. }]), "{ids}");
        assert_eq!(reply.token_ids, None);
    }
    assert_eq!(
        read_reply("data: {\"choices\":[{\"logprobs\":NaN}]}\n\n", true).flaws,
        [Flaw::Unreadable]
    );
}

#[test]
fn a_truncated_stream_is_not_complete() {
    let whole = include_str!("../../../tests/transcripts/vllm_stream.sse");
    let cut = &whole[..whole.find("\\\"ls").unwrap()];
    let reply = read_reply(cut, true);
    assert_eq!(
        (reply.is_complete, reply.token_ids.unwrap().len()),
        (false, 4)
    );
}

#[test]
fn an_error_in_the_middle_of_a_stream_is_the_endpoints() {
    let body =
        stream(&[r#""delta":{"content":"a"}"#]) + "data: {\"error\":{\"message\":\"boom\"}}\n\n";
    assert_eq!(
        read_reply(&body, true).upstream_error.unwrap()["message"],
        "boom"
    );
    assert_eq!(
        read_reply("{\"error\":\"no\"}", true)
            .upstream_error
            .unwrap(),
        "no"
    );
}

#[test]
fn a_stream_whose_last_line_is_not_ended_still_counts() {
    let body = stream(&[r#""delta":{"content":"a"},"finish_reason":"stop""#]);
    assert!(read_reply(body.trim_end(), true).is_complete);
}

#[test]
fn parallel_calls_are_kept_apart_with_and_without_an_index() {
    let expect = ["x{}", "y[1]"];
    let shown = |calls: &[ToolCall]| -> Vec<String> {
        calls
            .iter()
            .map(|call| format!("{}{}", call.name, call.arguments))
            .collect()
    };
    let with = stream(&[
        r#""delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"x","arguments":"{"}},{"index":1,"id":"b","function":{"name":"y","arguments":"["}}]}"#,
        r#""delta":{"tool_calls":[{"index":1,"function":{"arguments":"1]"}},{"index":0,"function":{"name":"x","arguments":"}"}}]}"#,
    ]);
    assert_eq!(shown(&read_reply(&with, true).message.tool_calls), expect);
    let without = stream(&[
        r#""delta":{"tool_calls":[{"id":"a","function":{"name":"x","arguments":"{}"}},{"id":"b","function":{"name":"y","arguments":"["}}]}"#,
        r#""delta":{"tool_calls":[{"function":{"arguments":"1]"}}]}"#,
    ]);
    assert_eq!(
        shown(&read_reply(&without, true).message.tool_calls),
        expect
    );
    let far = stream(&[r#""delta":{"tool_calls":[{"index":4000000000,"function":{"name":"x"}}]}"#]);
    assert_eq!(read_reply(&far, true).message.tool_calls.len(), 1);
}

#[test]
fn the_last_usage_is_found_without_parsing_the_rest() {
    let body = br#"{"choices":[{"text":"\"usage\":{\"prompt_tokens\":9}"}],"usage":{"prompt_tokens":3,"completion_tokens":2},"x":[1]}"#;
    let usage = last_usage(body).unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (3, 2));
    let stream = b"data: {\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\ndata: {\"usage\":null}\n\ndata: [DONE]\n\n";
    assert_eq!(last_usage(stream).unwrap().completion_tokens, 1);
    assert_eq!(last_usage(b"{}"), None);
}

#[test]
fn calls_of_a_whole_answer_stay_apart_whatever_their_ids() {
    let call = |id: &str, name: &str| {
        format!(r#"{{{id}"type":"function","function":{{"name":"{name}","arguments":"{{}}"}}}}"#)
    };
    for id in ["", r#""id":"","#, r#""id":"same","#, r#""id":null,"#] {
        let calls = [call(id, "ls"), call(id, "ls"), call(id, "cat")].join(",");
        let body = format!(
            r#"{{"choices":[{{"message":{{"tool_calls":[{calls}]}},"finish_reason":"tool_calls"}}]}}"#
        );
        let reply = read_reply(&body, false);
        let read = reply.message.tool_calls.iter();
        let read: Vec<_> = read
            .map(|call| (call.name.as_str(), call.arguments.as_str()))
            .collect();
        assert_eq!(read, [("ls", "{}"), ("ls", "{}"), ("cat", "{}")], "{id}");
    }
}
