use super::*;
use crate::browse::graph::{GraphEdge, Link};

pub(super) fn edge(from: usize, to: usize, link: Link) -> GraphEdge {
    GraphEdge { from, to, link }
}

/// A title, a reply that was asked for again, a call that failed and a subagent, all beside the work.
fn busy_rollout() -> [Asked; 7] {
    let [first, second, third] = work();
    let again = Asked {
        sampled: vec![70],
        reply: uses("c9", "{}"),
        ..second.clone()
    };
    let busy = Asked {
        status: Some(429),
        ..second.clone()
    };
    let mut helper = asked(
        &[said("user", "help")],
        &[30],
        said("assistant", "ok"),
        &[31],
    );
    helper.session = Some("child");
    helper.parent = Some("main");
    let own = |mut asked: Asked| {
        asked.session = Some("main");
        asked
    };
    [
        title(),
        own(first),
        own(again),
        own(busy),
        own(second),
        helper,
        own(third),
    ]
}

#[test]
fn the_graph_has_every_call_and_how_it_goes_on() {
    let reading = read(&busy_rollout());
    let page = reading.graph(0, 100);
    let roles: Vec<_> = page.nodes.iter().map(|node| node.role.as_str()).collect();
    assert_eq!(
        roles,
        [
            "auxiliary",
            "agent",
            "discarded",
            "failed",
            "agent",
            "agent",
            "agent"
        ]
    );
    let reasons: Vec<_> = page
        .nodes
        .iter()
        .map(|node| node.reason.as_deref())
        .collect();
    assert_eq!(reasons[..3], [Some("beside"), None, Some("asked_again")]);
    let subagents: Vec<_> = page.nodes.iter().filter(|node| node.is_subagent).collect();
    assert_eq!((subagents.len(), subagents[0].turn), (1, 5));
    assert_eq!(
        page.edges,
        [
            edge(1, 2, Link::Continues),
            edge(1, 3, Link::Continues),
            edge(1, 4, Link::Continues),
            edge(4, 5, Link::Spawned),
            edge(4, 6, Link::Continues)
        ]
    );
    let roots: Vec<_> = page.nodes.iter().map(|node| node.root).collect();
    assert_eq!(roots, [0, 1, 1, 1, 1, 5, 1]);
    let part = reading.graph(4, 1);
    assert_eq!((part.nodes.len(), part.edges.len(), part.total), (1, 1, 7));
    let row = &reading.turns(3, 1).turns[0];
    assert_eq!(
        (row.error.as_deref(), row.upstream_status),
        (Some("too busy"), Some(429))
    );
}

#[test]
fn other_tokens_and_other_words_are_other_links() {
    let [first, second, third] = work();
    let retokenised = Asked {
        prompt: vec![1, 2, 3, 40, 50, 6],
        ..second.clone()
    };
    let reading = read(&[first.clone(), retokenised]);
    assert_eq!(reading.graph(0, 9).edges, [edge(0, 1, Link::Retokenised)]);
    let detail = reading.detail(1, MessageRange::New).unwrap();
    assert_eq!(
        (detail.retokenised_from, detail.messages_before),
        (Some(0), 3)
    );
    let mut changed = second;
    changed.messages[2] = uses("c1", "{\"a\":2}");
    changed.prompt = vec![1, 2, 3, 41, 51, 6];
    let reading = read(&[first, changed, third]);
    assert_eq!(reading.graph(0, 2).edges, [edge(0, 1, Link::Changed)]);
    let detail = reading.detail(1, MessageRange::New).unwrap();
    assert_eq!((detail.changed_from, detail.messages_before), (Some(0), 2));
    assert_eq!(detail.messages[0], uses("c1", "{\"a\":2}"));
}
