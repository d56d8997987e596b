//! The program as a user meets it: exit codes, messages, output.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

struct Cli {
    home: tempfile::TempDir,
}

impl Cli {
    fn new() -> Self {
        Cli {
            home: tempfile::tempdir().unwrap(),
        }
    }

    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let output: Output = Command::new(env!("CARGO_BIN_EXE_rollcage"))
            .args(arguments)
            .current_dir(self.home.path())
            .env("ROLLCAGE_HOME", self.home.path().join("data"))
            .env_remove("VLLM_URL")
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap_or(-1),
            text(output.stdout),
            text(output.stderr),
        )
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.home.path().join(name), text).unwrap();
    }

    #[track_caller]
    fn check_wrong_use(&self, arguments: &[&str], expect: &str) {
        let (code, stdout, stderr) = self.run(arguments);
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        assert!(stderr.contains(expect), "{stderr}");
        assert!(
            !self.home.path().join("data/rollouts").exists(),
            "nothing was started"
        );
    }
}

#[test]
fn wrong_use_says_what_to_do_and_starts_nothing() {
    let cli = Cli::new();
    cli.write("typo.toml", "instruction = 'x'\nverfiy = ['true']\n");
    cli.write("types.json", r#"{"instruction": "x", "setup": "ls"}"#);
    cli.write(
        "upload.toml",
        "instruction = 'x'\n[upload]\na = 'missing.bin'\n",
    );
    cli.write("plain.toml", "instruction = 'x'\nverify = ['true']\n");
    cli.check_wrong_use(&["run"], "TASK");
    cli.check_wrong_use(&["run", "none.toml"], "read task none.toml: No such file");
    cli.check_wrong_use(&["run", "."], "is a directory");
    cli.check_wrong_use(&["run", "typo.toml"], "unknown field `verfiy`");
    cli.check_wrong_use(&["run", "types.json"], "invalid type: string");
    cli.check_wrong_use(&["run", "upload.toml"], "upload missing.bin: No such file");
    cli.check_wrong_use(&["run", "plain.toml"], "no `solution`");
    cli.check_wrong_use(
        &["run", "plain.toml", "--endpoint", "nope"],
        "unknown endpoint kind `nope`",
    );
    cli.check_wrong_use(&["run", "plain.toml", "--endpoint", "vllm"], "set VLLM_URL");
    cli.check_wrong_use(
        &["run", "plain.toml", "--base-url", "gpu:1", "--model", "m"],
        "not an http",
    );
    cli.check_wrong_use(
        &[
            "run",
            "plain.toml",
            "--base-url",
            "http://h/v1",
            "--model",
            "m",
            "--api-key-env",
            "NO_SUCH",
        ],
        "NO_SUCH is not set",
    );
    cli.check_wrong_use(
        &["run", "plain.toml", "--agent", "hal"],
        "unknown agent `hal`",
    );
    cli.check_wrong_use(&["run", "plain.toml", "-n", "0"], "0 is not in");
    cli.check_wrong_use(
        &[
            "run",
            "plain.toml",
            "--timeout",
            "0",
            "--endpoint",
            "scripted",
        ],
        "agent_timeout_s",
    );
    cli.check_wrong_use(&["agent", "install", "hal"], "unknown agent");
    cli.check_wrong_use(&["agent", "remove", "opencode"], "opencode@VERSION");
    cli.check_wrong_use(&["agent", "lock", "hal"], "unknown agent");
    cli.check_wrong_use(&["agent", "lock", "nop"], "nothing to pin");
    cli.check_wrong_use(
        &["agent", "lock", "pi@1.0.0", "--version", "2.0.0"],
        "give one of them",
    );
}

/// Answers every request with this until the process ends.
fn answering(body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            lines.by_ref().map_while(Result::ok).find(String::is_empty);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}", body.len());
            let _ = write!(stream, "{head}\r\nconnection: close\r\n\r\n{body}");
        }
    });
    format!("http://{address}/")
}

#[test]
fn an_agent_of_the_users_own_is_pinned() {
    let cli = Cli::new();
    let registry = answering(
        r#"{"version": "1.0.0", "dist": {"tarball": "own/-/own-1.0.0.tgz", "integrity": "sha512-AAAA"}}"#,
    );
    cli.write(
        ".npmrc",
        &format!("registry={registry}\nnoproxy=127.0.0.1\n"),
    );
    cli.write(
        "own.toml",
        "name = 'own'\nversion = '1.0.0'\ncommand = ['{program}']\n[bundle]\nfrom = 'npm'\npackage = 'own'\n\
         program = 'own'\nlock = 'own.lock'\n",
    );
    // The file that the manifest names need not be there yet.
    let (code, stdout, stderr) = cli.run(&["agent", "lock", "own.toml", "--output", "own.lock"]);
    assert_eq!(
        (code, stdout.as_str()),
        (0, "own 1.0.0 is pinned in own.lock (packages: 1)\n"),
        "{stderr}"
    );
    let (code, stdout, _) = cli.run(&["agent", "lock", "own.toml"]);
    let written = std::fs::read_to_string(cli.home.path().join("own.lock")).unwrap();
    assert_eq!((code, &stdout), (0, &written));
    assert!(stdout.contains("\nname = \"own\"\n"), "{stdout}");
}

#[test]
fn an_empty_home_lists_nothing_and_finds_nothing() {
    let cli = Cli::new();
    let (code, stdout, _) = cli.run(&["list"]);
    assert_eq!(
        (code, stdout.as_str()),
        (0, "No rollouts yet. Start one with: rollcage run TASK\n")
    );
    let (code, _, stderr) = cli.run(&["show", "0199"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("no rollout `0199`"), "{stderr}");
    let (code, stdout, _) = cli.run(&["agent", "list"]);
    assert_eq!(code, 0);
    assert!(
        stdout.contains("rollcage agent install opencode"),
        "{stdout}"
    );
    assert!(stdout.contains(", also claude-code)"), "{stdout}");
}

#[test]
fn every_command_has_help_that_teaches() {
    let cli = Cli::new();
    for command in [
        "run", "show", "list", "agent", "endpoint", "doctor", "scripted", "bench",
    ] {
        let (code, stdout, _) = cli.run(&[command, "--help"]);
        assert_eq!(code, 0);
        assert!(stdout.contains("Usage: rollcage"), "{stdout}");
    }
    assert!(cli.run(&["run", "--help"]).1.contains("Exit status"));
}

#[test]
fn a_home_that_cannot_be_used_is_our_failure_with_its_path() {
    let cli = Cli::new();
    cli.write("data", "not a directory");
    let (code, _, stderr) = cli.run(&["list"]);
    assert_eq!(code, 3);
    assert!(
        stderr.contains(&Path::new("data").display().to_string()),
        "{stderr}"
    );
}

#[test]
fn streamed_calls_are_measured_by_turns_with_another_build() {
    let cli = Cli::new();
    let bench = ["bench", "capture", "--rounds", "1", "--json"];
    let with = |more: &[&str]| cli.run(&[&bench, more].concat());
    let ourselves = env!("CARGO_BIN_EXE_rollcage");
    let (code, stdout, stderr) = with(&["--workload", "streamed", "--against", ourselves]);
    assert_eq!(code, 0, "{stderr}");
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report["calls_per_round"], 64);
    assert!(report["cpu_ms_per_call"]["median"].as_f64() > Some(0.0));
    assert_eq!(report["against"][0]["program"], ourselves);
    assert!(report["against"][0]["ratio"].as_f64() > Some(0.0));

    let (code, _, stderr) = with(&["--workload", "whole", "--against", ourselves]);
    assert_eq!(code, 2, "{stderr}");
    let (code, _, stderr) = with(&["--workload", "streamed", "--against", "/bin/true"]);
    assert_eq!(code, 3, "{stderr}");
    assert!(
        stderr.contains("does not say where its proxy listens"),
        "{stderr}"
    );
}
