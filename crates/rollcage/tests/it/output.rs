//! Output that nobody reads, that is full or that is gone, and signals: nothing panics, nothing is lost, nothing is
//! left.

use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rollcage_engine::store::Store;
use rollcage_model::ending::Ended;
use rollcage_testkit::leak::left_by;
use rollcage_testkit::upstream::{Reply, Upstream};

/// A home of the test's own, with a task that is done at once and one that is never done.
struct TestHome {
    directory: tempfile::TempDir,
}

impl TestHome {
    fn new() -> Self {
        let test_home = TestHome {
            directory: tempfile::tempdir().unwrap(),
        };
        let task = |run: &str| {
            format!("instruction = 'x'\nverify = ['true']\n[[solution]]\nrun = '{run}'\n")
        };
        test_home.write("quick.toml", &task("true"));
        test_home.write("slow.toml", &task("sleep 3"));
        test_home.write("endless.toml", &task("sleep 3600"));
        test_home
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.directory.path().join(name), text).unwrap();
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        self.started_by(env!("CARGO_BIN_EXE_rollcage"), arguments)
    }

    fn started_by(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env("ROLLCAGE_HOME", self.home())
            .env("TERM", "xterm")
            .env_remove("VLLM_URL")
            .stdin(Stdio::null());
        command
    }

    /// Rollouts of a task by the oracle, which needs no model and nothing installed.
    fn rollouts(&self, task: &str, more: &[&str]) -> Command {
        self.command(&[&["run", task, "--agent", "oracle"], more].concat())
    }

    /// How the rollouts that were ever started ended.
    fn ends(&self) -> Vec<Option<Ended>> {
        let summaries = Store::open(&self.home()).unwrap().list(100).unwrap();
        summaries
            .into_iter()
            .map(|summary| summary.row.ended)
            .collect()
    }

    /// Waits for a program's end, which is also the end of all who could write to its standard error.
    #[track_caller]
    fn end(&self, mut child: Child) -> (i32, String) {
        let id = child.id();
        let mut said = String::new();
        if let Some(mut stderr) = child.stderr.take() {
            stderr.read_to_string(&mut said).unwrap();
        }
        let code = child.wait().unwrap().code().unwrap_or(-1);
        assert!(!said.contains("panicked"), "{said}");
        assert_eq!(left_by(id, &self.home()), Default::default(), "{said}");
        (code, said)
    }
}

/// The writing end of a pipe that nobody reads.
fn closed() -> PipeWriter {
    std::io::pipe().unwrap().1
}

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

/// Reads lines until one has `words` in it, and gives back the reader with what came so far.
fn read_until(stream: impl Read, words: &str) -> String {
    let mut seen = String::new();
    let mut lines = BufReader::new(stream).lines();
    while !seen.contains(words) {
        let line = lines.next().unwrap_or_else(|| panic!("{words}: {seen}"));
        seen = format!("{seen}{}\n", line.unwrap());
    }
    seen
}

#[test]
fn messages_on_stderr_may_be_lost_but_results_are_not() {
    for (name, stderr) in [
        ("closed", Stdio::from(closed())),
        ("full", Stdio::from(full())),
    ] {
        let test_home = TestHome::new();
        let mut command = test_home.rollouts("quick.toml", &["-n", "2", "--json", "-vv"]);
        let output = command.stderr(stderr).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{name}");
        assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 2);
        assert_eq!(test_home.ends(), [Some(Ended::Completed); 2], "{name}");
    }
}

#[test]
fn a_result_is_printed_before_its_end_is_shown() {
    let test_home = TestHome::new();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut command = test_home.rollouts("quick.toml", &["-n", "6", "--json"]);
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = command.spawn().unwrap();
    drop(command);
    let (mut results, mut ends) = (0, 0);
    for line in BufReader::new(reader).lines() {
        let line = line.unwrap();
        results += usize::from(line.starts_with('{'));
        ends += usize::from(line.contains("completed, reward"));
        assert!(ends <= results, "{line}");
    }
    assert_eq!((results, ends), (6, 6));
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_run_whose_reader_goes_ends_with_records() {
    let test_home = TestHome::new();
    for json in [&[][..], &["--json"][..]] {
        let mut command = test_home.rollouts("endless.toml", json);
        command.args(["-n", "2", "-j", "2"]);
        let (reader, writer) = std::io::pipe().unwrap();
        let (stderr, stderr_end) = std::io::pipe().unwrap();
        let child = command.stdout(writer).stderr(stderr_end).spawn().unwrap();
        drop(command);
        let mut said = BufReader::new(stderr);
        read_until(&mut said, "agent: started");
        drop(reader);
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert!(
            !rest.contains("panicked") && !rest.contains("error"),
            "{rest}"
        );
        assert_eq!(test_home.end(child).0, 1);
    }
    assert_eq!(test_home.ends(), [Some(Ended::Cancelled); 4]);
}

#[test]
fn a_run_into_head_ends_with_records() {
    let test_home = TestHome::new();
    let mut command = test_home.rollouts("endless.toml", &["-n", "2", "-j", "2"]);
    let (reader, writer) = std::io::pipe().unwrap();
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    let child = command.spawn().unwrap();
    drop(command);
    read_until(reader, "sandbox: starting");
    assert_eq!(test_home.end(child).0, 1);
    assert_eq!(test_home.ends(), [Some(Ended::Cancelled); 2]);
}

#[test]
fn results_that_cannot_be_printed_are_recorded() {
    let test_home = TestHome::new();
    for more in [&[][..], &["--json"]] {
        let mut command = test_home.rollouts("quick.toml", more);
        command.stdout(full()).stderr(Stdio::piped());
        let (code, said) = test_home.end(command.spawn().unwrap());
        assert_eq!(code, 3, "{said}");
        assert!(
            said.contains("No space left") && said.contains("rollcage list"),
            "{said}"
        );
    }
    assert_eq!(test_home.ends(), [Some(Ended::Completed); 2]);
}

/// Runs a program on a terminal of its own, which is closed when `words` have been seen there, and prints how it ended.
/// With a file, that is its standard output, and SIGHUP is ignored, as `nohup` does it.
const ON_TERMINAL: &str = r#"
import os, pty, signal, sys
words, file, program = sys.argv[1], sys.argv[2], sys.argv[3:]
child, terminal = pty.fork()
if child == 0:
    if file:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), 1)
    os.execv(program[0], program)
seen = b""
while words.encode() not in seen:
    seen += os.read(terminal, 4096)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"#;

fn on_terminal(test_home: &TestHome, file: &str, arguments: &[&str]) -> String {
    let driver = ["-c", ON_TERMINAL, "agent: started", file];
    let program = [env!("CARGO_BIN_EXE_rollcage"), "run"];
    let arguments = [&driver[..], &program, arguments, &["--agent", "oracle"]].concat();
    let output = test_home
        .started_by("python3", &arguments)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_run_whose_terminal_closes_ends_with_records() {
    let test_home = TestHome::new();
    let ended = on_terminal(&test_home, "", &["endless.toml", "-n", "3", "-j", "3"]);
    assert_eq!(ended, "1");
    assert_eq!(test_home.ends(), [Some(Ended::Cancelled); 3]);
    assert_eq!(left_by(u32::MAX, &test_home.home()), Default::default());
}

#[test]
fn a_run_that_ignores_hangups_outlives_its_terminal() {
    let test_home = TestHome::new();
    let arguments = ["slow.toml", "-n", "3", "-j", "2", "--json"];
    assert_eq!(on_terminal(&test_home, "results.jsonl", &arguments), "0");
    let results = std::fs::read_to_string(test_home.directory.path().join("results.jsonl"));
    assert_eq!(results.unwrap().lines().count(), 3);
    assert_eq!(test_home.ends(), [Some(Ended::Completed); 3]);
}

/// Starts endless rollouts and waits until one has come to its agent.
fn start_endless(test_home: &TestHome) -> (Child, BufReader<PipeReader>) {
    let mut command = test_home.rollouts("endless.toml", &["-n", "2", "-j", "2", "--json"]);
    let (stderr, stderr_end) = std::io::pipe().unwrap();
    command.stdout(Stdio::piped()).stderr(stderr_end);
    let child = command.spawn().unwrap();
    drop(command);
    let mut said = BufReader::new(stderr);
    read_until(&mut said, "agent: started");
    (child, said)
}

#[test]
fn hangups_and_signals_that_come_in_pairs_end_a_run_with_results() {
    // A closing terminal is told of by the shell and by the kernel; `timeout` signals a process and its group.
    for signals in [
        &[Signal::SIGHUP][..],
        &[Signal::SIGHUP, Signal::SIGHUP],
        &[Signal::SIGTERM, Signal::SIGTERM],
        &[Signal::SIGTERM, Signal::SIGHUP],
    ] {
        let test_home = TestHome::new();
        let (mut child, mut said) = start_endless(&test_home);
        for signal in signals {
            send(&child, *signal);
            // Long enough to be told apart from one signal, where the machine is not very busy.
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut results = String::new();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_to_string(&mut results).unwrap();
        said.read_to_string(&mut String::new()).unwrap();
        assert_eq!(test_home.end(child).0, 1, "{signals:?}");
        assert_eq!(results.lines().count(), 2, "{signals:?}");
        assert_eq!(test_home.ends(), [Some(Ended::Cancelled); 2], "{signals:?}");
    }
}

/// An agent that asks a model and needs no installation.
const AGENT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../manifests/shell-loop.toml"
);

/// The id of a rollout with model calls in it.
fn run_with_model(test_home: &TestHome) -> String {
    let mut command = test_home.command(&["run", "quick.toml", "--agent", AGENT, "--json"]);
    let output = command.output().unwrap();
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    result["rollout_id"].as_str().unwrap().to_owned()
}

#[test]
fn a_slow_reader_gets_everything() {
    let test_home = TestHome::new();
    // Whoever started us may have made the pipe one that does not block, and it is full.
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let mut filled = 0;
    while let Ok(written) = writer.write(&[b' '; 4096]) {
        filled += written;
    }
    let mut command = test_home.command(&["agent", "list", "--json"]);
    let child = command.stdout(writer).stderr(Stdio::piped()).spawn();
    drop(command);
    // Time to meet the full pipe; one that comes later meets an empty one, which is no harm.
    std::thread::sleep(Duration::from_millis(500));
    let mut read = Vec::new();
    reader.read_to_end(&mut read).unwrap();
    assert_eq!(test_home.end(child.unwrap()), (0, String::new()));
    let expected = test_home.command(&["agent", "list", "--json"]).output();
    assert_eq!(&read[filled..], expected.unwrap().stdout);
}

#[test]
fn every_command_ends_quietly_when_nobody_reads() {
    let test_home = TestHome::new();
    let id = &run_with_model(&test_home);
    for arguments in [
        &["list"][..],
        &["list", "--json"],
        &["show", id],
        &["show", id, "--json"],
        &["show", id, "--transcript"],
        &["export", id],
        &["export", id, "--format", "parquet"],
        &["agent", "list"],
        &["agent", "doctor", AGENT],
        &["endpoint", "list", "--json"],
        &["doctor"],
        &["--help"],
        &["run", "--help"],
        &["--version"],
    ] {
        let mut command = test_home.command(arguments);
        let child = command.stdout(closed()).stderr(Stdio::piped()).spawn();
        let (code, said) = test_home.end(child.unwrap());
        assert_eq!((code, said.as_str()), (0, ""), "{arguments:?}");
        let child = command.stdout(full()).stderr(Stdio::piped()).spawn();
        let (code, said) = test_home.end(child.unwrap());
        assert_eq!(code, 3, "{arguments:?}: {said}");
        assert!(said.contains("No space left"), "{arguments:?}: {said}");
    }
}

#[test]
fn an_error_that_cannot_be_printed_keeps_its_status() {
    let test_home = TestHome::new();
    for stderr in [Stdio::from(closed()), Stdio::from(full())] {
        let mut command = test_home.command(&["show", "none"]);
        let status = command.stderr(stderr).status().unwrap();
        assert_eq!(status.code(), Some(2));
    }
    let status = test_home.command(&["nonsense"]).stderr(full()).status();
    assert_eq!(status.unwrap().code(), Some(2));
}

/// A port that is free now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn servers_whose_output_has_no_reader_stay_up() {
    let test_home = TestHome::new();
    let upstream = Upstream::start(|_, _| crate::support::says("ok")).unwrap();
    let url = upstream.base_url();
    for arguments in [
        &["serve"][..],
        &["scripted", "--script", "quick.toml"],
        &["proxy", "--upstream", url, "--model", "m"],
    ] {
        for outputs in [
            [closed().into(), closed().into()],
            [full(), full()].map(Stdio::from),
        ] {
            let port = free_port();
            let [stdout, stderr]: [Stdio; 2] = outputs;
            let mut command = test_home.command(arguments);
            command.args(["--port", &port.to_string()]);
            let mut child = command.stdout(stdout).stderr(stderr).spawn().unwrap();
            while TcpStream::connect(("127.0.0.1", port)).is_err() {
                assert_eq!(child.try_wait().unwrap(), None, "{arguments:?}");
                std::thread::sleep(Duration::from_millis(10));
            }
            // Also a hangup ends them as it should, with something to say and nobody to hear it.
            send(&child, Signal::SIGHUP);
            assert_eq!(test_home.end(child).0, 0, "{arguments:?}");
        }
    }
}

#[test]
fn a_port_in_use_is_named_and_leaves_nothing() {
    let test_home = TestHome::new();
    let upstream = Upstream::start(|_, _| crate::support::says("ok")).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for arguments in [
        &["serve"][..],
        &["scripted", "--script", "quick.toml"],
        &["proxy", "--upstream", upstream.base_url(), "--model", "m"],
    ] {
        let mut command = test_home.command(arguments);
        command.args(["--port", &port]).stderr(Stdio::piped());
        let (code, said) = test_home.end(command.spawn().unwrap());
        assert_eq!(code, 2, "{said}");
        assert!(
            said.contains(&port) && said.contains("--port 0") || said.contains("0 takes"),
            "{said}"
        );
    }
}

#[test]
fn a_key_that_is_refused_is_the_users_to_change() {
    let test_home = TestHome::new();
    let upstream = Upstream::start(|_, _| Reply::Whole {
        status: 401,
        content_type: "application/json",
        body: r#"{"error": {"message": "wrong key"}}"#.to_owned(),
    })
    .unwrap();
    let url = upstream.base_url();
    for arguments in [
        &["endpoint", "probe", "--base-url", url, "--api-key-env", "K"][..],
        &[
            "proxy",
            "--port",
            "0",
            "--upstream",
            url,
            "--upstream-key-env",
            "K",
        ],
    ] {
        let mut command = test_home.command(arguments);
        command.args(["--model", "m"]).env("K", "sk-wrong");
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        let (code, said) = test_home.end(child);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("refuses the API key"), "{said}");
    }
}

#[test]
fn an_interrupt_before_the_first_rollout_leaves_nothing() {
    let test_home = TestHome::new();
    // A registry that takes its time.
    let registry = Upstream::start(|_, _| Reply::Hang).unwrap();
    for arguments in [
        &["run", "quick.toml", "--agent", "opencode"][..],
        &["agent", "install", "opencode"],
        &["agent", "doctor", "opencode"],
        &["bench", "rollout"],
        &["bench", "live", "--agents", "1", "--turns", "1"],
    ] {
        let mut command = test_home.command(arguments);
        command.env("npm_config_registry", registry.base_url());
        let (stderr, stderr_end) = std::io::pipe().unwrap();
        command.stdout(Stdio::null()).stderr(stderr_end);
        let child = command.spawn().unwrap();
        drop(command);
        let asked = registry.requests().len();
        while registry.requests().len() == asked {
            std::thread::sleep(Duration::from_millis(10));
        }
        send(&child, Signal::SIGINT);
        let mut said = String::new();
        BufReader::new(stderr).read_to_string(&mut said).unwrap();
        assert!(said.contains("interrupted"), "{arguments:?}: {said}");
        assert_eq!(test_home.end(child).0, 1, "{arguments:?}: {said}");
    }
    assert_eq!(test_home.ends(), []);
}

/// Whether a process runs with exactly these arguments.
fn is_running(arguments: &[&str]) -> bool {
    let wanted: String = arguments.iter().map(|word| format!("{word}\0")).collect();
    let mut processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes.any(|process| {
        std::fs::read(process.path().join("cmdline")).is_ok_and(|line| line == wanted.as_bytes())
    })
}

#[test]
fn an_interrupt_while_an_agent_is_made_ready_leaves_nothing() {
    let test_home = TestHome::new();
    // Its first start never ends.
    let seconds = format!("{}.5", 100_000 + std::process::id());
    let agent = format!(
        "name = 'late'\ntitle = 'late'\ncommand = ['true']\nfiles = {{ '.late' = 'a' }}\n[warm_up]\ncommand = ['/bin/sleep', '{seconds}']\nkeep = []\n"
    );
    test_home.write("late.toml", &agent);
    let mut command = test_home.command(&["run", "quick.toml", "--agent", "late.toml"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    while !is_running(&["/bin/sleep", &seconds]) {
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_ne!(left_by(child.id(), &test_home.home()), Default::default());
    send(&child, Signal::SIGTERM);
    let (code, said) = test_home.end(child);
    assert_eq!(code, 1, "{said}");
    assert!(!is_running(&["/bin/sleep", &seconds]));
    assert_eq!(test_home.ends(), []);
}
