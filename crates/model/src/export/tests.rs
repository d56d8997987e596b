use serde_json::{Value, json};

use super::*;
use crate::exchange::{Exchange, Request, Response};
use crate::trace;

mod lines;
#[cfg(feature = "parquet")]
mod table;
mod trajectory;

/// One model call of the tests.
struct Call {
    messages: Value,
    n_tools: usize,
    prompt: Vec<u32>,
    sampled: Vec<u32>,
    message: Value,
    session: (&'static str, Option<&'static str>),
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn assistant(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

fn calling(id: &str, arguments: &str) -> Value {
    let function = json!({"name": "bash", "arguments": arguments});
    json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "type": "function", "function": function}]})
}

fn tool(id: &str, text: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": text})
}

fn call(messages: &[Value], prompt: &[u32], sampled: &[u32], message: Value) -> Call {
    Call {
        messages: messages.into(),
        n_tools: 1,
        prompt: prompt.to_vec(),
        sampled: sampled.to_vec(),
        message,
        session: ("s", None),
    }
}

/// A title, a call that was made again, and one that goes on with a tool's answer and arguments that are no JSON.
fn usual() -> Vec<Call> {
    let first = calling("c1", r#"{"command": "ls"}"#);
    let go = [user("go"), first.clone(), tool("c1", "out")];
    vec![
        Call {
            n_tools: 0,
            ..call(&[user("title?")], &[9], &[8], assistant("A title"))
        },
        call(&go[..1], &[1, 2], &[7], assistant("lost")),
        call(&go[..1], &[1, 2], &[3], first),
        call(&go, &[1, 2, 3, 4], &[5, 6], calling("c2", "no json")),
    ]
}

fn exchange(number: u64, call: &Call, change: impl Fn(u64, &mut Value)) -> Exchange {
    let entries: Vec<Value> = call
        .sampled
        .iter()
        .map(|_| json!({"token": "x", "logprob": -0.5}))
        .collect();
    let mut body = json!({
        "model": "served", "prompt_token_ids": call.prompt,
        "choices": [{"finish_reason": "stop", "message": call.message, "token_ids": call.sampled, "logprobs": {"content": entries}}],
        "usage": {"prompt_tokens": call.prompt.len(), "completion_tokens": call.sampled.len()},
    });
    change(number, &mut body);
    let tools: Vec<Value> = (0..call.n_tools)
        .map(|_| json!({"type": "function"}))
        .collect();
    let asked = json!({"messages": call.messages, "tools": tools, "temperature": 1});
    let (session, parent) = call.session;
    let mut headers = vec![("x-session-id".to_owned(), session.to_owned())];
    headers.extend(parent.map(|parent| ("x-parent-session-id".to_owned(), parent.to_owned())));
    Exchange {
        request: Request {
            exchange: number,
            at: 1_763_200_000.5,
            headers: headers.into_iter().collect(),
            body: asked.to_string().into(),
            ..Request::default()
        },
        response: Some(Response {
            exchange: number,
            status: Some(200),
            body: body.to_string().into(),
            total_s: 1.25,
            ..Response::default()
        }),
        sent: None,
    }
}

/// The documents of one export.
#[track_caller]
fn export(calls: &[Call], format: Format, change: impl Fn(u64, &mut Value)) -> Vec<Value> {
    let exchanges = (1..)
        .zip(calls)
        .map(|(number, call)| exchange(number, call, &change));
    let seen = trace::read(exchanges);
    let meta = Meta {
        rollout_id: "r".to_owned(),
        task_id: "t".to_owned(),
        group: "g".to_owned(),
        agent: AgentInfo {
            name: "a".to_owned(),
            version: "1".to_owned(),
            ..AgentInfo::default()
        },
        model: "served".to_owned(),
        reward: Some(1.0),
        reward_valid: true,
        ended: Some(Ended::Completed),
        ..Meta::default()
    };
    let mut out = Vec::new();
    write(format, &seen, &meta, Options::default(), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The members of a row that say how it is trained.
fn rows(document: &Value) -> Vec<Value> {
    let rows = document["sequences"].as_array().unwrap().iter();
    rows.map(|row| {
        json!([
            row["role"],
            row["node_ids"],
            row["input_ids"],
            row["loss_mask"],
            row["trainable"]
        ])
    })
    .collect()
}

#[test]
fn a_format_is_known_by_its_name() {
    for format in Format::ALL {
        assert_eq!(format.to_string().parse(), Ok(*format));
    }
    let error = "csv".parse::<Format>().unwrap_err().to_string();
    assert!(error.starts_with(
        "\"csv\" is no format; there are sequences, training-trace, trace-entries, capture, atif, sft, turns"
    ));
}

#[test]
fn the_training_formats_are_the_interpretations_trace() {
    let trace = export(&usual(), Format::TrainingTrace, |_, _| {});
    let exchanges: Vec<Exchange> = (1..)
        .zip(&usual())
        .map(|(number, call)| exchange(number, call, |_, _| {}))
        .collect();
    let expect = trace::interpret(&exchanges).training_trace.unwrap();
    // Only the metadata says more: which rollout it is of.
    let without_metadata = |mut trace: Value| {
        for turn in trace["turns"].as_array_mut().unwrap() {
            turn["metadata"].take();
        }
        trace
    };
    assert_eq!(
        without_metadata(trace[0].clone()),
        without_metadata(serde_json::to_value(&expect).unwrap())
    );
    let strict: trace::TrainingTrace = serde_json::from_value(trace[0].clone()).unwrap();
    strict.check().unwrap();

    let entries = export(&usual(), Format::TraceEntries, |_, _| {});
    let list = entries[0]["entries"].as_array().unwrap();
    let ids: Vec<&Value> = list
        .iter()
        .map(|entry| &entry["metadata"]["node_id"])
        .collect();
    assert_eq!(ids, ["n3", "n4"]);
    assert_eq!(
        (&entries[0]["session_id"], &list[0]["reward"]),
        (&json!("r"), &json!(1.0))
    );
    assert!(list[0].get("node_id").is_none());
}

#[test]
fn a_rollout_without_tokens_has_no_training_formats_and_all_others() {
    let plain = |_: u64, body: &mut Value| {
        body["prompt_token_ids"] = Value::Null;
        body["choices"][0]["token_ids"] = Value::Null;
        body["choices"][0]["logprobs"] = Value::Null;
    };
    let calls = usual();
    let exchanges = (1..)
        .zip(&calls)
        .map(|(number, call)| exchange(number, call, plain));
    let seen = trace::read(exchanges);
    let mut out = Vec::new();
    let error = write(
        Format::TrainingTrace,
        &seen,
        &Meta::default(),
        Options::default(),
        &mut out,
    );
    assert!(matches!(error, Err(ExportError::NotTrainable { .. })));

    let capture = export(&calls, Format::Capture, plain);
    assert_eq!(
        rows(&capture[0]),
        [
            json!(["auxiliary", ["n1"], [], [], false]),
            json!(["agent", ["n3", "n4"], [], [], false]),
        ]
    );
    assert_eq!(export(&calls, Format::Sft, plain).len(), 1);
    assert_eq!(export(&calls, Format::Turns, plain).len(), 4);
}

#[test]
fn a_capture_document_has_rows_and_what_openenv_says_of_them() {
    let document = &export(&usual(), Format::Capture, |_, _| {})[0];
    assert_eq!(
        rows(document),
        [
            json!(["auxiliary", ["n1"], [9, 8], [0, 1], false]),
            json!([
                "agent",
                ["n3", "n4"],
                [1, 2, 3, 4, 5, 6],
                [0, 0, 1, 0, 1, 1],
                true
            ]),
        ]
    );
    assert_eq!(
        document["stats"],
        json!({"n_turns": 4, "n_roots": 3, "n_leaves": 3, "n_forks": 0, "n_discarded": 1, "n_sequences": 2, "n_trainable_sequences": 1, "n_trainable_tokens": 3})
    );
    assert_eq!(document["sequences"][1]["turn_lengths"], json!([1, 2]));
    assert_eq!(
        document["sequences"][1]["logprobs"],
        json!([0.0, 0.0, -0.5, 0.0, -0.5, -0.5])
    );
    assert_eq!(document["turns"][1]["discarded"], json!(true));
}

#[test]
fn a_broken_turn_is_context_in_its_row_and_fatal_in_openenvs_words() {
    let document = &export(&usual(), Format::Capture, |number, body| {
        if number == 3 {
            body["choices"][0]["logprobs"]["content"][0]["logprob"] = json!(0.5);
        }
    })[0];
    assert_eq!(
        rows(document)[1],
        json!([
            "agent",
            ["n3", "n4"],
            [1, 2, 3, 4, 5, 6],
            [0, 0, 0, 0, 1, 1],
            true
        ])
    );
    assert_eq!(document["turns"][2]["sampled_logprobs"], Value::Null);
    let validation = document["validation"].as_array().unwrap();
    let told = "[FATAL] positive_logprob: n3: a logprob is above 0; left out of training";
    assert!(validation.contains(&json!(told)), "{validation:?}");
}

#[test]
fn a_path_that_its_ids_do_not_follow_is_several_rows() {
    let go = [
        user("go"),
        assistant("a"),
        user("b"),
        assistant("c"),
        user("d"),
    ];
    let calls = [
        call(&go[..1], &[1], &[2], assistant("a")),
        call(&go[..3], &[1, 2, 3], &[4], assistant("c")),
        call(&go, &[1, 2, 3, 40, 5], &[6], assistant("e")),
    ];
    let document = &export(&calls, Format::Capture, |number, body| {
        // Without its ids the second turn is linked by its messages, and so is the third to it.
        if number == 2 {
            body["prompt_token_ids"] = Value::Null;
        }
    })[0];
    assert_eq!(
        rows(document),
        [json!([
            "agent",
            ["n1", "n2", "n3"],
            [1, 2, 3, 40, 5, 6],
            [0, 1, 0, 0, 0, 1],
            true
        ])]
    );
    let document = &export(&calls, Format::Capture, |number, body| match number {
        2 => body["prompt_token_ids"] = Value::Null,
        3 => body["prompt_token_ids"] = json!([7, 2, 3, 40, 5]),
        _ => {}
    })[0];
    assert_eq!(
        rows(document),
        [
            json!(["agent", ["n1", "n2"], [1, 2], [0, 1], true]),
            json!([
                "agent",
                ["n3"],
                [7, 2, 3, 40, 5, 6],
                [0, 0, 0, 0, 0, 1],
                true
            ]),
        ]
    );
}
