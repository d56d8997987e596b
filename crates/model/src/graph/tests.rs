use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::exchange::{Exchange, Request, Response};
use rollcage_dialect::chat::{Message, ToolCall};

/// A turn with ids; `n_tools` tools were offered.
fn turn(exchange: u64, prompt: &[u32], completion: &[u32], n_tools: usize) -> Turn {
    let entries: Vec<Value> = completion
        .iter()
        .map(|_| json!({"token": "x", "logprob": -0.5}))
        .collect();
    let body = json!({
        "choices": [{
            "message": {"role": "assistant", "content": format!("{completion:?}")},
            "finish_reason": "stop",
            "token_ids": completion,
            "logprobs": {"content": entries},
        }],
        "prompt_token_ids": prompt,
    });
    let tools: Vec<Value> = (0..n_tools).map(|_| json!({})).collect();
    let request =
        json!({"messages": [{"role": "user", "content": format!("{prompt:?}")}], "tools": tools});
    Turn::new(&exchange_of(exchange, &request, &body))
}

/// A turn without ids.
fn told(exchange: u64, messages: &Value, message: Message) -> Turn {
    let body = json!({"choices": [{"message": message.to_value(), "finish_reason": "stop"}]});
    Turn::new(&exchange_of(
        exchange,
        &json!({ "messages": messages }),
        &body,
    ))
}

fn exchange_of(exchange: u64, request: &Value, body: &Value) -> Exchange {
    Exchange {
        sent: None,
        request: Request {
            dialect: Default::default(),
            exchange,
            at: 10.0 * exchange as f64,
            path: "/v1/chat/completions".to_owned(),
            headers: Default::default(),
            body: request.to_string().into(),
            set: Default::default(),
            ..Request::default()
        },
        response: Some(Response {
            attempts: Vec::new(),
            is_replayed: false,
            exchange,
            at: 10.0 * exchange as f64 + 1.0,
            status: Some(200),
            is_stream: false,
            body: body.to_string().into(),
            first_byte_s: None,
            total_s: 1.0,
            error: None,
        }),
    }
}

fn text(content: &str) -> Message {
    Message {
        role: "assistant".to_owned(),
        content: Some(content.to_owned()),
        ..Message::default()
    }
}

/// Nodes as `id<parent role`.
fn show(graph: &Graph) -> String {
    let shown: Vec<String> = graph
        .nodes
        .iter()
        .map(|node| {
            let parent = node
                .parent
                .map_or("-", |parent| graph.nodes[parent].id.as_str());
            format!("{}<{parent} {}", node.id, node.role.as_str())
        })
        .collect();
    shown.join(", ")
}

#[track_caller]
fn check(turns: &[Turn], expect: &str) {
    assert_eq!(show(&Graph::new(turns)), expect);
}

#[test]
fn a_title_call_is_auxiliary_beside_a_conversation() {
    check(
        &[
            turn(1, &[9, 9], &[8], 0),
            turn(2, &[1], &[2], 3),
            turn(3, &[1, 2, 3], &[4], 3),
        ],
        "n1<- auxiliary, n2<- agent, n3<n2 agent",
    );
}

#[test]
fn a_first_call_that_was_made_again_is_discarded() {
    check(
        &[
            turn(1, &[1], &[5], 1),
            turn(2, &[1], &[2], 1),
            turn(3, &[1, 2, 3], &[4], 1),
        ],
        "n1<- discarded, n2<- agent, n3<n2 agent",
    );
}

#[test]
fn a_later_call_that_was_made_again_is_discarded() {
    check(
        &[
            turn(1, &[1], &[2], 1),
            turn(2, &[1, 2, 3], &[5], 1),
            turn(3, &[1, 2, 3], &[4], 1),
            turn(4, &[1, 2, 3, 4, 6], &[7], 1),
        ],
        "n1<- agent, n2<n1 discarded, n3<n1 agent, n4<n3 agent",
    );
}

#[test]
fn two_equal_replies_leave_the_later_one_continued() {
    check(
        &[
            turn(1, &[1], &[2], 1),
            turn(2, &[1], &[2], 1),
            turn(3, &[1, 2, 3], &[4], 1),
        ],
        "n1<- discarded, n2<- agent, n3<n2 agent",
    );
}

#[test]
fn the_longest_prefix_is_the_parent_and_a_changed_token_breaks_it() {
    check(
        &[
            turn(1, &[1], &[2], 1),
            turn(2, &[1, 2, 3], &[4], 1),
            turn(3, &[1, 2, 3, 40, 5], &[6], 1),
        ],
        "n1<- agent, n2<n1 agent, n3<n1 agent",
    );
    check(
        &[turn(1, &[1], &[2], 1), turn(2, &[1, 20, 3], &[4], 1)],
        "n1<- agent, n2<- agent",
    );
}

#[test]
fn without_tools_every_live_path_with_tokens_is_the_agents() {
    check(
        &[
            turn(1, &[9], &[8], 0),
            turn(2, &[1], &[2], 0),
            turn(3, &[5], &[], 0),
        ],
        "n1<- agent, n2<- agent, n3<- auxiliary",
    );
}

#[test]
fn a_turn_that_sampled_nothing_is_nobodys_parent() {
    check(
        &[
            turn(1, &[1], &[], 1),
            turn(2, &[1], &[], 1),
            turn(3, &[1, 2], &[3], 1),
        ],
        "n1<- agent, n2<- agent, n3<- agent",
    );
}

#[test]
fn without_ids_messages_link_and_arguments_are_compared_as_values() {
    let call = ToolCall {
        id: Some("c".to_owned()),
        name: "bash".to_owned(),
        arguments: r#"{"a": 1, "b": 2}"#.to_owned(),
    };
    let first = Message {
        role: "assistant".to_owned(),
        tool_calls: vec![call],
        ..Message::default()
    };
    let echoed = json!({"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"name": "bash", "arguments": "{\"b\":2,\"a\":1}"}}]});
    let user = json!({"role": "user", "content": "go"});
    let result = json!({"role": "tool", "content": "ok"});
    check(
        &[
            told(
                1,
                &json!([{"role": "system", "content": "it is one o'clock"}, user]),
                first,
            ),
            told(
                2,
                &json!([{"role": "system", "content": "it is two o'clock"}, user, echoed, result]),
                text("done"),
            ),
            told(
                3,
                &json!([user, {"role": "assistant", "content": "other"}, result]),
                text("done"),
            ),
        ],
        "n1<- agent, n2<n1 agent, n3<- agent",
    );
}

#[test]
fn a_turn_that_lost_its_ids_keeps_its_place_by_its_messages() {
    let ask = |content: &str| json!({"role": "user", "content": content});
    let reply = |content: &str| json!({"role": "assistant", "content": content});
    let mut first = told(1, &json!([ask("a")]), text("b"));
    first.prompt_token_ids = Some(vec![1].into());
    first.completion_token_ids = Some(vec![2]);
    let second = told(2, &json!([ask("a"), reply("b"), ask("c")]), text("d"));
    let mut third = told(
        3,
        &json!([ask("a"), reply("b"), ask("c"), reply("d"), ask("e")]),
        text("f"),
    );
    third.prompt_token_ids = Some(vec![1, 2, 3, 4, 5].into());
    third.completion_token_ids = Some(vec![6]);
    check(
        &[first, second, third],
        "n1<- agent, n2<n1 agent, n3<n2 agent",
    );
}

#[test]
fn a_reply_that_came_back_in_other_tokens_is_not_discarded() {
    let ask = |content: &str| json!({"role": "user", "content": content});
    let reply = |content: &str| json!({"role": "assistant", "content": content});
    let with_ids = |mut turn: Turn, prompt: &[u32], completion: &[u32]| {
        turn.prompt_token_ids = Some(prompt.to_vec().into());
        turn.completion_token_ids = Some(completion.to_vec());
        turn
    };
    let messages = [
        ask("a"),
        reply("b"),
        ask("c"),
        reply("d"),
        ask("e"),
        reply("f"),
        ask("g"),
    ];
    let turns = [
        with_ids(told(1, &json!(messages[..1]), text("b")), &[1], &[2]),
        with_ids(told(2, &json!(messages[..3]), text("d")), &[1, 2, 3], &[4]),
        with_ids(
            told(3, &json!(messages[..5]), text("f")),
            &[1, 2, 3, 40, 5],
            &[6],
        ),
        with_ids(
            told(4, &json!(messages), text("h")),
            &[1, 2, 3, 40, 5, 6, 7],
            &[8],
        ),
    ];
    check(&turns, "n1<- agent, n2<n1 agent, n3<n1 agent, n4<n3 agent");
    assert_eq!(Graph::new(&turns).nodes[2].retokenised, Some(1));
}

#[test]
fn a_failed_exchange_is_no_node() {
    let mut failed = turn(1, &[1], &[2], 1);
    failed.upstream_error = Some(json!({"message": "boom"}));
    check(&[failed, turn(2, &[1], &[2], 1)], "n2<- agent");
}

/// A turn of a session, with its messages in full and ids that no other has.
fn in_session(
    exchange: u64,
    session: (&str, Option<&str>),
    messages: &Value,
    n_tools: usize,
    reply: &str,
) -> Turn {
    let body = json!({"choices": [{"message": {"role": "assistant", "content": reply}, "finish_reason": "stop"}]});
    let tools: Vec<Value> = (0..n_tools).map(|_| json!({})).collect();
    let mut turn = Turn::new(&exchange_of(
        exchange,
        &json!({"messages": messages, "tools": tools}),
        &body,
    ));
    turn.harness_session_id = Some(session.0.to_owned());
    turn.parent_session_id = session.1.map(str::to_owned);
    turn
}

#[test]
fn a_conversation_begun_anew_from_a_summary_is_told_from_a_new_one() {
    let ask = |content: &str| json!({"role": "user", "content": content});
    let said = json!({"role": "assistant", "content": "working"});
    let turns = [
        in_session(1, ("s", None), &json!([ask("go")]), 1, "working"),
        in_session(
            2,
            ("s", None),
            &json!([ask("go"), said, ask("sum up")]),
            0,
            "all is well",
        ),
        in_session(
            3,
            ("s", None),
            &json!([ask("so far: all is well")]),
            1,
            "on",
        ),
        in_session(4, ("s", None), &json!([ask("something else")]), 1, "yes"),
        in_session(
            5,
            ("t", None),
            &json!([ask("so far: all is well, too")]),
            1,
            "yes",
        ),
    ];
    let graph = Graph::new(&turns);
    let compacts: Vec<Option<usize>> = graph.nodes.iter().map(|node| node.compacts).collect();
    assert_eq!(compacts, [None, None, Some(0), None, None]);
    check(
        &turns,
        "n1<- agent, n2<n1 auxiliary, n3<- agent, n4<- agent, n5<- agent",
    );
}

#[test]
fn a_subagent_is_known_by_the_session_that_started_it() {
    let ask = |content: &str| json!([{"role": "user", "content": content}]);
    let turns = [
        in_session(1, ("s", None), &ask("go"), 1, "start one"),
        in_session(2, ("sub", Some("s")), &ask("find"), 1, "found"),
        in_session(3, ("lost", Some("unknown")), &ask("seek"), 1, "none"),
    ];
    let graph = Graph::new(&turns);
    let spawners: Vec<Option<usize>> = graph.nodes.iter().map(|node| node.spawned_by).collect();
    assert_eq!(spawners, [None, Some(0), None]);
}

mod reference;

proptest! {
    #[test]
    fn the_order_of_turns_changes_nothing(
        seeds in prop::collection::vec((any::<prop::sample::Index>(), 0_u32..3, 0_u32..3, 0_usize..2), 1..12),
        keys in prop::collection::vec(any::<u32>(), 12),
    ) {
        let mut sequences: Vec<Vec<u32>> = vec![vec![0]];
        let mut turns = Vec::new();
        for (exchange, (base, more, sampled, n_tools)) in (1..).zip(&seeds) {
            let mut prompt = sequences[base.index(sequences.len())].clone();
            prompt.extend((0..*more).map(|at| at % 2));
            let completion: Vec<u32> = (0..*sampled).collect();
            turns.push(turn(exchange, &prompt, &completion, *n_tools));
            sequences.push([prompt, completion].concat());
        }
        let graph = Graph::new(&turns);
        for node in &graph.nodes {
            if let Some(parent) = node.parent {
                let parent = &turns[graph.nodes[parent].turn];
                let whole = [parent.prompt_token_ids.as_ref().unwrap().to_vec(), parent.completion_token_ids.clone().unwrap()].concat();
                prop_assert!(turns[node.turn].prompt_token_ids.as_ref().unwrap().to_vec().starts_with(&whole));
            }
        }
        let mut shuffled: Vec<(u32, Turn)> = keys.into_iter().zip(turns).collect();
        shuffled.sort_by_key(|(key, _)| *key);
        let shuffled: Vec<Turn> = shuffled.into_iter().map(|(_, turn)| turn).collect();
        prop_assert_eq!(show(&graph), show(&Graph::new(&shuffled)));
    }
}
