use super::*;

/// Checks the rewritten request and the fields to be stripped.
#[track_caller]
fn check(body: &str, rewrite: &Rewrite, expect: &str) -> PreparedRequest {
    let prepared = prepare(&body.to_owned().into(), rewrite).unwrap();
    assert_eq!(prepared.body.concat(), expect);
    prepared
}

#[track_caller]
fn check_refused(body: &'static [u8], expect: &str) {
    let body = Bytes::from_static(body);
    assert_eq!(
        prepare(&body, &Rewrite::default()).unwrap_err().to_string(),
        expect
    );
}

fn capturing() -> Rewrite {
    Rewrite {
        capture: CaptureMode::Tokens,
        ..Rewrite::default()
    }
}

#[test]
fn a_body_with_nothing_to_change_keeps_every_byte() {
    let body = "{ \"model\" : \"m\",\n \"messages\": [ ] , \"n\": 1 }";
    let prepared = check(
        body,
        &Rewrite {
            model: Some("m".to_owned()),
            ..Rewrite::default()
        },
        body,
    );
    assert_eq!((prepared.set, prepared.removed), (Map::new(), vec![]));
}

#[test]
fn messages_and_tools_keep_their_bytes_and_members_their_order() {
    check(
        r#"{"messages":[ {"role" : "user","content":"\u00e9","x":1.0e0} ],"model":"a","tools":[ { } ]}"#,
        &Rewrite {
            model: Some("b".to_owned()),
            ..Rewrite::default()
        },
        r#"{"messages":[ {"role" : "user","content":"\u00e9","x":1.0e0} ],"model":"b","tools":[ { } ]}"#,
    );
}

#[test]
fn capture_requests_tokens_and_records_what_the_agent_did_not_request() {
    let prepared = check(
        r#"{"model":"m","stream":true,"logprobs":null}"#,
        &capturing(),
        r#"{"model":"m","stream":true,"logprobs":true,"top_logprobs":0,"return_token_ids":true,"stream_options":{"include_usage":true}}"#,
    );
    assert!(prepared.is_stream);
    assert_eq!(
        prepared.added,
        AddedFields {
            logprobs: true,
            top_logprobs: true,
            token_ids: true,
            usage: true,
            reasoning: false
        }
    );
    assert_eq!(
        Value::Object(prepared.set).to_string(),
        r#"{"logprobs":true,"top_logprobs":0,"return_token_ids":true,"stream_options":{"include_usage":true}}"#
    );
}

#[test]
fn what_the_agent_requested_itself_is_not_stripped() {
    let body = r#"{"model":"m","stream":true,"logprobs":true,"top_logprobs":3,"return_token_ids":true,"stream_options":{"include_usage":true,"x":1}}"#;
    let prepared = check(body, &capturing(), body);
    assert_eq!(prepared.added, AddedFields::default());
}

#[test]
fn other_stream_options_and_template_arguments_stay() {
    check(
        r#"{"stream":true,"stream_options":{"continuous_usage_stats":true},"chat_template_kwargs":{"a":[ 1],"enable_thinking":true}}"#,
        &Rewrite {
            is_thinking_disabled: true,
            ..capturing()
        },
        r#"{"stream":true,"stream_options":{"continuous_usage_stats":true,"include_usage":true},"chat_template_kwargs":{"a":[ 1],"enable_thinking":false},"logprobs":true,"top_logprobs":0,"return_token_ids":true}"#,
    );
}

#[test]
fn without_streaming_no_usage_is_requested() {
    let prepared = check(
        "{}",
        &capturing(),
        r#"{"logprobs":true,"top_logprobs":0,"return_token_ids":true}"#,
    );
    assert!(!prepared.is_stream && !prepared.added.usage);
}

#[test]
fn the_token_limit_is_clamped_down_or_set() {
    let rewrite = Rewrite {
        tokens_max: Some(100),
        ..Rewrite::default()
    };
    check(r#"{"max_tokens":32000}"#, &rewrite, r#"{"max_tokens":100}"#);
    check(r#"{"max_tokens":50}"#, &rewrite, r#"{"max_tokens":50}"#);
    check(r#"{"max_tokens":null}"#, &rewrite, r#"{"max_tokens":100}"#);
    check(
        r#"{"max_tokens":"9999"}"#,
        &rewrite,
        r#"{"max_tokens":100}"#,
    );
    check(
        r#"{"max_completion_tokens":500}"#,
        &rewrite,
        r#"{"max_completion_tokens":100}"#,
    );
    check("{}", &rewrite, r#"{"max_tokens":100}"#);
}

#[test]
fn reasoning_models_get_max_completion_tokens() {
    let rewrite = Rewrite {
        tokens_max: Some(100),
        model: Some("openai/gpt-5-mini".to_owned()),
        ..Rewrite::default()
    };
    let prepared = check(
        r#"{"max_tokens":7,"model":"x"}"#,
        &rewrite,
        r#"{"model":"openai/gpt-5-mini","max_completion_tokens":7}"#,
    );
    assert_eq!(prepared.removed, ["max_tokens"]);
    check(
        r#"{"model":"o3"}"#,
        &Rewrite {
            model: None,
            ..rewrite
        },
        r#"{"model":"o3","max_completion_tokens":100}"#,
    );
}

#[test]
fn a_configured_name_for_the_limit_is_used() {
    let rewrite = Rewrite {
        max_tokens_name: MaxTokensName::MaxTokens,
        ..Rewrite::default()
    };
    check(
        r#"{"max_completion_tokens":7}"#,
        &rewrite,
        r#"{"max_tokens":7}"#,
    );
    check(r#"{"model":"m"}"#, &rewrite, r#"{"model":"m"}"#);
}

#[test]
fn requests_that_cannot_be_captured_or_parsed_are_refused() {
    check_refused(
        br#"{"n":2}"#,
        "`n` is 2: only one completion per request can be captured, send one request for each instead",
    );
    check_refused(
        br#"{"a":1,"a":2}"#,
        "the request body has the member `a` twice",
    );
    check_refused(b"[1]", "the request body is not a JSON object");
    check_refused(b"{\"a\":1", "the request body is not a JSON object");
    check_refused(b"{\"a\":\"\xff\"}", "the request body is not UTF-8");
    let error = prepare(
        &Bytes::from_static(br#"{"stream":true,"stream_options":3}"#),
        &capturing(),
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the request's member `stream_options` is not an object"
    );
}

#[test]
fn streaming_is_turned_off_where_streams_lose_tokens() {
    let rewrite = Rewrite {
        is_stream_off: true,
        ..capturing()
    };
    let body = Bytes::from_static(br#"{"stream":true,"stream_options":{"include_usage":true}}"#);
    let prepared = prepare(&body, &rewrite).unwrap();
    let body: Value = serde_json::from_slice(&prepared.body.concat()).unwrap();
    assert_eq!(body["stream"], false);
    assert_eq!(body.get("stream_options"), None);
    assert!(prepared.is_stream, "the agent still wants one");
}

#[test]
fn a_pinned_policy_neutralises_samplers_and_refuses_constraints() {
    let rewrite = Rewrite {
        constrained: ConstraintPolicy::Refuse,
        sampling: Some(Sampling { temperature: 0.7 }),
        ..Rewrite::default()
    };
    let prepared = prepare(
        &Bytes::from_static(br#"{"temperature":0,"top_p":0.9,"top_k":20}"#),
        &rewrite,
    )
    .unwrap();
    let body: Value = serde_json::from_slice(&prepared.body.concat()).unwrap();
    assert_eq!(
        (&body["temperature"], &body["top_p"], &body["top_k"]),
        (&0.7.into(), &1.into(), &(-1).into())
    );
    for constrained in [
        r#"{"guided_json":{}}"#,
        r#"{"response_format":{"type":"json_object"}}"#,
        r#"{"tool_choice":"required","tools":[]}"#,
        r#"{"tools":[{"type":"function","function":{"name":"a","strict":true}}]}"#,
    ] {
        let error = prepare(&constrained.to_owned().into(), &rewrite).unwrap_err();
        assert!(matches!(error, PrepareError::Constrained { .. }), "{error}");
        let words = "training session is to refuse that (constrained = refuse)";
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(
        prepare(
            &Bytes::from_static(br#"{"response_format":{"type":"text"}}"#),
            &rewrite
        )
        .is_ok()
    );
}

#[test]
fn a_seed_is_not_sent_in_a_training_session() {
    let body = Bytes::from_static(br#"{"seed":42,"messages":[]}"#);
    let training = Rewrite {
        sampling: Some(Sampling { temperature: 1.0 }),
        ..Rewrite::default()
    };
    let prepared = prepare(&body, &training).unwrap();
    let sent: Value = serde_json::from_slice(&prepared.body.concat()).unwrap();
    assert_eq!(sent.get("seed"), None);
    assert_eq!(prepared.removed, ["seed"]);
    let body = r#"{"seed":42,"messages":[]}"#;
    check(body, &Rewrite::default(), body);
}

#[test]
fn a_member_that_is_not_known_is_left_out_of_a_training_session() {
    let body = r#"{"a_new_sampler":1,"messages":[]}"#;
    for constrained in [ConstraintPolicy::Refuse, ConstraintPolicy::Remove] {
        let rewrite = Rewrite {
            constrained,
            ..Rewrite::default()
        };
        let prepared = check(body, &rewrite, r#"{"messages":[]}"#);
        assert_eq!(prepared.removed, ["a_new_sampler"]);
    }
    check(body, &Rewrite::default(), body);
}

#[test]
fn constraints_are_removed_or_kept_by_policy() {
    let body = r#"{"tool_choice":"required","tools":[{"function":{"name":"a","strict":true}}],"min_tokens":4}"#;
    let remove = Rewrite {
        constrained: ConstraintPolicy::Remove,
        ..Rewrite::default()
    };
    let prepared = check(body, &remove, r#"{"tools":[{"function":{"name":"a"}}]}"#);
    assert_eq!(
        prepared.removed,
        ["tool_choice", "min_tokens", "tools.strict"]
    );
    check(body, &Rewrite::default(), body);
}

#[test]
fn reasoning_is_requested_where_ids_would_be_lost_without_it() {
    let body =
        r#"{"include_reasoning":false,"logprobs":true,"top_logprobs":0,"return_token_ids":true}"#;
    let expect =
        r#"{"include_reasoning":true,"logprobs":true,"top_logprobs":0,"return_token_ids":true}"#;
    let prepared = check(body, &capturing(), expect);
    assert!(prepared.added.reasoning);
    let prepared = check(body, &Rewrite::default(), body);
    assert!(!prepared.added.reasoning, "nothing is captured");
}

#[test]
fn max_tokens_is_read_under_either_name() {
    assert_eq!(requested_max_tokens(br#"{"max_tokens":5}"#), Some(5));
    assert_eq!(
        requested_max_tokens(br#"{"max_tokens":5,"max_completion_tokens":7}"#),
        Some(7)
    );
    assert_eq!(requested_max_tokens(b"{}"), None);
}

#[test]
fn long_values_are_sent_without_copying() {
    let long = "word ".repeat(1000);
    let body = format!(r#"{{"messages":["{long}"],"a\"b":1,"tools":["{long}"],"stream":false}}"#);
    let body = Bytes::from(body);
    let prepared = prepare(&body, &capturing()).unwrap();
    let expect = format!(
        r#"{{"messages":["{long}"],"a\"b":1,"tools":["{long}"],"stream":false,"logprobs":true,"top_logprobs":0,"return_token_ids":true}}"#
    );
    assert_eq!(prepared.body.concat(), expect);
    assert_eq!(prepared.body.bytes(), expect.len());
    let inside = body.as_ptr_range();
    let own = |segment: &Bytes| inside.contains(&segment.as_ptr());
    let is_own: Vec<bool> = prepared
        .body
        .into_iter()
        .map(|segment| own(&segment))
        .collect();
    assert_eq!(is_own, [false, true, false, true, false]);
}
