//! What findings tell of single replies.

use serde_json::{Value, json};

use super::{Call, body_of, call, exchange};
use crate::exchange::Exchange;
use crate::finding::Code;
use crate::trace::interpret;

#[test]
fn a_blank_text_is_told_where_the_agent_does_not_send_it_back() {
    let call = call(&[1, 2], &[3], 1);
    let text = body_of(&call).to_string().replace("\"[3]\"", "\"\\n\\n\"");
    let mut exchange = exchange(1, &call);
    exchange.response.as_mut().unwrap().body = text.into();
    let is_told = |exchange: &Exchange| {
        let seen = interpret(std::slice::from_ref(exchange));
        seen.findings.iter().any(|it| it.code == Code::BlankText)
    };
    assert!(!is_told(&exchange));
    exchange.request.dialect = rollcage_dialect::Dialect::Anthropic;
    assert!(is_told(&exchange));
}

#[test]
fn tools_that_were_not_offered_are_named() {
    let calls = |offered: Value, called: &str| {
        let mut stored = exchange(1, &call(&[1], &[2], 0));
        let mut asked: Value = serde_json::from_slice(&stored.request.body).unwrap();
        asked["tools"] = offered;
        stored.request.body = asked.to_string().into();
        let mut answered = body_of(&call(&[1], &[2], 0));
        let called = json!([{"id": "a", "function": {"name": called, "arguments": "{}"}}]);
        answered["choices"][0]["message"]["tool_calls"] = called;
        if let Some(response) = &mut stored.response {
            response.body = answered.to_string().into();
        }
        let found = interpret([&stored]).findings.into_iter();
        found
            .filter(|finding| finding.code == Code::UnknownTools)
            .map(|finding| finding.text)
            .collect::<Vec<_>>()
    };
    let bash = json!([{"type": "function", "function": {"name": "bash"}}]);
    assert_eq!(calls(bash.clone(), "bash"), Vec::<String>::new());
    let found = calls(bash, "str_replace");
    assert!(found.len() == 1 && found[0].ends_with("`str_replace` (n1)"));
    assert_eq!(calls(Value::Null, "bash").len(), 1);
    // What has no name may go by any.
    assert_eq!(
        calls(json!([{"type": "web_search"}]), "open"),
        Vec::<String>::new()
    );
}

#[test]
fn an_aborted_completion_is_never_trained() {
    for reason in ["abort", "error"] {
        let mut answered = body_of(&call(&[1], &[2, 3], 1));
        answered["choices"][0]["finish_reason"] = json!(reason);
        let aborted = Call {
            response: Some((200, answered.to_string())),
            ..call(&[1], &[2, 3], 1)
        };
        let seen = interpret([&exchange(1, &aborted), &exchange(2, &call(&[1], &[4], 1))]);
        let nodes: Vec<_> = seen.training_turns().map(|turn| turn.node_id).collect();
        assert_eq!(nodes, ["n2"], "{reason}");
        let told = seen
            .findings
            .iter()
            .filter(|it| it.code == Code::AbortedTurn);
        assert_eq!(told.count(), 1, "{reason}: {:?}", seen.findings);
    }
}

#[test]
fn a_context_that_is_too_small_for_the_first_prompt_is_told() {
    let refused = |n_tools| Call {
        response: Some((
            400,
            r#"{"error":{"message":"maximum context length is 4096 tokens"}}"#.to_owned(),
        )),
        ..call(&[1], &[], n_tools)
    };
    let is_told = |calls: &[Call]| {
        let numbered = calls.iter().zip(1..);
        let stored: Vec<_> = numbered.map(|(call, at)| exchange(at, call)).collect();
        let found = interpret(&stored).findings;
        found.iter().any(|it| it.code == Code::ContextTooSmall)
    };
    assert!(is_told(&[refused(1)]));
    // A title is answered before it.
    assert!(is_told(&[call(&[1], &[2], 0), refused(1)]));
    assert!(!is_told(&[call(&[1], &[2], 1), refused(1)]));
    assert!(!is_told(&[call(&[1], &[2], 1)]));
}

#[test]
fn a_stream_that_lost_its_usage_is_not_trained_where_usage_was_asked_for() {
    let chunk = |id: u32| {
        format!(
            "data: {}\n\n",
            json!({"model": "served", "choices": [{
                "index": 0, "delta": {"content": "x"}, "token_ids": [id],
                "logprobs": {"content": [{"token": "x", "logprob": -0.5}]},
            }]})
        )
    };
    let first =
        r#"data: {"prompt_token_ids":[1],"choices":[{"index":0,"delta":{"role":"assistant"}}]}"#;
    let end = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
    let trained = |chunks: &[u32], usage: &str, is_asked: bool| {
        let chunks: String = chunks.iter().map(|id| chunk(*id)).collect();
        let answer = format!("{first}\n\n{chunks}{end}\n\n{usage}\n\ndata: [DONE]\n\n");
        let mut stored = exchange(
            1,
            &Call {
                response: Some((200, answer)),
                ..call(&[1], &[], 1)
            },
        );
        if is_asked {
            let options = json!({"include_usage": true});
            stored.request.set.insert("stream_options".into(), options);
        }
        let seen = interpret([&stored]);
        let codes: Vec<Code> = seen.findings.iter().map(|it| it.code).collect();
        (seen.n_trainable_tokens, codes.contains(&Code::NoUsage))
    };
    assert_eq!(trained(&[2, 3], usage, true), (2, false));
    // A chunk and the usage are gone: what is left looks whole.
    assert_eq!(trained(&[2], "", true), (0, true));
    assert_eq!(trained(&[2], usage, true), (0, false), "the count tells");
    assert_eq!(trained(&[2, 3], "", false), (2, true));
}

#[test]
fn an_answer_by_another_model_is_told_with_both_names() {
    let answered = |number: u64, model: &str| {
        let mut body = body_of(&call(&[1], &[2], 1));
        body["model"] = json!(model);
        let answered = Call {
            response: Some((200, body.to_string())),
            ..call(&[number as u32], &[2], 1)
        };
        exchange(number, &answered)
    };
    let told = |models: &[&str]| -> Vec<String> {
        let stored: Vec<_> = (1..)
            .zip(models)
            .map(|(number, model)| answered(number, model))
            .collect();
        let found = interpret(&stored).findings.into_iter();
        found
            .filter(|it| it.code == Code::OtherModel)
            .map(|it| it.to_string())
            .collect()
    };
    assert_eq!(
        told(&["served", "served-2026-01-01", "org/served"]),
        Vec::<String>::new()
    );
    assert_eq!(
        told(&["served", "served-mini", "served-mini"]),
        [
            "[WARN] other_model: n2, n3: `served` was asked, and the endpoint says that `served-mini` answered"
        ]
    );
}

#[test]
fn a_member_that_nothing_is_known_of_makes_a_turn_unfit_for_training() {
    for member in ["vllm_xargs", "custom_params", "eta_cutoff", "a_new_sampler"] {
        let mut stored = exchange(1, &call(&[1], &[2], 1));
        stored
            .request
            .set
            .insert(member.to_owned(), json!({"a": 1}));
        let seen = interpret([&stored]);
        assert_eq!(seen.n_trainable_tokens, 0, "{member}");
        let told = seen.findings.iter();
        let mut told = told.filter(|it| it.code == Code::ConstrainedSampling);
        assert!(told.any(|it| it.text.contains(member)), "{member}");
    }
}
