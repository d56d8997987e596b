//! Runs the whole suite once more as an ordinary user.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::kit::{is_root, place_for_others};

const NOBODY: u32 = 65534;

#[test]
fn everything_also_holds_for_an_ordinary_user() {
    if !is_root() {
        // This is the inner run; `the_tier_is_the_one_this_user_gets` checks that it has the expected tier.
        return;
    }
    let place = place_for_others();
    let path = |name: &str| place.path().join(name);
    let output = Command::new(path("suite"))
        .env_clear()
        .env("ROLLCAGE_TEST_ZYGOTE", path("zygote"))
        .env("TMPDIR", path("tmp"))
        .current_dir(path("tmp"))
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{text}");
    let passed = text
        .lines()
        .filter(|line| line.starts_with("test ") && line.ends_with("... ok"))
        .count();
    assert!(passed > 30, "the suite must really have run: {text}");
    let left: Vec<_> = std::fs::read_dir(path("tmp"))
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
