use serde_json::json;

use super::*;
use crate::exchange::{Request, Response};

mod agents;
mod drill;
mod random;
mod repeats;
mod replies;
mod talk;

/// One chat exchange of the tests: what the model was given and gave.
struct Call {
    prompt: Vec<u32>,
    sampled: Vec<u32>,
    n_tools: usize,
    /// Replaces the response that the ids above would give.
    response: Option<(u16, String)>,
}

fn call(prompt: &[u32], sampled: &[u32], n_tools: usize) -> Call {
    Call {
        prompt: prompt.to_vec(),
        sampled: sampled.to_vec(),
        n_tools,
        response: None,
    }
}

fn body_of(call: &Call) -> Value {
    let entries: Vec<Value> = call
        .sampled
        .iter()
        .map(|_| json!({"token": "x", "logprob": -0.5}))
        .collect();
    json!({
        "id": "c", "model": "served",
        "choices": [{
            "index": 0, "finish_reason": "stop", "token_ids": call.sampled, "logprobs": {"content": entries},
            "message": {"role": "assistant", "content": format!("{:?}", call.sampled)},
        }],
        "prompt_token_ids": call.prompt,
        "usage": {"prompt_tokens": call.prompt.len(), "completion_tokens": call.sampled.len()},
    })
}

fn exchange(number: u64, call: &Call) -> Exchange {
    let tools = if call.n_tools > 0 {
        json!(vec![json!({}); call.n_tools])
    } else {
        Value::Null
    };
    let asked = json!({
        "model": "served", "temperature": 0.7, "max_tokens": 32000, "tools": tools,
        "messages": [{"role": "user", "content": format!("{:?}", call.prompt)}],
    });
    let (status, body) = call
        .response
        .clone()
        .unwrap_or_else(|| (200, body_of(call).to_string()));
    Exchange {
        sent: None,
        request: Request {
            dialect: Default::default(),
            exchange: number,
            at: 10.0,
            path: "/v1/chat/completions".to_owned(),
            headers: [("x-session-id".to_owned(), "ses_1".to_owned())].into(),
            body: asked.to_string().into(),
            set: object(json!({"max_tokens": 100})),
            ..Request::default()
        },
        response: Some(Response {
            attempts: Vec::new(),
            is_replayed: false,
            exchange: number,
            at: 11.0,
            status: Some(status),
            is_stream: body.starts_with("data:"),
            body: body.into(),
            first_byte_s: Some(0.1),
            total_s: 1.0,
            error: None,
        }),
    }
}

/// Turns in the trace, type and level, then the findings.
#[track_caller]
fn check(calls: &[Call], expect: &str, expect_findings: &[&str]) -> Interpretation {
    let exchanges: Vec<Exchange> = (1..)
        .zip(calls)
        .map(|(number, call)| exchange(number, call))
        .collect();
    let seen = interpret(&exchanges);
    let ids: Vec<&str> = seen
        .training_trace
        .iter()
        .flat_map(|trace| &trace.turns)
        .map(|turn| turn.node_id.as_str())
        .collect();
    let got = format!(
        "{} {:?} {:?} {}",
        ids.join(" "),
        seen.rollout_type,
        seen.capture_level,
        seen.n_trainable_tokens
    );
    assert_eq!(got.trim(), expect);
    assert_eq!(
        seen.findings
            .iter()
            .map(Finding::to_string)
            .collect::<Vec<_>>(),
        expect_findings
    );
    if let Some(trace) = &seen.training_trace {
        trace.check().unwrap();
        let text = serde_json::to_string(trace).unwrap();
        assert_eq!(
            &serde_json::from_str::<TrainingTrace>(&text).unwrap(),
            trace
        );
    }
    seen
}

/// A change of the stored answer.
fn with(mut call: Call, change: impl Fn(&mut Value)) -> Call {
    let mut body = body_of(&call);
    change(&mut body);
    call.response = Some((200, body.to_string()));
    call
}

#[test]
fn a_title_call_is_not_trained_and_the_conversation_is() {
    let seen = check(
        &[
            call(&[9], &[9], 0),
            call(&[1, 2], &[3, 4], 2),
            call(&[1, 2, 3, 4, 5], &[6], 2),
        ],
        "n2 n3 Train Tokens 3",
        &["[WARN] multiple_roots: 2 roots across 3 turns"],
    );
    let trace = seen.training_trace.unwrap();
    assert_eq!(
        serde_json::to_value(&trace.turns[0]).unwrap(),
        json!({
            "node_id": "n2",
            "prompt_token_ids": [1, 2],
            "completion_token_ids": [3, 4],
            "per_token_logps": [-0.5, -0.5],
            "loss_mask": [0, 0, 1, 1],
            "request": {"messages": [{"role": "user", "content": "[1, 2]"}], "tools": [{}, {}]},
            "response": {"choices": [{"message": {"role": "assistant", "content": "[3, 4]"}, "finish_reason": "stop"}]},
            "metadata": {
                "node_id": "n2", "index": 1, "model": "served", "n_tools": 2,
                "harness_session_id": "ses_1", "parent_session_id": null,
                "sampling_params": {"temperature": 0.7, "max_tokens": 100},
                "requested_sampling_params": {"temperature": 0.7, "max_tokens": 32000},
            },
        })
    );
    let totals = UsageTotals {
        calls: 3,
        prompt_tokens: 8,
        completion_tokens: 4,
        cached_tokens: 0,
    };
    assert_eq!(seen.usage, totals);
}

#[test]
fn a_first_call_that_was_made_again_is_not_trained() {
    check(
        &[
            call(&[1], &[8], 1),
            call(&[1], &[2], 1),
            call(&[1, 2, 3], &[4], 1),
        ],
        "n2 n3 Train Tokens 2",
        &["[WARN] discarded_turns: n1: asked for again and not gone on from; not trained"],
    );
}

#[test]
fn a_turn_in_other_tokens_is_trained_as_a_row_of_its_own() {
    check(
        &[call(&[1], &[2], 1), call(&[1, 20, 3], &[4], 1)],
        "n1 n2 Train Tokens 2",
        &[
            "[WARN] per_turn_capture_only: each of 2 turns is a root: the prompt is rendered anew, so rows are single turns",
        ],
    );
}

#[test]
fn conversations_are_not_interleaved() {
    let calls = [
        call(&[1], &[2], 1),
        call(&[5], &[6], 1),
        call(&[1, 2], &[3], 1),
        call(&[5, 6], &[7], 1),
    ];
    check(
        &calls,
        "n1 n3 n2 n4 Train Tokens 4",
        &["[WARN] multiple_roots: 2 roots across 4 turns"],
    );
}

#[test]
fn a_hole_is_left_out_and_told() {
    let first = || call(&[1], &[2], 1);
    let check_hole = |change: &dyn Fn(&mut Value), finding: &str| {
        check(
            &[first(), with(call(&[1, 2], &[3], 1), change)],
            "n1 Train Tokens 1",
            &[finding],
        );
    };
    for invalid in [Value::Null, json!(-9999.0), json!(-9999)] {
        check_hole(
            &|body| body["choices"][0]["logprobs"]["content"][0]["logprob"] = invalid.clone(),
            "[WARN] invalid_logprob: n2: a logprob is null, no number or -9999 (minus infinity); left out of training",
        );
    }
    check_hole(
        &|body| body["choices"][0]["logprobs"]["content"][0]["logprob"] = json!(0.25),
        "[WARN] positive_logprob: n2: a logprob is above 0; left out of training",
    );
    check_hole(
        &|body| body["usage"]["completion_tokens"] = json!(2),
        "[WARN] length_mismatch: n2: the ids are not as many as the upstream counted; left out of training",
    );
    check_hole(
        &|body| body["choices"][0]["token_ids"] = json!([3, 4]),
        "[WARN] logprob_misalign: n2: ids and logprobs do not belong together; left out of training",
    );
    check_hole(
        &|body| body["choices"][0]["token_ids"] = json!([-3]),
        "[WARN] invalid_token_id: n2: a token id is no 32-bit number; left out of training",
    );
    check_hole(
        &|body| body["choices"][0]["logprobs"] = Value::Null,
        "[WARN] no_logprobs: n2: there are no logprobs; left out of training",
    );
    check_hole(
        &|body| body["choices"][0]["finish_reason"] = Value::Null,
        "[WARN] truncated_turn: n2: the answer ended without a finish reason; left out of training",
    );
}

#[test]
fn an_upstream_error_stays_a_turn_but_is_no_node() {
    let mut failed = call(&[1], &[2], 1);
    failed.response = Some((500, r#"{"error":{"message":"out of memory"}}"#.to_owned()));
    let seen = check(
        &[failed, call(&[1], &[2], 1)],
        "n2 Train Tokens 1",
        &[
            "[WARN] upstream_error: n1: status 500: out of memory",
            "[WARN] degenerate_rollout: only one model call was answered",
        ],
    );
    assert_eq!((seen.turns.len(), seen.graph.nodes.len()), (2, 1));
    assert_eq!(
        seen.turns[0].upstream_error,
        Some(json!({"message": "out of memory"}))
    );
}

/// As a record from before such answers were asked for again.
#[test]
fn a_choice_without_its_message_is_no_turn_to_train_on() {
    let mut bare = call(&[1], &[2], 1);
    let mut body = body_of(&bare);
    body["choices"][0]
        .as_object_mut()
        .unwrap()
        .remove("message");
    bare.response = Some((200, body.to_string()));
    let seen = check(
        &[bare, call(&[1], &[2], 1)],
        "n2 Train Tokens 1",
        &[
            "[WARN] upstream_error: n1: status 200: the answer has no completion in it",
            "[WARN] degenerate_rollout: only one model call was answered",
        ],
    );
    assert_eq!(seen.turns[0].message, None);
}

#[test]
fn a_prompt_that_was_too_long_is_told_apart_from_other_errors() {
    let mut long = call(&[1], &[2], 1);
    let body = r#"{"error":{"message":"too long","code":"context_length_exceeded"}}"#;
    long.response = Some((400, body.to_owned()));
    check(
        &[call(&[1], &[2], 1), call(&[1, 2], &[3], 1), long],
        "n1 n2 Train Tokens 2",
        &["[WARN] context_budget_exhausted: n3: status 400: too long"],
    );
    for (status, body) in [
        (
            400,
            r#"{"object":"error","message":"The input (9 tokens) is longer than the model's context length (8 tokens).","code":400}"#,
        ),
        (
            200,
            r#"{"error":{"object":"error","message":"The input (9 tokens) is longer than the model's context length (8 tokens).","code":400}}"#,
        ),
        (
            400,
            r#"{"error":{"code":400,"message":"request (9 tokens) exceeds the available context size (8 tokens), try increasing it","type":"exceed_context_size_error"}}"#,
        ),
    ] {
        let mut long = call(&[1], &[2], 1);
        long.response = Some((status, body.to_owned()));
        let calls = [call(&[1], &[2], 1), call(&[1, 2], &[3], 1), long];
        let stored: Vec<_> = calls
            .iter()
            .zip(1..)
            .map(|(call, at)| exchange(at, call))
            .collect();
        let found = interpret(&stored).findings;
        assert_eq!(
            found[0].code,
            crate::finding::Code::ContextBudgetExhausted,
            "{body}"
        );
    }
}

#[test]
fn sampling_that_was_changed_on_the_way_or_between_turns_is_told() {
    let asked = |number: u64, prompt: &[u32], temperature: f64| {
        let mut exchange = exchange(number, &call(prompt, &[9], 1));
        let mut body: Value = serde_json::from_slice(&exchange.request.body).unwrap();
        body["temperature"] = json!(temperature);
        body["top_k"] = json!(20);
        body["seed"] = json!(42);
        body["vllm_xargs"] = json!({"a": 1});
        exchange.request.body = body.to_string().into();
        exchange.request.removed = ["top_k", "seed", "vllm_xargs"].map(str::to_owned).into();
        exchange
    };
    let seen = interpret(&[asked(1, &[1], 1.0), asked(2, &[1, 9], 0.5)]);
    let told: Vec<String> = seen.findings.iter().map(Finding::to_string).collect();
    assert_eq!(
        told,
        [
            "[WARN] sampling_neutralised: the agent asked for seed=42, top_k=20, vllm_xargs, which was not sent",
            "[WARN] sampling_policy_changed: n1 was sampled with temperature 1.0, n2 with temperature 0.5",
        ]
    );
}

#[test]
fn a_reading_is_an_interpretation_without_the_trace() {
    let calls = [call(&[1], &[2], 1), call(&[1, 2, 3], &[4], 1)];
    let exchanges: Vec<Exchange> = (1..)
        .zip(&calls)
        .map(|(number, call)| exchange(number, call))
        .collect();
    let whole = interpret(&exchanges);
    let mut seen = read(exchanges);
    assert_eq!(seen.training_trace, None);
    seen.training_trace = Some(TrainingTrace {
        schema_version: SCHEMA_VERSION,
        turns: seen.training_turns().collect(),
    });
    assert_eq!(seen, whole);
}

#[test]
fn nothing_answered_is_fatal() {
    check(
        &[],
        "Eval Text 0",
        &["[FATAL] no_turns: no model call was answered"],
    );
    let mut unanswered = exchange(1, &call(&[1], &[2], 1));
    unanswered.response = None;
    let seen = interpret(&[unanswered]);
    assert_eq!(
        seen.findings[0].to_string(),
        "[WARN] upstream_error: n1: no status: no response was stored"
    );
    assert_eq!(seen.rollout_type, RolloutType::Eval);
}

#[test]
fn text_alone_is_for_evaluation() {
    let plain = |body: &mut Value| {
        body.as_object_mut().unwrap().remove("prompt_token_ids");
        body["choices"][0]["token_ids"] = Value::Null;
        body["choices"][0]["logprobs"] = Value::Null;
    };
    let calls = [
        with(call(&[1], &[2], 1), plain),
        with(call(&[5], &[2], 1), plain),
    ];
    check(
        &calls,
        "Eval Text 0",
        &[
            "[INFO] per_turn_trace_only: each of 2 turns is a root: no messages go on from earlier ones",
        ],
    );
}

#[test]
fn a_rollout_with_only_holes_has_nothing_to_train_on() {
    let off = |body: &mut Value| body["usage"]["prompt_tokens"] = json!(7);
    check(
        &[
            with(call(&[1], &[2], 1), off),
            with(call(&[1, 2], &[3], 1), off),
        ],
        "Eval Tokens 0",
        &[
            "[WARN] length_mismatch: n1: the ids are not as many as the upstream counted; left out of training",
            "[WARN] length_mismatch: n2: the ids are not as many as the upstream counted; left out of training",
            "[FATAL] nothing_trainable: no turn of the agent has exact tokens",
        ],
    );
}

#[test]
fn recorded_streams_are_trainable() {
    let named = |text: &str| text.replace("\"model\":\"qwen\"", "\"model\":\"served\"");
    let mut vllm = call(&[], &[], 1);
    vllm.response = Some((
        200,
        named(include_str!(
            "../../../dialect/tests/transcripts/vllm_stream.sse"
        )),
    ));
    let mut sglang = call(&[], &[], 1);
    sglang.response = Some((
        200,
        named(include_str!(
            "../../../dialect/tests/transcripts/sglang_stream.sse"
        )),
    ));
    let mut cut = call(&[], &[], 1);
    cut.response = Some((
        200,
        named(&include_str!("../../../dialect/tests/transcripts/vllm_stream.sse")[..900])
            // Another prompt, or the first one would have been asked for again.
            .replace("\"prompt_token_ids\":[", "\"prompt_token_ids\":[7,"),
    ));
    check(
        &[vllm, sglang, cut],
        "n1 n2 Train Tokens 7",
        &[
            "[WARN] truncated_turn: n3: the answer ended without a finish reason; left out of training",
            "[WARN] per_turn_capture_only: each of 3 turns is a root: the prompt is rendered anew, so rows are single turns",
            "[INFO] certain_tokens: 1/7 trainable tokens have logprob 0.0 (p=1.0)",
        ],
    );
}

#[test]
fn a_trace_that_breaks_the_rules_is_refused() {
    let good = json!({"schema_version": 1, "turns": [{"node_id": "n1", "prompt_token_ids": [1], "completion_token_ids": [2], "per_token_logps": [-1], "loss_mask": [0, 1]}]});
    let read = |change: &dyn Fn(&mut Value)| {
        let mut value = good.clone();
        change(&mut value["turns"][0]);
        let trace: Result<TrainingTrace, _> = serde_json::from_value(value);
        trace
            .map_err(|_| "type".to_owned())
            .and_then(|trace| trace.check().map_err(|error| error.to_string()))
    };
    assert_eq!(read(&|_| {}), Ok(()));
    assert_eq!(
        read(&|turn| turn["extra"] = json!(1)),
        Err("type".to_owned())
    );
    assert_eq!(
        read(&|turn| turn["prompt_token_ids"] = json!([true])),
        Err("type".to_owned())
    );
    let broken = |rule: &str| Err(format!("turn \"n1\": {rule}"));
    assert_eq!(
        read(&|turn| turn["loss_mask"] = json!([1, 1])),
        broken("the loss mask trains the prompt")
    );
    assert_eq!(
        read(&|turn| turn["per_token_logps"] = json!([0.5])),
        broken("a logprob is not finite or above 0")
    );
}
