use rollcage_engine::store::read_exchanges;
use rollcage_model::finding::{CaptureLevel, RolloutType};
use rollcage_model::trace::Facts;

use super::*;

#[test]
fn a_long_conversation_has_a_branch_a_subagent_and_calls_that_do_not_count() {
    const CALLS: usize = 40;
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("exchanges.rec");
    let subject = Subject {
        model: "m",
        instruction: "Do it.",
        started_at: 1000.0,
        seed: 1,
    };
    write(&path, &subject, CALLS).unwrap();
    let seen = read_exchanges(&path, u64::MAX, &Facts::default()).unwrap();
    assert_eq!(seen.turns.len(), CALLS);
    assert_eq!(
        (seen.rollout_type, seen.capture_level),
        (RolloutType::Train, CaptureLevel::Tokens)
    );
    let nodes = &seen.graph.nodes;
    let role = |role: &str| {
        nodes
            .iter()
            .filter(|node| node.role.as_str() == role)
            .count()
    };
    assert_eq!((role("auxiliary"), role("discarded")), (1, 1));
    let branches = (0..nodes.len()).filter(|parent| {
        let mut next = nodes.iter().filter(|node| node.role.as_str() == "agent");
        next.by_ref()
            .filter(|node| node.parent == Some(*parent))
            .count()
            > 1
    });
    assert_eq!(branches.count(), 1);
    let spawned = nodes.iter().filter(|node| node.spawned_by.is_some());
    assert_eq!(spawned.count(), 1);
    // The work, its branch and the subagent each are one conversation by tokens.
    let roots = nodes.iter().filter(|node| node.parent.is_none());
    assert_eq!(roots.count(), 3);
}
