//! Files of any bytes into a sandbox, and artifacts out of it, by the program as its users start it.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::serve::Server;

const TOKEN: &str = "a-token-that-is-long";

/// A folder with tasks, and a home.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Bench {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_rollcage"))
            .args(["run", "--json"])
            .args(arguments)
            .current_dir(self.path())
            .env("ROLLCAGE_HOME", self.path().join("home"))
            .output()
            .unwrap()
    }

    /// The result of one rollout, which must end well.
    fn result(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        let result: Value = serde_json::from_slice(&output.stdout).expect("one result");
        assert_eq!(result["reward"], 1.0, "{result:#}");
        result
    }

    fn check_wrong_use(&self, arguments: &[&str], expect: &str) {
        let output = self.run(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(expect), "{text}");
    }
}

#[test]
fn directories_and_binary_files_go_in_by_a_task_file_and_by_a_flag() {
    let bench = Bench::new();
    bench.write("data/a/raw.bin", [0, 255, 10, 13]);
    bench.write("data/run", "#!/bin/sh\necho ran\n");
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(bench.path().join("data/run"), executable).unwrap();
    symlink("../run", bench.path().join("data/a/link")).unwrap();
    std::fs::create_dir(bench.path().join("data/empty")).unwrap();
    for number in 0..50 {
        bench.write(&format!("data/many/{number}"), number.to_string());
    }
    bench.write(
        "hidden/check.sh",
        "grep -qx 49 many/49 || grep -qx 49 data/many/49\n",
    );
    bench.write(
        "task.toml",
        r#"
        instruction = "Nothing to do."
        setup = ["test ! -e /home/user/tests/check.sh", "test -x data/run"]
        verify = [
            "test \"$(od -An -tx1 data/a/raw.bin)\" = ' 00 ff 0a 0d'",
            "test \"$(data/a/link)\" = ran && test ! -x data/a/raw.bin && test -d data/empty",
            "/home/user/tests/check.sh",
            "test \"$(od -An -tx1 given.bin)\" = ' 00 ff 0a 0d' && test -x given/run && test \"$(cat text)\" = x",
        ]
        [upload]
        "data" = "data/"
        "/home/user/tests" = "hidden"
        "#,
    );
    bench.result(&[
        "task.toml",
        "--agent",
        "nop",
        "--files",
        "given.bin=@data/a/raw.bin",
        "--files",
        "given=@data",
        "--files",
        "text=x",
    ]);
}

#[test]
fn what_cannot_be_uploaded_is_said_before_anything_runs() {
    let bench = Bench::new();
    bench.write(
        "task.toml",
        "instruction = 'x'\n[upload]\n'data' = 'data'\n",
    );
    bench.check_wrong_use(&["task.toml", "--agent", "nop"], "No such file");
    bench.write("data/a", "x");
    symlink("/etc/passwd", bench.path().join("data/link")).unwrap();
    let expect = "data/link: a link that leads out of";
    bench.check_wrong_use(&["task.toml", "--agent", "nop"], expect);
    let given = ["--instruction", "x", "--agent", "nop", "--files"];
    bench.check_wrong_use(&[&given[..], &["d=@data"]].concat(), expect);
    bench.check_wrong_use(
        &[
            &given[..],
            &["/home/user/logs/verifier/reward.txt=@task.toml"],
        ]
        .concat(),
        "only verify commands write below",
    );
}

/// Starts a rollout and waits for its result.
async fn ended(server: &Server, request: reqwest::RequestBuilder) -> Value {
    let answer = request.bearer_auth(TOKEN).send().await.unwrap();
    let started: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    let id = started["rollout_id"].as_str().expect("an id").to_owned();
    // Ends when the rollout does.
    server
        .bytes(TOKEN, &format!("/v1/rollouts/{id}/events"))
        .await;
    let (status, _, result) = server.bytes(TOKEN, &format!("/v1/rollouts/{id}")).await;
    assert_eq!(status, 200);
    serde_json::from_slice(&result).unwrap()
}

fn server() -> Server {
    let arguments = ["--token-env", "TOKEN", "--token-env", "OTHER"];
    Server::start_in(tempfile::tempdir().unwrap(), &arguments)
}

fn request() -> Value {
    json!({
        "instruction": "x", "agent": "nop",
        "verify": ["test \"$(od -An -tx1 in.bin)\" = ' 00 ff'", "test \"$(cat text)\" = t", "test ! -x in.bin"],
        "files": {"text": "t"},
    })
}

#[tokio::test]
async fn clients_send_bytes_as_base64_or_as_a_form() {
    let server = server();
    let mut body = request();
    body["files"]["in.bin"] = json!({"base64": "AP8="});
    body["files"]["run"] = json!({"base64": "IyEvYmluL3NoCg==", "executable": true});
    body["verify"].as_array_mut().unwrap().push(json!("./run"));
    let post = || server.post("/v1/rollouts");
    let sent = post().header("content-type", "application/json");
    let result = ended(&server, sent.body(body.to_string())).await;
    assert_eq!(result["reward"], 1.0, "{result:#}");

    let form = |request: &str| {
        let mut form =
            format!("--B\r\ncontent-disposition: form-data; name=\"request\"\r\n\r\n{request}\r\n");
        form.push_str(
            "--B\r\ncontent-disposition: form-data; name=\"files\"; filename=\"in.bin\"\r\n\r\n",
        );
        [form.as_bytes(), b"\0\xff\r\n--B--\r\n"].concat()
    };
    let sent = || post().header("content-type", "multipart/form-data; boundary=B");
    let result = ended(&server, sent().body(form(&request().to_string()))).await;
    assert_eq!(result["reward"], 1.0, "{result:#}");

    let refused = async |request: reqwest::RequestBuilder| {
        let answer = request.bearer_auth(TOKEN).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let (status, text) = refused(sent().body("--B\r\n")).await;
    assert!(
        status == 400 && text.contains("cut short"),
        "{status} {text}"
    );
    let page = sent().header("origin", "https://example.com");
    let (status, text) = refused(page.body(form("{}"))).await;
    assert!(
        status == 403 && text.contains("a web page"),
        "{status} {text}"
    );
    let (status, _) = refused(sent().body(vec![0; 33 << 20])).await;
    assert_eq!(status, 413);
    body["files"]["in.bin"] = json!({"base64": "?"});
    let json = post().header("content-type", "application/json");
    let (status, text) = refused(json.body(body.to_string())).await;
    assert!(
        status == 400 && text.contains("is no base64"),
        "{status} {text}"
    );
}
