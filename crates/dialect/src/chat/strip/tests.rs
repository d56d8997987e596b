use super::*;
use crate::chat::{ChatEvent, is_done};

const ALL: AddedFields = AddedFields {
    logprobs: true,
    top_logprobs: true,
    token_ids: true,
    usage: true,
    reasoning: false,
};

/// `expect` is `same`, `dropped` or the new data.
#[track_caller]
fn check(data: &str, added: &AddedFields, expect: &str) {
    let got = match ChatEvent::read(data).strip(added) {
        StrippedEvent::Unchanged => "same".to_owned(),
        StrippedEvent::Changed(data) => data,
        StrippedEvent::Dropped => "dropped".to_owned(),
    };
    assert_eq!(got, expect);
}

#[test]
fn ids_and_logprobs_are_stripped_and_the_rest_keeps_its_bytes() {
    check(
        r#"{"id": "x","choices":[{"index":0,"delta":{"content": "\u00e9"},"logprobs":{"content":[]},"finish_reason":null,"token_ids":[5]}],"prompt_token_ids":[1,2]}"#,
        &ALL,
        r#"{"id":"x","choices":[{"index":0,"delta":{"content": "\u00e9"},"logprobs":null,"finish_reason":null}]}"#,
    );
}

#[test]
fn nothing_that_the_agent_requested_is_stripped() {
    let data = r#"{"choices":[{"logprobs":{"content":[]},"token_ids":[5]}],"prompt_token_ids":[1],"usage":null}"#;
    check(data, &AddedFields::default(), "same");
    check(
        r#"{"choices":[],"usage":{"prompt_tokens":1}}"#,
        &AddedFields {
            usage: false,
            ..ALL
        },
        "same",
    );
}

#[test]
fn the_usage_chunk_is_dropped_and_empty_usage_removed() {
    check(
        r#"{"choices":[],"usage":{"prompt_tokens":1}}"#,
        &ALL,
        "dropped",
    );
    check(
        r#"{"choices":[{"index":0,"delta":{}}],"usage":null}"#,
        &ALL,
        r#"{"choices":[{"index":0,"delta":{}}]}"#,
    );
    check(
        r#"{"choices":[{"index":0,"delta":{}}],"usage":{"prompt_tokens":1}}"#,
        &ALL,
        "same",
    );
}

#[test]
fn the_extra_chunk_of_sglang_is_dropped() {
    let data = r#"{"choices":[],"sglext":{"input_ids":[1],"output_ids":[[2]]}}"#;
    check(data, &ALL, "dropped");
    check(
        data,
        &AddedFields {
            token_ids: false,
            ..ALL
        },
        "same",
    );
}

#[test]
fn alternatives_not_requested_become_empty_lists() {
    check(
        r#"{"choices":[{"logprobs":{"content":[{"token":"a","logprob":-1,"top_logprobs":[{"token":"b"}]}]}}]}"#,
        &AddedFields {
            logprobs: false,
            ..ALL
        },
        r#"{"choices":[{"logprobs":{"content":[{"token":"a","logprob":-1,"top_logprobs":[]}]}}]}"#,
    );
}

#[test]
fn unrequested_reasoning_is_stripped_and_nothing_else() {
    let added = AddedFields {
        reasoning: true,
        ..ALL
    };
    check(
        r#"{"id": "x","choices":[{"index":0,"delta":{"reasoning":"hm","content": "\u00e9"},"logprobs":{"content":[]},"token_ids":[5]}],"prompt_token_ids":[1]}"#,
        &added,
        r#"{"id":"x","choices":[{"index":0,"delta":{"content":"\u00e9"},"logprobs":null}]}"#,
    );
    check(
        r#"{"choices":[{"message":{"content":"a","reasoning_content":"hm"}}]}"#,
        &added,
        r#"{"choices":[{"message":{"content":"a"}}]}"#,
    );
    let body = br#"{"choices":[{"message":{"content":"a","reasoning":"hm"},"token_ids":[1]}]}"#;
    let (text, _) = strip_body(body, &added);
    assert_eq!(
        text.as_deref(),
        Some(br#"{"choices":[{"message":{"content":"a"}}]}"#.as_slice())
    );
}

#[test]
fn unparseable_data_is_unchanged() {
    for data in [
        "[DONE]",
        "",
        "{",
        "[]",
        "{\"choices\":3}",
        r#"{"error":{"message":"x"}}"#,
    ] {
        check(data, &ALL, "same");
    }
    assert_eq!(strip_body(b"\xff{", &ALL), (None, None));
}

#[test]
fn a_whole_answer_is_stripped_and_keeps_its_usage() {
    let (text, usage) = strip_body(
        br#"{"choices":[{"token_ids":[1],"logprobs":{}}],"usage":{"prompt_tokens":7},"prompt_token_ids":[2]}"#,
        &ALL,
    );
    let text = String::from_utf8(text.unwrap()).unwrap();
    assert_eq!(
        text,
        r#"{"choices":[{"logprobs":null}],"usage":{"prompt_tokens":7}}"#
    );
    assert_eq!(usage.unwrap().prompt_tokens, 7);
    let plain = br#"{ "choices": [ ], "usage": {} }"#;
    assert_eq!(strip_body(plain, &ALL), (None, None));
}

#[test]
fn the_marker_that_ends_a_stream_is_no_json() {
    assert!(is_done(" [DONE]") && !is_done("{}"));
}
