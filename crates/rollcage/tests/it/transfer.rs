//! Files of any bytes into a sandbox, and artifacts out of it, by the program as its users start it.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::serve::Server;

const TOKEN: &str = "a-token-that-is-long";
const OTHER: &str = "another-token-as-long";

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
    body["files"]["in.bin"] = json!({"base64": "?"});
    let json = post().header("content-type", "application/json");
    let (status, text) = refused(json.body(body.to_string())).await;
    assert!(
        status == 400 && text.contains("is no base64"),
        "{status} {text}"
    );
}

/// Leaves bytes, a program, links that lead out and elsewhere, a pipe, a locked file and odd names.
const LEAVES: &str = "mkdir -p out/deep; printf '\\000\\377' > out/raw.bin; printf x > 'out/deep/a\"b;é.bin'; \
    ln -s /etc/passwd out/passwd; ln -s raw.bin out/link; ln -s /etc out/etc; mkfifo out/pipe; \
    printf y > out/locked; chmod 0 out/locked; printf z > $(printf 'out/\\377'); printf n > notes; printf b > top.bin";

fn kept(path: &str, bytes: &[u8]) -> Value {
    use sha2::Digest;
    let digits = sha2::Sha256::digest(bytes);
    let digits: String = digits.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({"path": path, "bytes": bytes.len(), "sha256": digits})
}

#[test]
fn artifacts_of_any_bytes_are_kept_and_saved_and_nothing_that_is_not_the_agents() {
    let bench = Bench::new();
    bench.write("solution.sh", LEAVES);
    bench.write(
        "task.toml",
        "instruction = 'x'\nverify = ['true']\nartifacts = ['out/**']\n\
         [[solution]]\nrun = 'bash /home/user/task/leaves.sh'\n[upload]\n'/home/user/task/leaves.sh' = 'solution.sh'\n",
    );
    let result = bench.result(&[
        "task.toml",
        "--agent",
        "oracle",
        "--artifacts",
        "*.bin",
        "--save",
        "saved",
    ]);
    let odd = "out/deep/a\"b;é.bin";
    let expect = [
        kept(odd, b"x"),
        kept("out/raw.bin", b"\0\xff"),
        kept("top.bin", b"b"),
    ];
    assert_eq!(result["artifacts"], json!(expect));
    let findings = result["findings"].to_string();
    assert!(findings.contains("artifacts_cut"), "{findings}");
    assert!(
        findings.contains("out/locked (not a file that can be read)"),
        "{findings}"
    );

    let record = Path::new(result["record"].as_str().unwrap()).join("artifacts");
    let saved = bench
        .path()
        .join("saved")
        .join(result["rollout_id"].as_str().unwrap());
    for root in [record.clone(), saved.join("artifacts")] {
        assert_eq!(std::fs::read(root.join("out/raw.bin")).unwrap(), b"\0\xff");
        assert_eq!(std::fs::read(root.join(odd)).unwrap(), b"x");
        let names = std::fs::read_dir(root.join("out")).unwrap();
        assert_eq!(names.count(), 2, "no link, no pipe, no locked file");
    }
    let mode = std::fs::metadata(record.join("out/raw.bin")).unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
}

#[test]
fn too_much_is_cut_and_said() {
    let bench = Bench::new();
    let result = bench.result(&[
        "--instruction",
        "x",
        "--agent",
        "oracle",
        "--verify",
        "true",
        "--solution",
        "printf a > a; head -c 1048577 /dev/zero > Large; mkdir d; cd d; seq 10010 | xargs touch",
        "--artifacts",
        "**",
        "--limits",
        "artifacts_mb=1",
    ]);
    let kept = result["artifacts"].as_array().unwrap().len();
    assert_eq!(kept, 10_000);
    let findings = result["findings"].to_string();
    let expect = "Large (1048577 bytes, over the limit artifacts_mb)";
    assert!(findings.contains(expect), "{findings}");
    assert!(findings.contains("more than 10000 files"), "{findings}");
}

#[tokio::test]
async fn artifacts_are_served_as_attachments_to_their_owner_alone() {
    let server = server();
    let body = json!({
        "instruction": "x", "agent": "oracle", "verify": ["true"], "artifacts": ["out/**"],
        "solution": ["mkdir -p out/d; printf '<script>' > 'out/d/a b.html'; head -c 3000000 /dev/zero > out/zero"],
    });
    let sent = server
        .post("/v1/rollouts")
        .header("content-type", "application/json");
    let result = ended(&server, sent.body(body.to_string())).await;
    assert_eq!(result["reward"], 1.0, "{result:#}");
    let route = format!(
        "/v1/rollouts/{}/artifacts",
        result["rollout_id"].as_str().unwrap()
    );
    let get = async |token: &str, path: &str| server.bytes(token, &format!("{route}{path}")).await;

    let (status, _, list) = get(TOKEN, "").await;
    let list: Value = serde_json::from_slice(&list).unwrap();
    assert_eq!((status, &list["artifacts"]), (200, &result["artifacts"]));
    assert_eq!(list["artifacts"].as_array().unwrap().len(), 2);

    let (status, headers, page) = get(TOKEN, "/out/d/a%20b.html").await;
    assert_eq!((status, page.as_slice()), (200, &b"<script>"[..]));
    for (name, value) in [
        ("content-type", "application/octet-stream"),
        (
            "content-disposition",
            "attachment; filename*=UTF-8''a%20b.html",
        ),
        ("x-content-type-options", "nosniff"),
        ("content-length", "8"),
    ] {
        assert_eq!(headers[name], value);
    }
    let (status, _, zeros) = get(TOKEN, "/out/zero").await;
    assert!(status == 200 && zeros == vec![0; 3_000_000]);
    for path in [
        "/out",
        "/../result.json",
        "/%2e%2e/result.json",
        "/..%2fresult.json",
        "//etc/passwd",
    ] {
        let (status, _, answer) = get(TOKEN, path).await;
        assert_eq!(status, 404, "{path}: {}", String::from_utf8_lossy(&answer));
    }
    for path in ["", "/out/zero"] {
        assert_eq!(get(OTHER, path).await.0, 404);
        assert_eq!(get("no-token", path).await.0, 401);
    }
}

#[test]
fn a_directory_of_the_host_is_shown_read_only() {
    let bench = Bench::new();
    bench.write("host/a/b", "shown");
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(bench.path(), everybody).unwrap();
    let given = [
        "--instruction",
        "x",
        "--agent",
        "oracle",
        "--solution",
        "rm -rf /data/a data/a; echo x > /data/c",
    ];
    bench.result(
        &[
            &given[..],
            &[
                "--mount",
                "host:/data",
                "--mount",
                "host/a:/home/user/workdir/data",
            ],
            &["--setup", "test \"$(cat /data/a/b data/b)\" = shownshown"],
            &[
                "--verify",
                "test \"$(cat /data/a/b data/b)\" = shownshown && test ! -e /data/c",
            ],
        ]
        .concat(),
    );
    assert_eq!(
        std::fs::read(bench.path().join("host/a/b")).unwrap(),
        b"shown"
    );
    for (mount, expect) in [
        (
            "host:/home/user/tests",
            "--mount host:/home/user/tests: nothing can be shown at",
        ),
        ("missing:/data", "missing cannot be shown: No such file"),
        ("host", "must be HOST:INSIDE"),
    ] {
        bench.check_wrong_use(&[&given[..], &["--mount", mount]].concat(), expect);
    }
}

/// Changes, adds and removes files, and tries to hide it: with attributes, filters, hooks, ignored names, another
/// repository, and a git of its own.
const HIDES: &str = "echo changed > src/a; rm src/b; printf '\\000\\377' > new.bin; ln -s src link; chmod +x run; \
    printf '* -diff filter=evil diff=evil\\n' > .gitattributes; echo '*' > .gitignore; git init -q sub; echo in > sub/file; \
    git config --global diff.external /home/user/workdir/run; git config --global filter.evil.clean /home/user/workdir/run; \
    printf '[diff]\\nexternal = false\\n' >> .git/config; mkdir -p .git/hooks; cp run .git/hooks/post-index-change";

#[test]
fn a_patch_has_all_that_the_agent_changed_and_nothing_of_its_configuration() {
    let bench = Bench::new();
    bench.write("before/src/a", "old\n");
    bench.write("before/src/b", "gone\n");
    bench.write("before/run", "#!/bin/sh\ntouch /tmp/ran; exit 1\n");
    bench.write("solution.sh", HIDES);
    bench.write(
        "task.toml",
        "instruction = 'x'\npatch = true\nsetup = ['git init -q', 'echo made > by-setup']\n\
         verify = ['test ! -e /tmp/ran', 'echo late > late']\n\
         [[solution]]\nrun = 'bash /home/user/task/hides.sh'\n\
         [upload]\n'/home/user/task/hides.sh' = 'solution.sh'\n'/home/user/workdir' = 'before'\n",
    );
    let result = bench.result(&["task.toml", "--agent", "oracle", "--save", "saved"]);
    let findings = result["findings"].to_string();
    assert!(!findings.contains("patch_incomplete"), "{findings}");
    let record = Path::new(result["record"].as_str().unwrap());
    let patch = record.join("workdir.patch");
    let text = std::fs::read(&patch).unwrap();
    assert_eq!(result["patch_bytes"], text.len());
    let saved = bench
        .path()
        .join("saved")
        .join(result["rollout_id"].as_str().unwrap());
    assert_eq!(std::fs::read(saved.join("workdir.patch")).unwrap(), text);
    assert!(!record.join("workdir.git.partial").exists());

    // It makes of the state after setup what the agent left, byte for byte.
    let applied = bench.path().join("before");
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        let output = command
            .args(arguments)
            .current_dir(&applied)
            .env("HOME", "/nonexistent");
        assert!(output.status().unwrap().success(), "git {arguments:?}");
    };
    git(&["init", "-q"]);
    git(&["apply", "--whitespace=nowarn", patch.to_str().unwrap()]);
    assert_eq!(std::fs::read(applied.join("src/a")).unwrap(), b"changed\n");
    assert!(!applied.join("src/b").exists());
    assert_eq!(std::fs::read(applied.join("new.bin")).unwrap(), b"\0\xff");
    assert_eq!(std::fs::read(applied.join("sub/file")).unwrap(), b"in\n");
    assert_eq!(
        std::fs::read_link(applied.join("link")).unwrap(),
        Path::new("src")
    );
    let mode = std::fs::metadata(applied.join("run"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o111, 0o111);
    for name in ["late", "by-setup", "sub/.git"] {
        assert!(!applied.join(name).exists(), "{name}");
    }
}
