//! What holds of every conversation, however an agent goes about its own history.

use proptest::prelude::*;
use serde_json::Value;

use super::talk::{Talk, call, result, show, text, user};
use crate::exchange::Exchange;
use crate::graph::Role;
use crate::trace::interpret;

/// What an agent does after a reply.
#[derive(Clone, Copy, Debug)]
enum Step {
    SendBack,
    SendBackChanged,
    AskAgain,
    LeaveOut,
    /// Earlier results are cleared, so that nothing stands behind the same messages as before.
    Clear,
    /// The conversation is summed up and begun anew.
    SumUp,
    /// A subagent with the same task each time.
    Spawn,
    /// Back to an earlier point.
    Revert,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::SendBack),
        4 => Just(Step::SendBackChanged),
        1 => Just(Step::AskAgain),
        1 => Just(Step::LeaveOut),
        1 => Just(Step::Clear),
        1 => Just(Step::SumUp),
        1 => Just(Step::Spawn),
        1 => Just(Step::Revert),
    ]
}

/// What was exchanged, and which replies were sent back in the next request. `n_ids` different call ids in all: with
/// few of them they say little.
fn play(steps: &[Step], n_ids: usize, has_sessions: bool) -> (Vec<Exchange>, Vec<usize>) {
    let mut talk = Talk::new(&[user("go")]);
    let main = has_sessions.then_some("main");
    talk.session = main;
    let mut sent_back = Vec::new();
    // The last reply that is to be sent back, and where it stands.
    let mut last: Option<(usize, usize)> = None;
    for (at, step) in steps.iter().enumerate() {
        let id = format!("c{}", at % n_ids);
        let given = call(&id, "bash", &format!(r#"{{"n": {}.0}}"#, at % 3));
        let sent = call(&id, "bash", &format!(r#"{{"n":{}}}"#, at % 3));
        let is_asked = !matches!(step, Step::Clear | Step::Revert | Step::Spawn);
        if let Some((reply, place)) = last.filter(|_| is_asked) {
            sent_back.extend((talk.messages.len() > place).then_some(reply));
            last = None;
        }
        if matches!(step, Step::SendBack | Step::SendBackChanged) {
            last = Some((talk.exchanges.len(), talk.messages.len()));
        }
        match step {
            Step::SendBack => {
                talk.ask(&given).say(&[given, result(&id, "ok")]);
            }
            Step::SendBackChanged => {
                talk.ask(&given).say(&[sent, result(&id, "ok")]);
            }
            Step::AskAgain => {
                talk.ask(&text(""));
            }
            Step::LeaveOut => {
                talk.ask(&text("what?")).say(&[user("call a tool")]);
            }
            Step::Clear => {
                let cleared = |message: &mut Value| message["content"] = "[cleared]".into();
                let results = talk.messages.iter_mut();
                results
                    .filter(|it| it["role"] == "tool")
                    .take(1)
                    .for_each(cleared);
            }
            Step::SumUp => {
                talk.say(&[user("sum up")]);
                let summary = format!("{at} steps were taken and nothing is left to be done");
                talk.ask(&text(&summary));
                talk.messages = vec![user(&format!("So far: {summary}"))];
            }
            Step::Spawn => {
                talk.session = has_sessions.then_some(["sub", "other"][at % 2]);
                talk.ask_with(&[user("find it")], &given);
                talk.ask_with(&[user("find it"), sent, result(&id, "ok")], &text("found"));
                talk.session = main;
            }
            Step::Revert => {
                let len = talk.messages.len();
                talk.messages.truncate((len / 2).max(1));
            }
        }
    }
    let is_there = |(_, place): &(usize, usize)| talk.messages.len() > *place;
    sent_back.extend(last.filter(is_there).map(|(reply, _)| reply));
    talk.ask(&text("done"));
    (talk.exchanges, sent_back)
}

proptest! {
    // Each case is a rollout of up to fifty calls.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn links_go_back_and_order_changes_nothing(
        steps in prop::collection::vec(step(), 1..24),
        n_ids in 1..40_usize,
        has_sessions in any::<bool>(),
        keys in prop::collection::vec(any::<u32>(), 64),
    ) {
        let (exchanges, sent_back) = play(&steps, n_ids, has_sessions);
        let seen = interpret(&exchanges);
        let nodes = &seen.graph.nodes;
        for (at, node) in nodes.iter().enumerate() {
            for before in [node.changed, node.left_out].into_iter().flatten() {
                prop_assert!(before < at, "{}", show(&seen));
            }
            // A cycle would be longer than there are nodes.
            let path = std::iter::successors(Some(at), |at| nodes[*at].before());
            prop_assert!(path.take(nodes.len() + 1).count() <= nodes.len());
            prop_assert_eq!(node.role == Role::Agent, node.aside.is_none());
        }
        for before in nodes.iter().filter_map(|node| node.before()) {
            prop_assert!(nodes[before].role != Role::Discarded, "{}", show(&seen));
        }
        for reply in sent_back {
            prop_assert!(nodes[reply].role == Role::Agent, "{}: {}", reply + 1, show(&seen));
        }
        // Every turn of the agent is trained, and once.
        let trace = seen.training_trace.as_ref().unwrap();
        let mut trained: Vec<&str> = trace.turns.iter().map(|turn| turn.node_id.as_str()).collect();
        trained.sort_unstable();
        let agents = nodes.iter().filter(|node| node.role == Role::Agent);
        let mut agents: Vec<&str> = agents.map(|node| node.id.as_str()).collect();
        agents.sort_unstable();
        prop_assert_eq!(trained, agents);

        let mut shuffled: Vec<(u32, Exchange)> = keys.into_iter().cycle().zip(exchanges).collect();
        shuffled.sort_by_key(|(key, _)| *key);
        let turns: Vec<crate::turn::Turn> =
            shuffled.iter().map(|(_, exchange)| crate::turn::Turn::new(exchange)).collect();
        let mut other = seen.clone();
        other.graph = crate::graph::Graph::new(&turns);
        for (node, known) in other.graph.nodes.iter_mut().zip(nodes) {
            prop_assert_eq!(turns[node.turn].exchange, seen.turns[known.turn].exchange);
            node.turn = known.turn;
        }
        prop_assert_eq!(&other.graph, &seen.graph);
    }
}
