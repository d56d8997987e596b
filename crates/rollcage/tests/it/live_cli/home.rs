//! A home of a test's own with the agent installed, and the program in it.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::agents::shared_home;
use crate::support::open_engine;

pub(super) const KEY: &str = "sk-live-51c0ffee77aa";
const WAIT: Duration = Duration::from_secs(60);

pub(super) struct LiveHome {
    directory: tempfile::TempDir,
}

impl LiveHome {
    /// The agent is taken from the home that tests of agents share.
    pub(super) async fn new() -> Self {
        let engine = open_engine(shared_home()).await;
        let (agent, version) = rollcage_agents::find("opencode").unwrap();
        engine.ready(&*agent, version, &|_| {}).await.unwrap();
        engine.close().await;
        let home = LiveHome {
            directory: tempfile::tempdir().unwrap(),
        };
        std::fs::create_dir(home.path()).unwrap();
        for name in ["bundles", "layers"] {
            let installed = shared_home().join(name);
            std::os::unix::fs::symlink(installed, home.path().join(name)).unwrap();
        }
        home
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub(super) fn agent(&self, id: &str) -> PathBuf {
        self.path().join("live").join(id)
    }

    pub(super) fn write(&self, name: &str, text: &str) -> String {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollcage"));
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env("ROLLCAGE_HOME", self.path())
            .env("LIVE_TEST_KEY", KEY)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(super) fn spawn(&self, arguments: &[&str]) -> Child {
        self.command(arguments).spawn().unwrap()
    }

    pub(super) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command(arguments).output().unwrap())
    }

    pub(super) fn run_with(&self, arguments: &[&str], input: &str) -> Ran {
        let mut command = self.command(arguments);
        let mut process = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = process.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        Ran::of(process.wait_with_output().unwrap())
    }

    /// Runs a command that must succeed and print lines of JSON.
    #[track_caller]
    pub(super) fn json(&self, arguments: &[&str]) -> Vec<Value> {
        self.run(arguments).ok().lines()
    }

    /// Asks the supervisor itself.
    pub(super) async fn ask(&self, id: &str, request: (&str, &str, &str)) -> (u16, Vec<u8>) {
        let (method, path, body) = request;
        let client = rollcage_proxy::outbound::socket_client(&self.agent(id).join("socket"));
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let response = client
            .unwrap()
            .request(method, format!("http://localhost/v1/live/{id}{path}"))
            .header("content-type", "application/json")
            .body(body.to_owned())
            .send()
            .await
            .unwrap();
        let status = response.status().as_u16();
        (status, response.bytes().await.unwrap().to_vec())
    }

    pub(super) async fn ask_json(&self, id: &str, path: &str) -> Value {
        let (status, body) = self.ask(id, ("GET", path, "")).await;
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }

    /// The supervisors of this home, by their process ids.
    pub(super) fn supervisors(&self) -> Vec<i32> {
        let mut found = self.processes();
        found.retain(|(_, command)| command.contains("live\0supervise"));
        found.into_iter().map(|(pid, _)| pid).collect()
    }

    /// Every process that has this home in its environment, or in its command.
    pub(super) fn processes(&self) -> Vec<(i32, String)> {
        let home = self.path().display().to_string();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
                continue;
            };
            let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            let (command, environment) = (text(read("cmdline")), text(read("environ")));
            let is_dead = command.is_empty();
            if !is_dead && (command.contains(&home) || environment.contains(&home)) {
                found.push((pid, command));
            }
        }
        found
    }

    /// Nothing of this home runs, and no socket is left.
    pub(super) fn check_nothing_left(&self) {
        until("nothing runs", || self.processes().is_empty());
        for entry in std::fs::read_dir(self.path().join("live"))
            .unwrap()
            .flatten()
        {
            assert!(!entry.path().join("socket").exists(), "{:?}", entry.path());
        }
    }

    /// Everything of live agents is private, and no key is in it.
    pub(super) fn check_private(&self) {
        let mut waiting = vec![self.path().join("live")];
        while let Some(path) = waiting.pop() {
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            let mode = metadata.permissions().mode() & 0o777;
            if metadata.is_dir() {
                assert_eq!(mode, 0o700, "{}", path.display());
                let entries = std::fs::read_dir(&path).unwrap();
                waiting.extend(entries.flatten().map(|entry| entry.path()));
            } else {
                assert_eq!(mode, 0o600, "{}", path.display());
                check_no_key(&path);
            }
        }
        for (pid, command) in self.processes() {
            assert!(!command.contains(KEY), "{pid}");
        }
    }
}

fn check_no_key(path: &Path) {
    // A socket cannot be read.
    let content = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&content);
    assert!(!text.contains(KEY), "{}", path.display());
}

impl Drop for LiveHome {
    fn drop(&mut self) {
        for pid in self.supervisors() {
            let pid = nix::unistd::Pid::from_raw(pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
}

/// Waits for something that comes soon.
#[track_caller]
pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What a command left.
pub(super) struct Ran {
    pub(super) code: i32,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Ran {
    pub(super) fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    #[track_caller]
    pub(super) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}\n{}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    pub(super) fn lines(&self) -> Vec<Value> {
        let lines = self.stdout.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}
