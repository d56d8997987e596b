//! Rollouts as ATIF trajectories.

use super::*;

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
