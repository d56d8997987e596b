use proptest::prelude::*;

use super::*;

const PYTEST: &str = include_str!("fixtures/pytest.xml");
const XUNIT1: &str = include_str!("fixtures/pytest-xunit1.xml");
const NODE: &str = include_str!("fixtures/node.xml");

fn tests(passed: RequiredTests, report: &str) -> CountedTests {
    CountedTests {
        report: report.to_owned(),
        ..CountedTests::new(passed)
    }
}

fn named(ids: &[&str]) -> RequiredTests {
    RequiredTests::Named(ids.iter().map(|id| (*id).to_owned()).collect())
}

#[track_caller]
fn missing(report: &str, content: &str, passed: RequiredTests) -> Option<String> {
    let tests = tests(passed, report);
    let mut tally = Tally::new(&tests);
    tally.add(content.as_bytes()).unwrap();
    tally.missing()
}

/// How many tests a report says have passed.
#[track_caller]
fn passed(report: &str, content: &str) -> u64 {
    let tests = tests(RequiredTests::Count(1), report);
    let mut tally = Tally::new(&tests);
    tally.add(content.as_bytes()).unwrap();
    tally.counts.passed
}

fn refused(content: &str) -> String {
    let tests = tests(RequiredTests::Count(1), "junit.xml");
    let mut tally = Tally::new(&tests);
    let error = tally.add(content.as_bytes()).unwrap_err();
    assert_eq!(
        tally.counts.passed, 0,
        "an unreadable report counts for nothing"
    );
    crate::text::chain(&error)
}

#[test]
fn tests_of_pytest_have_the_names_that_it_shows() {
    assert_eq!(passed("junit.xml", PYTEST), 6);
    let all = named(&[
        "tests/test_a.py::test_passes",
        "tests/test_a.py::test_each[a/b.py]",
        "tests/test_a.py::test_each[1.5]",
        "tests/test_a.py::test_each[a::b]",
        "tests/test_a.py::test_each[\\xfc<&\"'>]",
        "tests/test_a.py::TestGroup::test_in_a_class",
        "tests.test_a::test_passes",
        "tests.test_a.test_passes",
        "tests.test_a.TestGroup.test_in_a_class",
        "test_passes",
    ]);
    assert_eq!(missing("junit.xml", PYTEST, all), None);
    let others = named(&[
        "tests/test_a.py::test_fails",
        "test_skipped",
        "test_expected",
        "tests/test_a.py::test_teardown",
        "tests/test_a.py::Old::test_sub",
    ]);
    assert_eq!(
        missing("junit.xml", PYTEST, others).unwrap(),
        "5 of 5 tests that must pass did not: tests/test_a.py::test_fails (not passed), test_skipped (not passed), \
         test_expected (not passed), tests/test_a.py::test_teardown (not passed), \
         tests/test_a.py::Old::test_sub (not passed)"
    );
    // Neither the same test of another file, nor one of a class as one of the module.
    let absent = named(&["test_a.py::test_passes", "tests/test_a.py::test_in_a_class"]);
    assert_eq!(
        missing("junit.xml", PYTEST, absent).unwrap(),
        "2 of 2 tests that must pass did not: test_a.py::test_passes (not run), tests/test_a.py::test_in_a_class (not run)"
    );
}

#[test]
fn a_file_that_a_report_names_is_part_of_an_id() {
    let ids = named(&[
        "tests/test_a.py::test_passes",
        "tests/test_a.py::TestGroup::test_in_a_class",
    ]);
    assert_eq!(missing("junit.xml", XUNIT1, ids), None);
}

#[test]
fn tests_of_node_are_told_apart_by_their_suites() {
    assert_eq!(passed("junit.xml", NODE), 4);
    assert_eq!(
        missing(
            "junit.xml",
            NODE,
            named(&["outer::works", "inner::too", "test::too"])
        ),
        None
    );
    // Two tests have that name, and one of them failed.
    let works = missing(
        "junit.xml",
        NODE,
        named(&["works", "inner::works", "to do", "skipped"]),
    )
    .unwrap();
    assert!(works.starts_with("4 of 4 tests"), "{works}");
}

#[test]
fn tests_of_ctrf_are_read() {
    let report = r#"{"reportFormat": "CTRF", "results": {"tool": {"name": "jest"}, "summary": {"passed": 9}, "tests": [
        {"name": "adds", "status": "passed", "duration": 1, "suite": "math", "filePath": "src/math.test.js"},
        {"name": "divides", "status": "failed", "duration": 1, "suite": ["math", "hard"]},
        {"name": "roots", "status": "passed", "suite": ["math", "hard"]},
        {"name": "later", "status": "pending"}, {"name": "never", "status": "skipped", "suite": null},
        {"name": "odd", "status": "other", "extra": [[[]]]}]}}"#;
    assert_eq!(passed("ctrf.json", report), 2);
    let ids = named(&[
        "math::adds",
        "src/math.test.js::adds",
        "adds",
        "hard::roots",
    ]);
    assert_eq!(missing("ctrf.json", report, ids), None);
    let few = missing("ctrf.json", report, RequiredTests::Count(3)).unwrap();
    assert_eq!(few, "2 of the 3 tests that must pass did");
    let deep = format!("{{\"results\": {}", "[".repeat(1_000_000));
    let tests = tests(RequiredTests::Count(1), "ctrf.json");
    for wrong in ["", "{}", "[]", "{\"results\": {\"tests\": [{}]}}", &deep] {
        assert!(Tally::new(&tests).add(wrong.as_bytes()).is_err(), "{wrong}");
    }
}

#[test]
fn reports_of_several_commands_add_up() {
    let one = "<testsuite><testcase name='a'/></testsuite>";
    let other =
        "<testsuite><testcase name='b'/><testcase name='c'><skipped/></testcase></testsuite>";
    let tests = tests(named(&["a", "b"]), "junit.xml");
    let mut tally = Tally::new(&tests);
    tally.add(one.as_bytes()).unwrap();
    assert!(tally.missing().is_some());
    tally.add(other.as_bytes()).unwrap();
    assert_eq!(tally.missing(), None);
    tally
        .add(b"<testsuite><testcase name='a'><failure/></testcase></testsuite>")
        .unwrap();
    assert!(tally.missing().unwrap().contains("a (not passed)"));
}

#[test]
fn only_a_whole_report_counts() {
    let case = "<testcase name='a'/>";
    for content in [
        "",
        "passed",
        "{}",
        case,
        "<html><testcase name='a'/></html>",
        "<testsuite><testcase name='a'/>",
        "<testsuite><testcase name='a'/></testsuites>",
        "<testsuite><testcase name='a'><testcase name='b'/></testcase></testsuite>",
        "<testsuite><testcase name='&a;'/></testsuite>",
        "<testsuite><testcase name='a'/><!-- </testsuite>",
    ] {
        assert!(!refused(content).is_empty(), "{content}");
    }
}

#[test]
fn what_a_program_prints_is_no_result() {
    let printed = "<testsuite><testcase name='a'><system-out><![CDATA[<failure/><skipped/>]]></system-out></testcase>\
        <testcase name='b'><system-out>&lt;failure/></system-out></testcase>\
        <testcase name='c' status='notrun'/><testcase name='d' status='run'/></testsuite>";
    assert_eq!(passed("junit.xml", printed), 3);
}

#[test]
fn hostile_xml_costs_no_more_than_its_size() {
    // Entities are not looked up, so there is nothing that grows.
    let laughs: String = (1..10)
        .map(|level| {
            format!(
                "<!ENTITY l{level} \"{}\">",
                format!("&l{};", level - 1).repeat(10)
            )
        })
        .collect();
    let laughs = format!("<!DOCTYPE x [<!ENTITY l0 \"ha\">{laughs}]>");
    let quiet = format!("{laughs}<testsuite><testcase name='a'>&l9;</testcase></testsuite>");
    assert_eq!(passed("junit.xml", &quiet), 1);
    refused(&format!(
        "{laughs}<testsuite><testcase name='&l9;'/></testsuite>"
    ));
    let outside = "<!DOCTYPE x [<!ENTITY f SYSTEM \"file:///etc/passwd\">]><testsuite><testcase name='&f;'/></testsuite>";
    refused(outside);
    refused(&"<testsuite>".repeat(1_000_000));
    let attributes: String = (0..200_000)
        .map(|number| format!(" a{number}=''"))
        .collect();
    assert_eq!(
        passed(
            "junit.xml",
            &format!("<testsuite><testcase{attributes} name='a'/></testsuite>")
        ),
        1
    );
    let many = "<testcase name='a'/>".repeat(200_000);
    assert_eq!(
        passed("junit.xml", &format!("<testsuite>{many}</testsuite>")),
        200_000
    );
    let long = format!(
        "<testsuite><testcase name='{}'/></testsuite>",
        "a::.[".repeat(1_000_000)
    );
    assert_eq!(passed("junit.xml", &long), 1);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), id in ".{1,40}") {
        for report in ["junit.xml", "ctrf.json"] {
            let tests = tests(named(&[&id]), report);
            let mut tally = Tally::new(&tests);
            let _ = tally.add(&bytes);
            tally.missing();
        }
    }

    #[test]
    fn no_cut_or_changed_report_makes_it_panic(at in 0..PYTEST.len(), byte in any::<u8>(), which in 0..3_usize, is_cut in any::<bool>()) {
        let mut bytes = [PYTEST, XUNIT1, NODE][which].as_bytes().to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        if is_cut {
            bytes.truncate(at);
        }
        let tests = tests(named(&["tests/test_a.py::test_passes"]), "junit.xml");
        let _ = Tally::new(&tests).add(&bytes);
    }

    /// What a runner calls a test is found under that name.
    #[test]
    fn a_test_is_found_by_its_names(class in "[a-z.]{1,12}", name in "[a-z:.\\[\\]/]{1,12}") {
        let report = format!("<testsuite><testcase classname='{class}' name='{name}'/></testsuite>");
        for id in [format!("{class}::{name}"), format!("{class}.{name}"), name.clone()] {
            prop_assert_eq!(missing("junit.xml", &report, named(&[&id])), None);
        }
    }
}
