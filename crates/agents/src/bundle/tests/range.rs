//! Checks that the semver crate parses ranges and orders versions as npm does: resolving a tree depends on it.

use nodejs_semver::{Range, Version};

#[track_caller]
fn check(range: &str, inside: &[&str], outside: &[&str]) {
    let parsed = Range::parse(range).unwrap();
    let holds = |version: &&str| parsed.satisfies(&Version::parse(version).unwrap());
    for version in inside {
        assert!(holds(version), "{range} takes {version}");
    }
    for version in outside {
        assert!(!holds(version), "{range} leaves out {version}");
    }
}

#[test]
fn ranges_mean_what_npm_says() {
    check(
        "^1.2.3",
        &["1.2.3", "1.9.0"],
        &["1.2.2", "2.0.0", "1.3.0-rc.1"],
    );
    check("^0.2.3", &["0.2.9"], &["0.3.0"]);
    check("^0.0.3", &["0.0.3"], &["0.0.4"]);
    check("^0.x", &["0.9.9"], &["1.0.0"]);
    check("~1.2", &["1.2.9"], &["1.3.0"]);
    check("~1", &["1.9.0"], &["2.0.0"]);
    check(
        "1.x || >=2.5.0 <3 || 5.0.0 - 7.2",
        &["1.0.0", "2.6.0", "7.2.9"],
        &["2.4.0", "3.0.0", "7.3.0"],
    );
    check(">= 1.2 < 2", &["1.2.0"], &["2.0.0"]);
    check(">1.2", &["1.3.0"], &["1.2.9"]);
    check("<=1.2", &["1.2.9"], &["1.3.0"]);
    check("*", &["0.0.1", "9.9.9"], &["1.0.0-beta"]);
    check("", &["1.0.0"], &[]);
    check(
        "1.2.0-beta.10",
        &["1.2.0-beta.10"],
        &["1.2.0", "1.2.0-beta.2"],
    );
    check(
        "^1.2.0-beta.2",
        &["1.2.0-beta.10", "1.3.0"],
        &["1.2.0-beta.1", "1.3.0-beta.1"],
    );
}

/// Such a text is taken for a tag, which the registry resolves.
#[test]
fn what_is_no_range_is_recognised() {
    for text in [
        "latest",
        "beta1",
        "git+https://x/y.git",
        "git+ssh://git@x/y.git#v1.0.27",
        "http://x/1.2.3.tgz",
        "file:../x",
        "workspace:*",
    ] {
        assert!(Range::parse(text).is_err(), "{text}");
    }
}

#[test]
fn versions_are_ordered_as_npm_orders_them() {
    let sorted = [
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0",
        "1.10.0",
    ];
    let versions: Vec<_> = sorted
        .iter()
        .map(|text| Version::parse(text).unwrap())
        .collect();
    assert!(versions.is_sorted());
}
