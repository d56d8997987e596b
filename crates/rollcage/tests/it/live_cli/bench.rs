//! `rollcage bench live`, in small.

use super::home::LiveHome;

#[tokio::test]
async fn many_turns_lose_nothing_and_leave_nothing() {
    let home = LiveHome::new().await;
    let measured = &home.json(&["bench", "live", "--agents", "2", "--turns", "24", "--json"])[0];
    let number = |name: &str| measured[name].as_u64().unwrap();
    assert_eq!((number("turns"), number("agents")), (24, 2), "{measured}");
    // The model's texts came in parts.
    assert!(number("replies") > 4 * 24, "{measured}");
    assert_eq!(measured["problems"], serde_json::json!([]), "{measured}");
    for kept in ["live", "rollouts"] {
        let kept = std::fs::read_dir(home.path().join(kept)).unwrap();
        assert_eq!(kept.count(), 0, "a measurement keeps nothing");
    }
    home.check_nothing_left();

    let refused = home.run(&["bench", "live", "--agents", "3", "--turns", "2"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
}
