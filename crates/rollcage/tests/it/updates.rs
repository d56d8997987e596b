//! Newer versions of agents: what a registry tells, and the pin that moves only after a trial.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::live_turn::server::program;
use serde_json::{Value, json};

/// A tarball and its hash.
struct Tarball {
    bytes: Vec<u8>,
    integrity: String,
}

impl Tarball {
    /// A package with one program.
    fn of(program: &Path, directory: &Path) -> Self {
        let script = "import base64, hashlib, sys, tarfile\n\
            with tarfile.open(sys.argv[2], 'w:gz', compresslevel=1) as tar:\n    \
                tar.add(sys.argv[1], 'package/bin/opencode')\n\
            digest = hashlib.sha512(open(sys.argv[2], 'rb').read()).digest()\n\
            print('sha512-' + base64.b64encode(digest).decode(), end='')";
        let path = directory.join("package.tgz");
        let made = Command::new("/usr/bin/python3")
            .args(["-c", script])
            .args([program, &path])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        Tarball {
            bytes: std::fs::read(&path).unwrap(),
            integrity: String::from_utf8(made.stdout).unwrap(),
        }
    }
}

/// A registry of OpenCode's packages.
struct Registry {
    url: String,
    latest: Arc<Mutex<&'static str>>,
}

impl Registry {
    fn start(versions: Vec<(&'static str, Tarball)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let latest = Arc::new(Mutex::new(versions[0].0));
        let (base, newest) = (url.clone(), Arc::clone(&latest));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut lines = BufReader::new(&stream).lines();
                let first = lines.next().unwrap().unwrap();
                let _ = lines.map_while(Result::ok).find(String::is_empty);
                let path = first.split(' ').nth(1).unwrap();
                let newest = *newest.lock().unwrap();
                let body = answer(&versions, newest, &base, path);
                let (status, body) =
                    body.map_or(("404 Not Found", Vec::new()), |body| ("200 OK", body));
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
                );
                let _ = stream.write_all(head.as_bytes());
                let _ = stream.write_all(&body);
            }
        });
        Registry { url, latest }
    }
}

fn answer(versions: &[(&str, Tarball)], newest: &str, base: &str, path: &str) -> Option<Vec<u8>> {
    let (package, last) = path.strip_prefix('/')?.split_once('/')?;
    let version = if last == "latest" { newest } else { last };
    let of = |is_it: &dyn Fn(&str) -> bool| versions.iter().find(|(version, _)| is_it(version));
    if let Some(file) = last.strip_suffix(".tgz") {
        let (_, tarball) = of(&|version| file.ends_with(version))?;
        return Some(tarball.bytes.clone());
    }
    let (version, tarball) = of(&|known| known == version)?;
    let tarball_url = format!("{base}/{package}/-/{package}-{version}.tgz");
    let dist = json!({"tarball": tarball_url, "integrity": tarball.integrity});
    let body = json!({"name": package, "version": version, "dist": dist});
    Some(body.to_string().into_bytes())
}

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn json(&self) -> Value {
        serde_json::from_str(self.stdout.trim())
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.stdout, self.stderr))
    }
}

fn rollcage(home: &Path, registry: &str, arguments: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_rollcage"))
        .arg("agent")
        .args(arguments)
        .env("ROLLCAGE_HOME", home)
        .env("npm_config_registry", registry)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran {
        code: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    }
}

/// What is pinned, what comes with Rollcage where that is another, and what is installed.
fn listed(home: &Path) -> (String, Value, Vec<String>) {
    let list = rollcage(home, "http://127.0.0.1:1", &["list", "--json"]);
    let mut rows = list
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let row: Value = rows.find(|row: &Value| row["agent"] == "opencode").unwrap();
    let installed = row["installed"].as_array().unwrap().iter();
    (
        row["default_version"].as_str().unwrap().to_owned(),
        row["built_in_version"].clone(),
        installed
            .map(|bundle| bundle["version"].as_str().unwrap().to_owned())
            .collect(),
    )
}

fn pins(home: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(home.join("pins")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_moves_only_to_a_version_that_behaves() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("home");
    let good = Tarball::of(&program().await, directory.path());
    let bad = Tarball::of(Path::new("/bin/true"), directory.path());
    let registry = Registry::start(vec![("98.0.0", bad), ("99.0.0", good)]);
    let agent = |arguments: &[&str]| rollcage(&home, &registry.url, arguments);
    let (ours, _, _) = listed(&home);

    let told = agent(&["outdated", "opencode", "--json"]);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    let expected = json!({
        "agent": "opencode", "pinned": ours, "built_in": null, "newest": "98.0.0", "installed": [],
        "is_outdated": true, "why": null,
    });
    assert_eq!(told.json(), expected);

    let failed = agent(&["update", "opencode", "--json"]);
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    let report = failed.json();
    assert_eq!(
        (&report["from"], &report["to"], &report["is_updated"]),
        (&json!(ours), &json!("98.0.0"), &json!(false))
    );
    let problem = report["problems"][0].as_str().unwrap();
    assert!(problem.contains("warm the agent up"), "{problem}");
    let installed = vec!["98.0.0".to_owned()];
    assert_eq!(
        listed(&home),
        (ours.clone(), Value::Null, installed.clone())
    );
    assert!(pins(&home).is_empty());

    *registry.latest.lock().unwrap() = "99.0.0";
    let updated = agent(&["update", "opencode"]);
    assert_eq!(
        updated.code,
        Some(0),
        "{} {}",
        updated.stdout,
        updated.stderr
    );
    let last = updated.stdout.lines().last().unwrap();
    assert_eq!(
        last,
        format!("opencode is pinned at 99.0.0 now (was {ours})")
    );
    let installed = [installed, vec!["99.0.0".to_owned()]].concat();
    assert_eq!(
        listed(&home),
        ("99.0.0".to_owned(), json!(ours), installed.clone())
    );
    assert_eq!(pins(&home), [home.join("pins/opencode.lock")]);

    let told = agent(&["outdated", "opencode"]);
    let state = format!("up to date; your pin; {ours} comes with Rollcage\n");
    assert!(told.stdout.ends_with(&state), "{}", told.stdout);
    let again = agent(&["update"]);
    assert_eq!(
        (again.code, again.stdout.as_str()),
        (Some(0), "opencode 99.0.0 is the newest\n")
    );

    let reset = agent(&["update", "--reset"]);
    let text = format!("opencode is at {ours} again, as it comes with Rollcage\n");
    assert_eq!((reset.code, reset.stdout), (Some(0), text));
    assert_eq!(listed(&home), (ours, Value::Null, installed));
}

#[test]
fn a_registry_that_does_not_answer_is_told() {
    let home = tempfile::tempdir().unwrap();
    let agent = |arguments: &[&str]| rollcage(home.path(), "http://127.0.0.1:1", arguments);
    let told = agent(&["outdated", "opencode", "--json"]);
    assert_eq!(told.code, Some(1));
    let row = told.json();
    assert_eq!(
        (&row["newest"], &row["is_outdated"]),
        (&Value::Null, &Value::Null)
    );
    assert!(
        row["why"].as_str().unwrap().contains("127.0.0.1:1"),
        "{row}"
    );
    let failed = agent(&["update", "opencode"]);
    assert_eq!(failed.code, Some(1));
    assert!(
        failed.stdout.contains("opencode stays at "),
        "{}",
        failed.stdout
    );

    for (arguments, why) in [
        (["update", "nop"], "comes from no registry"),
        (["outdated", "nop"], "comes from no registry"),
        (["outdated", "opencode@1.0.0"], "names a version"),
        (["update", "manifests/shell-loop.toml"], "agent of your own"),
        (["update", "gpt"], "unknown agent `gpt`"),
    ] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let arguments = arguments.map(|text| match text.ends_with(".toml") {
            true => root.join(text).display().to_string(),
            false => text.to_owned(),
        });
        let refused = agent(&arguments.each_ref().map(String::as_str));
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
    }
}

#[test]
fn the_list_says_why_an_old_line_is_pinned() {
    let home = tempfile::tempdir().unwrap();
    let list = rollcage(home.path(), "http://127.0.0.1:1", &["list"]);
    let mut lines = list
        .stdout
        .lines()
        .skip_while(|line| !line.starts_with("pi  (pi 0."));
    assert!(
        lines.nth(1).unwrap().contains("its 1.x line needs"),
        "{}",
        list.stdout
    );
}
