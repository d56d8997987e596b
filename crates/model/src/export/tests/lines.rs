//! Rollouts as lines: rows, chats and model calls.

use super::*;

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
