//! Lists as text: what is read, written and refused.

use super::super::source::Origin;
use super::*;

fn source(node: Option<&str>, text: &'static str) -> Source {
    Source {
        agent: "agent".to_owned(),
        default_version: "1.0.0".to_owned(),
        origin: Origin::Npm(npm(node)),
        list: Some(PinnedListSource::BuiltIn(text)),
    }
}

fn npm(node: Option<&str>) -> Npm {
    Npm {
        package: "@s/agent".to_owned(),
        platforms: [].into(),
        program: "main.js".to_owned(),
        node: node.map(str::to_owned),
        lock: None,
    }
}

const HEAD: &str = "format = 1\nagent = \"agent\"\nversion = \"1.0.0\"\n";
const OWN: &str =
    "[[package]]\nname = \"@s/agent\"\nversion = \"1.0.0\"\nintegrity = \"sha512-AAAA\"\n";

/// The places of a list's packages, or why it is refused.
#[track_caller]
fn check(text: &str, expect: Result<&[&str], &str>) {
    let text: &'static str = text.to_owned().leak();
    let source = source(Some("22"), text);
    let placed = PinnedList::of(&source, "1.0.0").and_then(|pinned| {
        pinned
            .unwrap()
            .placed(&npm(Some("22")), &source, Target::X64)
    });
    let places = placed.map(|placed| {
        let places = placed.into_iter().map(|placed| placed.place);
        places
            .map(|place| place.display().to_string())
            .collect::<Vec<_>>()
    });
    match (places, expect) {
        (Ok(places), Ok(expect)) => assert_eq!(places, expect),
        (Err(error), Err(expect)) => assert_eq!(error.to_string(), expect),
        (got, _) => panic!("{got:?}"),
    }
}

#[test]
fn the_agent_comes_first_and_then_parents_before_those_below() {
    let package = |name: &str, more: &str| {
        format!(
            "[[package]]\nname = \"{name}\"\nversion = \"2.0.0\"\nintegrity = \"sha512-AAAA\"\n{more}\n"
        )
    };
    let text = [
        HEAD,
        &package("b", "place = \"node_modules/a/node_modules/b\""),
        &package("a", ""),
        OWN,
        &package("arm", "targets = [\"linux-arm64\"]"),
    ];
    check(
        &text.concat(),
        Ok(&[
            "node_modules/@s/agent",
            "node_modules/a",
            "node_modules/a/node_modules/b",
        ]),
    );
}

#[test]
fn what_is_wrong_in_a_list_is_named() {
    let list = "the pinned list that comes with Rollcage";
    let package = |lines: &str| format!("{HEAD}{OWN}[[package]]\nversion = \"1\"\n{lines}\n");
    let hash = "integrity = \"sha512-AAAA\"";
    for place in ["../x", "/etc", "node_modules/../../x"] {
        check(
            &package(&format!("name = \"a\"\n{hash}\nplace = \"{place}\"")),
            Err(&format!(
                "{list} is wrong about a@1: `place` must stay below the bundle, without `..`"
            )),
        );
    }
    check(
        &package(&format!("name = \"../a\"\n{hash}")),
        Err(&format!(
            "{list} is wrong about ../a@1: this is no package's name"
        )),
    );
    for hash in ["", "integrity = \"sha1-AAAA\"", "integrity = \"sha512-!\""] {
        check(
            &package(&format!("name = \"a\"\n{hash}")),
            Err(&format!(
                "{list} is wrong about a@1: `integrity` must be sha512-…"
            )),
        );
    }
    check(
        HEAD,
        Err(&format!(
            "{list} lacks @s/agent@1.0.0 for linux-x64: make it anew with `rollcage agent lock`"
        )),
    );
    check(
        &HEAD.replace("1.0.0", "0.9.0"),
        Err(&format!(
            "{list} is for agent 0.9.0, and the manifest wants agent 1.0.0: make it anew with `rollcage agent lock`"
        )),
    );
    check(
        &HEAD.replace("format = 1", "format = 9"),
        Err(&format!(
            "{list} has format 9, and this version of Rollcage reads 1"
        )),
    );
    check("packages = 1", Err(&format!("{list} is wrong")));
}

#[test]
fn a_list_is_of_the_default_version_only() {
    let source = source(None, "no list at all");
    assert_eq!(PinnedList::of(&source, "1.0.1").unwrap(), None);
}

#[test]
fn names_that_would_leave_the_directory_are_refused() {
    for name in [
        "", ".", "..", "../a", "/a", "a/b", "@a", "@a/", "@/a", "@a/../b", "@a/b/c", "a b",
    ] {
        assert!(!is_package_name(name), "{name}");
    }
    for name in ["lodash", "@s/a.b-c_d", "JSONStream", "3d"] {
        assert!(is_package_name(name), "{name}");
    }
}
