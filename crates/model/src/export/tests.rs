use serde_json::{Value, json};

use super::*;
use crate::exchange::{Exchange, Request, Response};
use crate::trace;

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

#[test]
fn a_chat_is_one_line_though_its_prompts_were_rendered_anew() {
    let go = [user("go"), assistant("a"), user("b")];
    let calls = [
        call(&go[..1], &[1], &[2], assistant("a")),
        call(&go, &[10, 2, 3], &[4], assistant("c")),
    ];
    let lines = export(&calls, Format::Sft, |_, _| {});
    assert_eq!(lines.len(), 1);
    let said: Vec<&Value> = lines[0]["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["content"])
        .collect();
    assert_eq!(said, ["go", "a", "b", "c"]);
    assert_eq!(lines[0]["metadata"]["node_ids"], json!(["n1", "n2"]));
}

#[test]
fn every_line_says_which_rollout_it_is_of() {
    let expected = json!({
        "rollout_id": "r", "task_id": "t", "group": "g", "agent": "a", "agent_version": "1", "reward": 1.0,
        "reward_valid": true, "ended": "completed",
    });
    let check = |head: &Value, format: Format| {
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&head[name], value, "{name} of {format}");
        }
        assert_eq!(head["model"], "served", "{format}");
    };
    for format in [Format::Sequences, Format::Turns] {
        let lines = export(&usual(), format, |_, _| {});
        assert!(!lines.is_empty());
        lines.iter().for_each(|line| check(line, format));
    }
    for (format, list) in [
        (Format::TrainingTrace, "turns"),
        (Format::TraceEntries, "entries"),
    ] {
        let document = &export(&usual(), format, |_, _| {})[0];
        for turn in document[list].as_array().unwrap() {
            check(&turn["metadata"], format);
        }
    }
    for (format, place) in [
        (Format::Sft, "metadata"),
        (Format::Capture, "metadata"),
        (Format::Atif, "extra"),
    ] {
        let line = &export(&usual(), format, |_, _| {})[0];
        check(&line[place], format);
    }
}

#[test]
fn a_line_has_no_member_twice() {
    for format in [Format::Sequences, Format::Turns, Format::Sft] {
        let seen = trace::read(
            (1..)
                .zip(&usual())
                .map(|(number, call)| exchange(number, call, |_, _| {})),
        );
        let mut out = Vec::new();
        write(
            format,
            &seen,
            &Meta::default(),
            Options::default(),
            &mut out,
        )
        .unwrap();
        for line in String::from_utf8(out).unwrap().lines() {
            for name in ["rollout_id", "model", "role", "group"] {
                let name = format!("\"{name}\":");
                // Messages have roles of their own.
                let head = line.split("\"messages\":").next().unwrap();
                assert!(head.matches(&name).count() <= 1, "{name} in {line}");
            }
        }
    }
}

#[test]
fn rows_of_the_export_are_those_of_the_result() {
    let lines = export(&usual(), Format::Sequences, |_, _| {});
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["ids"], json!([1, 2, 3, 4, 5, 6]));
    assert_eq!(lines[0]["loss_mask"], json!([0, 0, 1, 0, 1, 1]));
    assert_eq!(
        lines[0]["logprobs"],
        json!([0.0, 0.0, -0.5, 0.0, -0.5, -0.5])
    );
}

#[test]
fn a_call_is_written_as_what_is_new_in_it() {
    let lines = export(&usual(), Format::Turns, |_, _| {});
    assert_eq!(lines.len(), 4);
    let last = &lines[3];
    assert_eq!(
        last["prompt"],
        json!({"parent": 2, "shared": 3, "repeats": [], "ids": [4], "n_ids": 4})
    );
    assert_eq!(last["messages"]["parent"], 2);
    assert_eq!(
        (
            &last["messages"]["shared"],
            last["messages"]["new"].as_array().unwrap().len()
        ),
        (&json!(1), 2)
    );
    assert_eq!(
        (&last["tools"], &last["tools_from"]),
        (&Value::Null, &json!(1))
    );
}

#[test]
fn a_chat_is_as_templates_take_it() {
    let parts = json!({"role": "user", "content": [{"type": "text", "text": "go"}, {"type": "text", "text": " on"}]});
    let rules = json!({"role": "developer", "content": "be good"});
    let mut said = calling("c1", r#"{"command": "ls", "n": 1.5}"#);
    said["reasoning"] = json!("hm");
    let broken = calling("c2", "no json");
    let asked = [
        rules,
        parts,
        said,
        tool("c1", "out"),
        broken,
        tool("c2", "what?"),
    ];
    let calls = [call(&asked, &[1], &[2], calling("c3", ""))];
    let messages = export(&calls, Format::Sft, |_, _| {})[0]["messages"].clone();
    assert_eq!(messages[0], json!({"role": "system", "content": "be good"}));
    assert_eq!(messages[1], json!({"role": "user", "content": "go on"}));
    assert_eq!(
        (&messages[2]["content"], &messages[2]["reasoning_content"]),
        (&json!(""), &json!("hm"))
    );
    let arguments = |at: usize| &messages[at]["tool_calls"][0]["function"]["arguments"];
    assert_eq!(arguments(2), &json!({"command": "ls", "n": 1.5}));
    assert_eq!(arguments(4), &json!("no json"));
    assert_eq!(arguments(6), &json!({}));

    let seen = trace::read([exchange(1, &calls[0], |_, _| {})]);
    let mut out = Vec::new();
    let strings = Options {
        arguments: Arguments::Strings,
        ..Options::default()
    };
    write(Format::Sft, &seen, &Meta::default(), strings, &mut out).unwrap();
    let line: Value = serde_json::from_slice(&out).unwrap();
    let arguments = |at: usize| &line["messages"][at]["tool_calls"][0]["function"]["arguments"];
    assert_eq!(arguments(2), r#"{"command": "ls", "n": 1.5}"#);
    assert_eq!(arguments(6), "");
}

#[test]
fn a_trajectory_has_each_tools_answer_in_the_step_that_asked() {
    let document = &export(&usual(), Format::Atif, |_, _| {})[0];
    let steps = document["steps"].as_array().unwrap();
    assert_eq!(
        steps[0],
        json!({"step_id": 1, "source": "user", "message": "go"})
    );
    assert_eq!(
        steps[1],
        json!({
            "step_id": 2, "timestamp": "2025-11-15T09:46:41.750Z", "source": "agent", "model_name": "served", "message": "",
            "tool_calls": [{"tool_call_id": "c1", "function_name": "bash", "arguments": {"command": "ls"}}],
            "observation": {"results": [{"source_call_id": "c1", "content": "out"}]},
            "metrics": {
                "prompt_tokens": 2, "completion_tokens": 1, "cached_tokens": 0,
                "prompt_token_ids": [1, 2], "completion_token_ids": [3], "logprobs": [-0.5],
                "extra": {"node_id": "n3", "finish_reason": "stop", "sampling_params": {"temperature": 1}, "requested_sampling_params": {"temperature": 1}},
            },
            "llm_call_count": 1,
        })
    );
    let broken = json!([{"tool_call_id": "c2", "function_name": "bash", "arguments": {}, "extra": {"arguments": "no json"}}]);
    assert_eq!(steps[2]["tool_calls"], broken);
    assert_eq!(
        document["final_metrics"]["extra"]["discarded_calls"],
        json!(1)
    );
}

#[test]
fn a_trajectory_embeds_subagents_and_goes_on_through_compactions() {
    let ask = calling("c1", r#"{"prompt": "find it"}"#);
    let go = [
        user("go"),
        ask.clone(),
        tool("c1", "found"),
        assistant("so"),
        user("sum up"),
    ];
    let calls = [
        call(&go[..1], &[1], &[2], ask),
        Call {
            session: ("sub", Some("s")),
            ..call(&[user("find it")], &[50], &[51], assistant("found"))
        },
        call(&go[..3], &[1, 2, 3], &[4], assistant("so")),
        Call {
            n_tools: 0,
            ..call(&go, &[60], &[61], assistant("all is well"))
        },
        call(
            &[user("on from: all is well")],
            &[70],
            &[71],
            assistant("bye"),
        ),
    ];
    let document = &export(&calls, Format::Atif, |_, _| {})[0];
    let messages: Vec<&Value> = document["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| &step["message"])
        .collect();
    assert_eq!(messages, ["go", "", "so", "on from: all is well", "bye"]);
    assert_eq!(
        document["steps"][1]["observation"]["results"],
        json!([{"source_call_id": "c1", "content": "found", "subagent_trajectory_ref": [{"trajectory_id": "r:n2"}]}])
    );
    assert_eq!(
        document["subagent_trajectories"][0]["trajectory_id"],
        "r:n2"
    );
}

/// A reply whose two calls come back apart and changed.
fn changed() -> Vec<Call> {
    let given = |id: &str, value: &str| json!({"id": id, "type": "function", "function": {"name": "bash", "arguments": value}});
    let reply = json!({"role": "assistant", "content": "I look.\n", "tool_calls": [given("c1", r#"{"t": 1.0}"#), given("c2", r#"{"t": 2.0}"#)]});
    let one = json!({"role": "assistant", "content": "I look.", "tool_calls": [given("c1", r#"{"t":1}"#)]});
    let two =
        json!({"role": "assistant", "content": "", "tool_calls": [given("c2", r#"{"t":2}"#)]});
    let go = [user("go"), one, tool("c1", "one"), two, tool("c2", "two")];
    vec![
        call(&go[..1], &[1], &[2], reply),
        call(&go, &[1, 3], &[4], assistant("bye")),
    ]
}

#[test]
fn a_changed_reply_does_not_part_a_conversation() {
    let document = &export(&changed(), Format::Atif, |_, _| {})[0];
    let steps = document["steps"].as_array().unwrap();
    let shown: Vec<&Value> = steps.iter().map(|step| &step["message"]).collect();
    assert_eq!(shown, ["go", "I look.\n", "bye"]);
    let results = json!([{"source_call_id": "c1", "content": "one"}, {"source_call_id": "c2", "content": "two"}]);
    assert_eq!(steps[1]["observation"]["results"], results);
    assert_eq!(document["subagent_trajectories"], Value::Null);

    let chats = export(&changed(), Format::Sft, |_, _| {});
    assert_eq!(chats.len(), 1);
    assert_eq!(chats[0]["metadata"]["node_ids"], json!(["n1", "n2"]));

    let turns = export(&changed(), Format::Turns, |_, _| {});
    assert_eq!(turns[1]["changed_from"], "n1");
    assert_eq!(turns[1]["parent_id"], Value::Null);
    let document = &export(&changed(), Format::Capture, |_, _| {})[0];
    let roles: Vec<&Value> = document["sequences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["role"])
        .collect();
    assert_eq!(roles, ["agent", "agent"]);
    let turns = export(&usual(), Format::Turns, |_, _| {});
    let reasons: Vec<&Value> = turns.iter().map(|turn| &turn["reason"]).collect();
    assert_eq!(
        reasons,
        [
            &json!("beside"),
            &json!("asked_again"),
            &Value::Null,
            &Value::Null
        ]
    );
}

#[test]
fn nothing_is_no_trajectory() {
    let error = atif::write(&trace::interpret(&[]), &Meta::default(), &mut Vec::new());
    assert!(matches!(error, Err(ExportError::Empty { .. })));
}

#[cfg(feature = "parquet")]
#[test]
fn a_table_has_a_row_for_each_exact_turn_of_the_agent() {
    use ::parquet::file::reader::{FileReader, SerializedFileReader};

    let exchanges: Vec<Exchange> = (1..)
        .zip(&usual())
        .map(|(number, call)| exchange(number, call, |_, _| {}))
        .collect();
    let seen = trace::read(exchanges);
    let path = std::env::temp_dir().join(format!("rollcage-{}.parquet", std::process::id()));
    let mut table = parquet::Table::new(std::fs::File::create(&path).unwrap()).unwrap();
    for rollout_id in ["a", "b"] {
        let meta = Meta {
            rollout_id: rollout_id.to_owned(),
            ..Meta::default()
        };
        table.push(&seen, &meta).unwrap();
    }
    table.close().unwrap();
    let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let rows = reader.get_row_iter(None).unwrap();
    let rows: Vec<String> = rows.map(|row| row.unwrap().to_string()).collect();
    assert_eq!(rows.len(), 4);
    assert!(rows[3].contains("rollout_id: \"b\""), "{}", rows[3]);
    assert!(
        rows[3].contains("prompt_token_ids: [1, 2, 3, 4]"),
        "{}",
        rows[3]
    );
    assert!(
        rows[3].contains("loss_mask: [0, 0, 0, 0, 1, 1]"),
        "{}",
        rows[3]
    );
}

#[cfg(feature = "parquet")]
#[test]
fn a_table_holds_the_training_trace_of_each_rollout() {
    use ::parquet::file::reader::{FileReader, SerializedFileReader};

    let exchanges: Vec<Exchange> = (1..)
        .zip(&usual())
        .map(|(number, call)| exchange(number, call, |_, _| {}))
        .collect();
    let seen = trace::interpret(&exchanges);
    let mut out = Vec::new();
    let mut table = super::parquet::Table::new(&mut out).unwrap();
    for id in ["first", "second"] {
        let meta = Meta {
            rollout_id: id.to_owned(),
            reward: Some(0.5),
            ..Meta::default()
        };
        table.push(&seen, &meta).unwrap();
    }
    let nothing = trace::interpret(&[]);
    assert!(table.push(&nothing, &Meta::default()).is_err());
    table.close().unwrap();

    let reader = SerializedFileReader::new(bytes::Bytes::from(out)).unwrap();
    let rows: Vec<Value> = reader
        .get_row_iter(None)
        .unwrap()
        .map(|row| row.unwrap().to_json_value())
        .collect();
    let turns = seen.training_trace.unwrap().turns;
    assert_eq!(rows.len(), 2 * turns.len());
    for (number, (row, turn)) in rows.iter().zip(turns.iter().chain(&turns)).enumerate() {
        let id = ["first", "second"][number / turns.len()];
        assert_eq!(
            (&row["rollout_id"], &row["reward"]),
            (&json!(id), &json!(0.5))
        );
        assert_eq!(row["node_id"], json!(turn.node_id));
        assert_eq!(row["prompt_token_ids"], json!(turn.prompt_token_ids));
        assert_eq!(
            row["completion_token_ids"],
            json!(turn.completion_token_ids)
        );
        assert_eq!(row["logprobs"], json!(turn.per_token_logps));
        assert_eq!(row["loss_mask"], json!(turn.loss_mask));
        let codes = super::codes(&seen.findings);
        assert!(!codes.is_empty());
        assert_eq!(row["finding_codes"], json!(codes));
    }
}
