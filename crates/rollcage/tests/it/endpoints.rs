//! Endpoints by name, as a user meets them: what is listed, what is found out, and files of the user's own.

use std::process::Command;

use rollcage_testkit::sglang;
use rollcage_testkit::upstream::{ReceivedRequest, Reply, StreamEnd, Upstream};
use serde_json::{Value, json};

use crate::support::{API_KEY, says, streams};

struct Cli {
    home: tempfile::TempDir,
}

impl Cli {
    fn new() -> Self {
        Cli {
            home: tempfile::tempdir().unwrap(),
        }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.home.path().join(name), text).unwrap();
    }

    /// With nothing set but what the test sets.
    fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_rollcage"))
            .args(arguments)
            .env_clear()
            .env("ROLLCAGE_HOME", self.home.path())
            .current_dir(self.home.path())
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    }

    fn list(&self, variables: &[(&str, &str)]) -> Vec<Value> {
        let (code, stdout, stderr) = self.run(&["endpoint", "list", "--json"], variables);
        assert_eq!((code, stderr.as_str()), (Some(0), ""));
        assert!(!stdout.contains(API_KEY), "{stdout}");
        stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

fn of<'a>(rows: &'a [Value], name: &str) -> &'a Value {
    rows.iter().find(|row| row["endpoint"] == name).unwrap()
}

/// As a serving engine that gives everything.
fn engine(_: usize, asked: &ReceivedRequest) -> Reply {
    if asked.body.contains("\"stream\":true") {
        streams(true, StreamEnd::Clean)
    } else {
        says("ok")
    }
}

#[test]
fn what_is_configured_is_listed_without_keys() {
    let cli = Cli::new();
    let rows = cli.list(&[]);
    assert_eq!(of(&rows, "openai")["configured"], false);
    assert_eq!(of(&rows, "openai")["key"], "missing");
    assert_eq!(of(&rows, "anthropic")["dialect"], "anthropic");
    assert_eq!(of(&rows, "azure")["auth"], "api-key");
    assert_eq!(of(&rows, "ollama")["serving"], "ollama");
    assert_eq!(of(&rows, "scripted")["configured"], true);

    cli.write(
        "providers.toml",
        "[[provider]]\nname = 'openai'\nmodel = 'gpt-5'\n[[provider]]\nname = 'mine'\nbase_url = 'http://gw:9'\n",
    );
    cli.write(
        "servers.toml",
        "[servers.local]\ncommand = ['serve', '{port}']\n",
    );
    let variables = [("OPENAI_API_KEY", API_KEY), ("MINE_API_KEY", API_KEY)];
    let rows = cli.list(&variables);
    let openai = of(&rows, "openai");
    assert_eq!(
        (&openai["configured"], &openai["key"], &openai["model"]),
        (&json!(true), &json!("set"), &json!("gpt-5"))
    );
    assert_eq!(of(&rows, "mine")["base_url"], "http://gw:9/v1");
    assert_eq!(of(&rows, "local")["serving"], "command");
    let (_, words, _) = cli.run(&["endpoint", "list"], &variables);
    assert!(
        words.contains("set VLLM_URL") && words.contains("key set"),
        "{words}"
    );
    assert!(!words.contains(API_KEY), "{words}");
}

#[test]
fn a_file_that_is_wrong_is_named_with_its_key() {
    for (file, text, expect) in [
        (
            "providers.toml",
            "[[provider]]\nname = 'x'\nurl = 'y'\n",
            "unknown field `url`",
        ),
        (
            "servers.toml",
            "[servers.x]\ncommand = []\n",
            "`x`: command:",
        ),
        (
            "servers.toml",
            "[servers.openai]\ncommand = ['x', '{port}']\n",
            "a provider has this name",
        ),
    ] {
        let cli = Cli::new();
        cli.write(file, text);
        for arguments in [
            &["endpoint", "list"][..],
            &["run", "--instruction", "x", "--endpoint", "vllm"],
        ] {
            let (code, _, stderr) = cli.run(arguments, &[]);
            assert_eq!(code, Some(2), "{stderr}");
            assert!(stderr.contains(file) && stderr.contains(expect), "{stderr}");
        }
    }
}

#[test]
fn a_probe_says_what_an_endpoint_gives() {
    let upstream = Upstream::start(engine).unwrap();
    let cli = Cli::new();
    let common = [
        "endpoint",
        "probe",
        "--base-url",
        upstream.base_url(),
        "--model",
        "test-model",
    ];
    let (code, words, stderr) = cli.run(&common, &[]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    for text in ["tokens: token ids", "can be trained on", "passed on live"] {
        assert!(words.contains(text), "{words}");
    }
    let (_, stdout, _) = cli.run(&[&common[..], &["--json"]].concat(), &[]);
    let probed: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (
            &probed["capture_level"],
            &probed["streams"],
            &probed["is_trainable"]
        ),
        (&json!("tokens"), &json!("live"), &json!(true))
    );
    let (code, _, stderr) = cli.run(&["endpoint", "probe", "nope"], &[]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("unknown endpoint kind `nope`"), "{stderr}");
    let (code, _, stderr) = cli.run(&["endpoint", "probe"], &[]);
    assert_eq!(code, Some(2), "{stderr}");
}

#[test]
fn sglang_is_asked_for_ids_in_its_own_way_where_its_streams_have_them() {
    let cli = Cli::new();
    type Version = fn(&ReceivedRequest) -> Reply;
    let versions: [(Version, &str); 2] = [
        (sglang::says, "live"),
        (sglang::says_without_sglext, "replayed"),
    ];
    for (says, streams) in versions {
        let upstream = Upstream::start(move |_, asked| says(asked)).unwrap();
        let url = upstream.base_url();
        let command = [
            "endpoint",
            "probe",
            "--base-url",
            url,
            "--model",
            "m",
            "--json",
        ];
        let (code, stdout, stderr) = cli.run(&command, &[]);
        assert_eq!(code, Some(0), "{stderr}");
        let probed: Value = serde_json::from_str(&stdout).unwrap();
        let found = (&probed["capture_level"], &probed["streams"]);
        assert_eq!(found, (&json!("tokens"), &json!(streams)));
    }
}

#[test]
fn a_key_goes_where_its_provider_reads_it() {
    let upstream = Upstream::start(engine).unwrap();
    let cli = Cli::new();
    let text = format!(
        "[[provider]]\nname = 'corp'\nbase_url = '{}'\nauth = 'api-key'\n",
        upstream.base_url()
    );
    cli.write("providers.toml", &text);
    let key = [("CORP_API_KEY", API_KEY)];
    let (code, stdout, stderr) = cli.run(&["endpoint", "probe", "corp/some/model", "--json"], &key);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(!stdout.contains(API_KEY) && !stderr.contains(API_KEY));
    let asked = upstream.requests().remove(0);
    let header = |name: &str| {
        let found = asked.headers.iter().find(|(header, _)| header == name);
        found.map(|(_, value)| value.as_str())
    };
    assert_eq!(
        (header("api-key"), header("authorization")),
        (Some(API_KEY), None)
    );
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    assert_eq!(body["model"], "some/model");
}

#[test]
fn without_a_model_the_one_that_is_served_is_taken() {
    let upstream = Upstream::start_with_models(&["org/served"], engine).unwrap();
    let cli = Cli::new();
    let url = upstream.base_url();
    for (arguments, variables) in [
        (&["endpoint", "probe", url, "--json"][..], &[][..]),
        (
            &["endpoint", "probe", "vllm", "--json"],
            &[("VLLM_URL", url)],
        ),
    ] {
        let (code, stdout, stderr) = cli.run(arguments, variables);
        assert_eq!(code, Some(0), "{stderr}");
        let probed: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(probed["model"], "org/served");
    }
    let mut proxy = Command::new(env!("CARGO_BIN_EXE_rollcage"))
        .args(["proxy", "--upstream", "vllm", "--port", "0"])
        .env_clear()
        .env("ROLLCAGE_HOME", cli.home.path())
        .env("VLLM_URL", url)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    let mut said = std::io::BufReader::new(proxy.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut first).unwrap();
    proxy.kill().unwrap();
    proxy.wait().unwrap();
    assert!(first.contains("org/served"), "{first}");
    for asked in upstream.requests() {
        let body: Value = serde_json::from_str(&asked.body).unwrap();
        assert_eq!(body["model"], "org/served");
    }
}

#[test]
fn a_model_that_is_not_served_is_answered_with_those_that_are() {
    let refuse = |_: usize, _: &ReceivedRequest| Reply::Whole {
        status: 404,
        content_type: "application/json",
        body: r#"{"error":{"message":"The model `x` does not exist."}}"#.to_owned(),
    };
    let upstream = Upstream::start_with_models(&["one", "two"], refuse).unwrap();
    let cli = Cli::new();
    let url = upstream.base_url();
    let unnamed = ["endpoint", "probe", url];
    let wrong = ["endpoint", "probe", url, "--model", "x"];
    let run = [
        "run",
        "--instruction",
        "x",
        "--agent",
        "aider",
        "--endpoint",
        url,
    ];
    let several = "serves several models: name one with --model, of `one`, `two`";
    for (arguments, expect) in [
        (&unnamed[..], several),
        (
            &wrong,
            "has no model `x`, or no chat completions: it serves `one`, `two`",
        ),
        (&run, several),
    ] {
        let (code, _, stderr) = cli.run(arguments, &[]);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(expect), "{stderr}");
    }
}

#[test]
fn keys_and_nothing_else_are_read_from_a_dotenv_file() {
    let upstream = Upstream::start_with_models(&["m"], engine).unwrap();
    let cli = Cli::new();
    let text = format!(
        "OPENAI_API_KEY=\"{API_KEY}\"\nVLLM_URL={}\nOPENAI_BASE_URL=http://evil\n",
        upstream.base_url()
    );
    cli.write(".env", &text);
    let rows = cli.list(&[]);
    let openai = of(&rows, "openai");
    assert_eq!(
        (&openai["key"], &openai["base_url"]),
        (&json!("set"), &json!("https://api.openai.com/v1"))
    );
    assert_eq!(of(&rows, "vllm")["configured"], false);
    let named = [
        "endpoint",
        "probe",
        upstream.base_url(),
        "--api-key-env",
        "OPENAI_API_KEY",
    ];
    let sent = |variables: &[(&str, &str)]| {
        let (code, _, stderr) = cli.run(&named, variables);
        assert_eq!(code, Some(0), "{stderr}");
        let asked = upstream.requests();
        let headers = &asked.last().unwrap().headers;
        let found = headers.iter().find(|(name, _)| name == "authorization");
        found.unwrap().1.clone()
    };
    assert_eq!(sent(&[]), format!("Bearer {API_KEY}"));
    assert_eq!(
        sent(&[("OPENAI_API_KEY", "sk-set-in-the-environment")]),
        "Bearer sk-set-in-the-environment"
    );
}
