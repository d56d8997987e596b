//! Model servers that are found or started: Ollama, by a double of its API, and commands from the settings.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rollcage_endpoints::choice::{EndpointChoice, EndpointRequest};
use rollcage_endpoints::provider::Providers;
use rollcage_engine::intake::ResolvedRollout;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::{ASK, Home, run_many, task};

/// For what happens soon, on a machine that may be busy.
const SOON: Duration = Duration::from_secs(60);

/// A directory with the double as the program `ollama`, its log and its models.
struct Double {
    directory: tempfile::TempDir,
}

/// A double that runs before anybody asks for it.
struct RunningDouble {
    child: Child,
    host: String,
}

impl Drop for RunningDouble {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Double {
    fn new(models: &Value) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("bin/ollama");
        std::fs::create_dir(directory.path().join("bin")).unwrap();
        std::fs::write(&program, include_str!("ollama.py")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(directory.path().join("models.json"), models.to_string()).unwrap();
        Double { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn program(&self) -> PathBuf {
        self.path().join("bin/ollama")
    }

    fn search_path(&self) -> String {
        let rest = std::env::var("PATH").unwrap();
        format!("{}:{rest}", self.path().join("bin").display())
    }

    /// What it was started with and asked, so far.
    fn log(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path().join("log")).unwrap_or_default();
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    fn asked(&self, path: &str) -> Vec<Value> {
        let of = |entry: &Value| (entry["path"] == path).then(|| entry["body"].clone());
        self.log().iter().filter_map(of).collect()
    }

    fn pids(&self) -> Vec<u64> {
        let log = self.log();
        log.iter()
            .filter_map(|entry| entry["started"].as_u64())
            .collect()
    }

    fn run_already(&self) -> RunningDouble {
        let child = Command::new(self.program())
            .arg("serve")
            .env("DOUBLE_DIR", self.path())
            .env("OLLAMA_HOST", "127.0.0.1:0")
            .spawn()
            .unwrap();
        let port = wait_for(|| {
            self.log()
                .iter()
                .find_map(|entry| entry["listening"].as_u64())
        });
        RunningDouble {
            child,
            host: format!("127.0.0.1:{port}"),
        }
    }

    /// The program, with an Ollama said to be at `host`.
    fn rollcage(&self, host: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollcage"));
        command
            .args(arguments)
            .env("ROLLCAGE_HOME", self.path().join("home"))
            .env("PATH", self.search_path())
            .env("DOUBLE_DIR", self.path())
            .env("OLLAMA_HOST", host)
            .env_remove("OLLAMA_BASE_URL")
            .env_remove("OLLAMA_KEEP_ALIVE")
            .env_remove("OLLAMA_CONTEXT_LENGTH");
        command
    }

    fn probe(&self, host: &str, model: &str, extra: &[&str]) -> CommandOutput {
        let name = format!("ollama/{model}");
        let arguments = [&["endpoint", "probe", name.as_str()], extra].concat();
        CommandOutput::of(&mut self.rollcage(host, &arguments))
    }
}

#[derive(Debug)]
struct CommandOutput {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl CommandOutput {
    fn of(command: &mut Command) -> Self {
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        CommandOutput {
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }

    #[track_caller]
    fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        serde_json::from_str(&self.stdout).unwrap()
    }

    #[track_caller]
    fn check_failure(&self, expect: &[&str]) {
        assert_eq!(self.code, Some(3), "{self:?}");
        for text in expect {
            assert!(self.stderr.contains(text), "{self:?}");
        }
    }
}

#[track_caller]
fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "it did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Nobody listens there.
fn closed_host() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

fn is_running(pid: u64) -> bool {
    // A zombie has no command line.
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|text| !text.is_empty())
}

#[test]
fn a_running_ollama_is_used_as_it_is_with_a_context_that_is_large_enough() {
    let double = Double::new(&json!({"tiny:latest": {"num_ctx": null}}));
    let found = double.run_already();
    let probed = double.probe(&found.host, "tiny", &["--json"]).json();
    assert_eq!(probed["base_url"], format!("http://{}/v1", found.host));
    assert_eq!(probed["model"], "rollcage/tiny:latest-ctx32768");
    assert_eq!(
        (&probed["context_tokens"], &probed["capture_level"]),
        (&json!(32768), &json!("text"))
    );
    let created = double.asked("/api/create");
    assert_eq!(created.len(), 1);
    assert_eq!(
        (&created[0]["from"], &created[0]["parameters"]),
        (&json!("tiny"), &json!({"num_ctx": 32768}))
    );
    let loaded = double.asked("/api/generate");
    assert_eq!(
        (&loaded[0]["model"], &loaded[0]["keep_alive"]),
        (&json!("rollcage/tiny:latest-ctx32768"), &Value::Null),
        "how long it stays loaded is the server's own setting"
    );
    assert!(double.asked("/api/pull").is_empty());
    assert_eq!(double.pids().len(), 1, "nothing was started");
    assert!(is_running(double.pids()[0]), "and nothing was stopped");
}

#[test]
fn how_long_a_model_stays_loaded_can_be_set() {
    for (set, sent) in [("2h", json!("2h")), ("-1", json!(-1))] {
        let double = Double::new(&json!({"tiny:latest": {"num_ctx": null}}));
        let found = double.run_already();
        let arguments = ["endpoint", "probe", "ollama/tiny", "--json"];
        let mut command = double.rollcage(&found.host, &arguments);
        CommandOutput::of(command.env("OLLAMA_KEEP_ALIVE", set)).json();
        assert_eq!(double.asked("/api/generate")[0]["keep_alive"], sent);
    }
}

#[test]
fn a_context_is_not_larger_than_the_model_nor_made_when_it_is_there() {
    let models = json!({"small:latest": {"num_ctx": null}, "wide:latest": {"num_ctx": 65536}});
    let double = Double::new(&models);
    let found = double.run_already();
    let probed = double.probe(&found.host, "small", &["--json"]).json();
    assert_eq!(probed["model"], "rollcage/small:latest-ctx2048");
    let probed = double.probe(&found.host, "wide", &["--json"]).json();
    assert_eq!(
        (&probed["model"], &probed["context_tokens"]),
        (&json!("wide"), &json!(65536))
    );
}

#[test]
fn ollama_is_started_asked_and_stopped() {
    let double = Double::new(&json!({"tiny:latest": {"num_ctx": null}}));
    let host = closed_host();
    let mut command = double.rollcage(&host, &["endpoint", "probe", "ollama/tiny"]);
    let ran = CommandOutput::of(command.env("CUDA_VISIBLE_DEVICES", "1"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("text alone"), "{ran:?}");
    assert!(ran.stderr.contains("starting the server ollama"), "{ran:?}");
    let started = double.log().remove(0);
    let env = &started["env"];
    assert_ne!(env["OLLAMA_HOST"], host, "it has a port of its own");
    assert_eq!(
        (&env["OLLAMA_CONTEXT_LENGTH"], &env["CUDA_VISIBLE_DEVICES"]),
        (&json!("32768"), &json!("1"))
    );
    assert!(
        double.asked("/api/create").is_empty(),
        "the server has the context"
    );
    assert!(!is_running(double.pids()[0]));
    let left = std::fs::read_dir(double.path().join("home/servers")).unwrap();
    assert_eq!(left.count(), 0, "no log is left");
}

#[test]
fn a_missing_model_is_downloaded_and_goes_on_after_a_break() {
    let double = Double::new(&json!({}));
    let found = double.run_already();
    let ran = double.probe(&found.host, "cut:1b", &[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for text in ["downloading the model cut:1b", "verifying sha256 digest"] {
        assert!(ran.stderr.contains(text), "{ran:?}");
    }
    assert_eq!(double.asked("/api/pull").len(), 2);
    let quiet = double.probe(&found.host, "other", &["--json"]);
    assert_eq!(
        (quiet.code, quiet.stderr.as_str()),
        (Some(0), ""),
        "{quiet:?}"
    );
}

#[test]
fn ollamas_errors_are_passed_on() {
    let double = Double::new(&json!({"huge:latest": {"num_ctx": 65536}}));
    let found = double.run_already();
    let ran = double.probe(&found.host, "none:1b", &[]);
    ran.check_failure(&[
        "download the model `none:1b`",
        "pull model manifest: file does not exist",
    ]);
    assert_eq!(
        double.asked("/api/pull").len(),
        1,
        "a refusal is not asked again"
    );
    let ran = double.probe(&found.host, "huge", &[]);
    ran.check_failure(&["load the model `huge`", "more system memory (90 GiB)"]);
}

#[test]
fn without_ollama_the_error_says_what_to_do() {
    let double = Double::new(&json!({}));
    let empty = double.path().join("empty");
    let host = closed_host();
    let mut command = double.rollcage(&host, &["endpoint", "probe", "ollama/tiny"]);
    let ran = CommandOutput::of(command.env("PATH", &empty));
    ran.check_failure(&["no program `ollama`", "https://ollama.com/download", &host]);
    // Somebody else's server is not ours to replace.
    let mut command = double.rollcage("", &["endpoint", "probe", "ollama", "--model", "m"]);
    let ran = CommandOutput::of(command.env("OLLAMA_BASE_URL", format!("http://{host}/v1")));
    ran.check_failure(&["no Ollama server answers at", &host]);
    assert!(double.pids().is_empty());
}

#[test]
fn a_server_that_dies_or_stays_silent_is_reported_with_the_end_of_its_log() {
    let double = Double::new(&json!({}));
    let mut command = double.rollcage(&closed_host(), &["endpoint", "probe", "ollama/tiny"]);
    let ran = CommandOutput::of(command.env("DOUBLE_MODE", "dies"));
    ran.check_failure(&[
        "`ollama` ended while it started (exit status: 1)",
        "could not find a graphics card",
    ]);
    let pid = double.path().join("pid");
    let script = format!(
        "echo $$ > {}; echo still thinking; sleep 3600; : {{port}}",
        pid.display()
    );
    let settings =
        format!("[servers.local]\ncommand = ['/bin/sh', '-c', '{script}']\nready_timeout_s = 3\n");
    std::fs::create_dir_all(double.path().join("home")).unwrap();
    std::fs::write(double.path().join("home/servers.toml"), settings).unwrap();
    let ran = CommandOutput::of(&mut double.rollcage("", &["endpoint", "probe", "local"]));
    ran.check_failure(&[
        "`local` did not answer",
        "within 3 seconds",
        "still thinking",
    ]);
    let pid = std::fs::read_to_string(pid)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(!is_running(pid));
}

impl Double {
    /// The double as a server of the user's own, with a process of its own beside it, as engines have them.
    fn settings(&self, extra: &str) {
        let home = self.path().join("home");
        std::fs::create_dir_all(&home).unwrap();
        let script = format!(
            "sleep 3600 & echo $! > {}; exec {} serve",
            self.path().join("beside").display(),
            self.program().display()
        );
        let text = format!(
            "[servers.local]\ncommand = ['/bin/sh', '-c', '{script}']\nbase_url = 'http://127.0.0.1:{{port}}'\n\
             ready = '/api/version'\n{extra}\n\
             [servers.local.env]\nOLLAMA_HOST = '127.0.0.1:{{port}}'\nDOUBLE_DIR = '{}'\n",
            self.path().display()
        );
        std::fs::write(home.join("servers.toml"), text).unwrap();
    }

    /// Everything that was started as a server of the settings.
    fn all_pids(&self) -> Vec<u64> {
        let beside = std::fs::read_to_string(self.path().join("beside")).unwrap();
        let mut pids = self.pids();
        pids.push(beside.trim().parse().unwrap());
        pids
    }
}

#[test]
fn a_server_goes_when_we_are_killed() {
    let double = Double::new(&json!({"hangs:latest": {"num_ctx": 65536}}));
    double.settings("model = 'hangs'");
    let mut command = double.rollcage("", &["endpoint", "probe", "local"]);
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    wait_for(|| {
        double
            .log()
            .iter()
            .find_map(|entry| entry["listening"].as_u64())
    });
    let pids = double.all_pids();
    assert!(pids.iter().all(|pid| is_running(*pid)));
    child.kill().unwrap();
    child.wait().unwrap();
    for pid in pids {
        wait_for(|| (!is_running(pid)).then_some(()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rollouts_at_once_share_one_server_of_the_settings() {
    let double = Double::new(&json!({"tiny:latest": {"num_ctx": null}}));
    double.settings("");
    let path = double.path().join("home/servers.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let providers = Providers::built_in().with_servers(&text, &path).unwrap();
    let request = EndpointRequest {
        kind: Some("local".to_owned()),
        ..EndpointRequest::default()
    };
    let choice = request.resolve_among(&providers, |name| std::env::var(name).ok());
    let choice = choice.unwrap();
    assert!(matches!(choice, EndpointChoice::Managed(_)));

    let home = Home::new();
    let engine = home.engine().await;
    let task = task(&["true"]);
    let rollout = || ResolvedRollout {
        endpoint: choice.clone(),
        ..home.plan(task.clone(), ASK, "http://replaced").resolved()
    };
    let (mut first, mut second) = (rollout(), rollout());
    let (one, other) = tokio::join!(
        engine.settle(&mut first, &|_| ()),
        engine.settle(&mut second, &|_| ())
    );
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!(one.model, "tiny:latest", "the model that it serves");
    assert_eq!(one.base_url, other.base_url);
    let plans = [one, other].map(|endpoint| {
        let plan = home.plan(task.clone(), ASK, "http://replaced");
        std::sync::Arc::new(crate::support::Plan { endpoint, ..plan })
    });
    let results = run_many(&engine, plans.to_vec(), &CancellationToken::new()).await;
    for result in &results {
        assert_eq!((result.usage.calls, result.error.as_deref()), (1, None));
        assert_eq!(result.endpoint.kind, "local");
    }
    assert_eq!(double.pids().len(), 1, "one server for both");
    let pids = double.all_pids();
    assert!(pids.iter().all(|pid| is_running(*pid)));
    engine.close().await;
    assert!(!is_running(pids[0]), "it ends with the engine");
    // What it left behind is asked to end as it ends.
    wait_for(|| (!is_running(pids[1])).then_some(()));
}
