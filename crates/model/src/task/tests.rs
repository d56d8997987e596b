use super::*;

#[track_caller]
fn check_error(text: &str, expect: &str) {
    let error = Task::from_toml(text).unwrap_err();
    let source = std::error::Error::source(&error)
        .map(ToString::to_string)
        .unwrap_or_default();
    let whole = format!("{error}: {source}");
    assert!(whole.contains(expect), "{whole}");
}

#[test]
fn a_small_task_gets_good_defaults() {
    let task =
        Task::from_toml("instruction = 'go'\nverify = ['true']\n[[solution]]\nrun = 'ls'").unwrap();
    assert_eq!(
        (task.agent_timeout_s(), task.command_timeout_s),
        (600.0, 120.0)
    );
    assert_eq!(task.solution, [Step::shell("ls")]);
    let again = Task::from_json(&serde_json::to_string(&task).unwrap()).unwrap();
    assert_eq!(again, task);
}

#[test]
fn wrong_input_is_named() {
    check_error("verify = ['true']", "`instruction` is missing");
    check_error("instruction = 'a'\nverfiy = []", "unknown field `verfiy`");
    check_error("instruction = 'a'\nsetup = 'ls'", "invalid type");
    check_error("instruction = 'a'\nartifacts = ['../x']", "is no pattern");
    check_error(
        "instruction = 'a'\nagent_timeout_s = 0",
        "`agent_timeout_s` must be",
    );
    check_error(
        "instruction = 'a'\n[files]\n'../x' = ''",
        "no `.` or `..` in it",
    );
    check_error("instruction = 'a'\nartifacts = ['../x']", "is no pattern");
    check_error(
        "instruction = 'a'\n[limits]\npids = 1",
        "limit `pids` must be at least 8",
    );
    check_error(
        "instruction = 'a'\n[[solution]]\nmcp = 'docs'\ntool = 'x'",
        "step 1 calls a tool of the MCP server `docs`, which",
    );
    check_error(
        "instruction = 'a'\n[mcp.a]\ncomand = []",
        "unknown field `comand`",
    );
    check_error(
        "instruction = 'a'\n[[solution]]\nthink = 'x'",
        "solution step 1 does nothing",
    );
}

#[test]
fn the_originals_names_are_taken_too() {
    let task = Task::from_toml(
        "task_id = 't'\ninstruction = 'go'\nsetup = ['a']\nsetup_shell = 'b'\ntest_script = 'c'\n\
         mode = 'black_box'\n[upload_files]\n'/tmp/x' = 'X'\n[agent_options]\neffort = 'low'",
    )
    .unwrap();
    assert_eq!((task.id.as_str(), task.mode), ("t", Mode::BlackBox));
    assert_eq!(task.setup, ["a", "b"]);
    assert_eq!(task.test_script(), Some("c"));
    assert_eq!(task.files["/tmp/x"], "X");
    assert_eq!(task.agent.effort.as_deref(), Some("low"));
    let again = Task::from_json(&serde_json::to_string(&task).unwrap()).unwrap();
    assert_eq!(again, task);
    check_error(
        "instruction = 'a'\ntest_script = 'x'\n[files]\n'/home/user/tests/test.sh' = 'y'",
        "not both",
    );
}

#[test]
fn paths_may_be_anywhere_but_in_the_verifiers_logs() {
    assert_eq!(path_inside("a/b").unwrap(), "/home/user/workdir/a/b");
    assert_eq!(
        path_inside("/home/user/task/x").unwrap(),
        "/home/user/task/x"
    );
    assert_eq!(path_inside("/tmp/x").unwrap(), "/tmp/x");
    assert!(path_inside("/home/user/logs/agent/x").is_ok());
    assert!(is_test("/home/user/tests/a/b") && !is_test("/home/user/tests-of-mine"));
    for path in [
        "",
        "/",
        "/tmp/",
        "a/../../b",
        "/home/user/logs/verifier",
        "/home/user/logs/verifier/reward.txt",
        "a//b",
        "./a",
    ] {
        assert!(path_inside(path).is_err(), "{path}");
    }
}
