//! Tasks that install something in setup, from the registries that this machine uses.

use std::path::Path;
use std::process::Command;

use rollcage_model::record::RolloutResult;

use crate::support::Home;

/// Runs a task and gives its result. Installing takes a while on a busy machine, and the commands have their own limits.
fn run(task: &Path, agent: &str) -> RolloutResult {
    let home = Home::new();
    let output = Command::new(env!("CARGO_BIN_EXE_rollcage"))
        .env("ROLLCAGE_HOME", home.path())
        .args(["run", "--json", "--agent", agent])
        .arg(task)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next().unwrap_or_else(|| {
        panic!("{}", String::from_utf8_lossy(&output.stderr));
    });
    serde_json::from_str(line).unwrap()
}

fn written(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

#[track_caller]
fn check(result: &RolloutResult) {
    let failed = result.setup_results.iter().chain(&result.verify_results);
    let failed: Vec<_> = failed.filter(|done| done.exit_code != 0).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(result.reward, Some(1.0), "{:?}", result.error);
}

#[test]
fn pip_installs_in_setup_what_agent_and_verifier_import() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let result = run(&examples.join("csv-report.toml"), "oracle");
    check(&result);
    let setup = result.network["setup"];
    assert!(setup.bytes_in > 1 << 20, "{setup:?}");
    assert_eq!(setup.refused, 0, "{setup:?}");
    assert!(
        !result.network.contains_key("agent"),
        "{:?}",
        result.network
    );
}

/// A package that is installed, and one that is installed in place; both have a command.
const PACKAGES: &str = r#"
instruction = "Nothing to do."
setup = [
    "for name in mine placed; do mkdir -p $name/src/$name; printf 'def main():\n    print(\"hello\")\n' > $name/src/$name/__init__.py; printf '[project]\nname = \"%s\"\nversion = \"1\"\n[project.scripts]\nrun-%s = \"%s:main\"\n[build-system]\nrequires = [\"setuptools\"]\nbuild-backend = \"setuptools.build_meta\"\n' $name $name $name > $name/pyproject.toml; done",
    "pip install --quiet ./mine",
    "cd placed && pip install --quiet -e .",
    "run-mine && run-placed",
]
command_timeout_s = 300
verify = [
    "run-mine && run-placed",
    "python -c 'import mine; assert mine.__file__.startswith(\"/opt/setup/\"), mine.__file__'",
    "python -c 'import idna; assert idna.__file__.startswith(\"/home/user/.local/\"), idna.__file__'",
]

[network]
agent = ["@pip"]

[[solution]]
run = "run-mine && run-placed && pip install --quiet --ignore-installed idna && mkdir -p ~/.local/lib/$(basename $(readlink -f /usr/bin/python3))/site-packages/mine && touch ~/.local/lib/$(basename $(readlink -f /usr/bin/python3))/site-packages/mine/__init__.py; echo exit > ~/.local/bin/run-mine; chmod +x ~/.local/bin/run-mine; ! touch /opt/setup/bin/run-mine"
"#;

#[test]
fn packages_of_setup_come_before_those_of_the_agent() {
    let task = written(PACKAGES);
    let result = run(task.path(), "oracle");
    check(&result);
    assert_eq!(result.network["agent"].refused, 1, "the self-check alone");
}

#[test]
fn root_installs_with_apt_where_there_is_one() {
    let is_root = nix::unistd::geteuid().is_root();
    if !Path::new("/var/lib/dpkg/status").exists() || !Path::new("/usr/bin/apt-get").exists() {
        return;
    }
    let task = written(
        r#"
        instruction = "Nothing to do."
        setup_user = "root"
        setup = ["apt-get -qq update", "apt-get -qq install --yes --no-install-recommends sl"]
        command_timeout_s = 300
        verify = ["test -x /usr/games/sl", "! touch /usr/games/other", "test $(id -u) = 1000"]
        solution = [{ run = "! touch /usr/games/sl" }]
        "#,
    );
    let result = run(task.path(), "oracle");
    if is_root {
        check(&result);
    } else {
        let error = result.error.unwrap_or_default();
        assert!(error.contains("run Rollcage as root"), "{error}");
    }
}

#[test]
fn what_a_phase_may_not_reach_is_refused_and_told() {
    let task = written(
        r#"
        instruction = "Nothing to do."
        setup = ["! curl --silent --max-time 5 https://not-listed.example"]
        verify = ["! curl --silent --max-time 5 http://10.0.0.1", "! getent hosts pypi.org"]
        solution = [{ run = "! curl --silent --max-time 5 https://pypi.org" }]
        [network]
        setup = ["@pip"]
        "#,
    );
    let result = run(task.path(), "oracle");
    check(&result);
    let told = result
        .findings
        .iter()
        .find(|finding| finding.code == rollcage_model::finding::Code::NetworkRefused);
    let told = &told.expect("a finding").text;
    assert!(told.contains("not-listed.example"), "{told}");
    let log = Path::new(&result.record).join("network.jsonl");
    assert!(!log.exists(), "the home is gone with the test");
}
