//! Tests that need other processes: two installers, a killed one, and disks that are full or read-only. The test
//! program runs itself as the child.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::fake::{Cut, FAKE, Gate, Package, Reply, elf, impatient};
use super::{Bundles, InstallError, Registry, StorageError, VersionRequest, leftovers};

const ROOT: &str = "ROLLCAGE_TEST_ROOT";
const URL: &str = "ROLLCAGE_TEST_URL";

/// Not a test by itself: the child half of the tests below.
#[tokio::test]
#[ignore = "run by other tests"]
async fn child_installs() {
    let (Ok(root), Ok(url)) = (std::env::var(ROOT), std::env::var(URL)) else {
        return;
    };
    let bundles = Bundles::new(root.into(), impatient(Registry::at(&url)));
    let bundle = bundles
        .ensure(&FAKE, VersionRequest::Default, &|_| ())
        .await;
    assert_eq!(bundle.unwrap().version, "1.0.0");
}

/// Not a test by itself: runs where the directory is a small or read-only disk.
#[tokio::test]
#[ignore = "run by other tests"]
async fn child_meets_a_bad_disk() {
    let (Ok(root), Ok(url)) = (std::env::var(ROOT), std::env::var(URL)) else {
        return;
    };
    let root = Path::new(&root);
    let bundles = Bundles::new(root.into(), impatient(Registry::at(&url)));
    let error = bundles
        .ensure(&FAKE, VersionRequest::Default, &|_| ())
        .await;
    match error.unwrap_err() {
        InstallError::Storage(StorageError::Full { path, needed, .. }) => {
            assert_eq!(path, root);
            println!("full, needed {}", needed.unwrap());
            assert_eq!(leftovers(root), [""; 0]);
            assert_eq!(bundles.list(), []);
        }
        InstallError::Storage(StorageError::NotWritable { .. }) => println!("not writable"),
        other => panic!("{other:?}"),
    }
}

fn child(test: &str, root: &Path, url: &str) -> Command {
    let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &name, "--ignored", "--nocapture"])
        .env(ROOT, root)
        .env(URL, url)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[track_caller]
fn check_success(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
    text
}

#[test]
fn two_processes_download_once() {
    let server = Package::new().serve();
    let directory = tempfile::tempdir().unwrap();
    let start = || {
        child("child_installs", directory.path(), &server.url)
            .spawn()
            .unwrap()
    };
    let children = [start(), start(), start()];
    for child in children {
        check_success(child);
    }
    assert_eq!(server.count(".tgz"), 1);
}

#[tokio::test]
async fn what_a_killed_process_left_is_swept_by_the_next() {
    let asked = Gate::default();
    let opener = asked.clone();
    let package = Package::with_program(&elf(100_000));
    let tarball = package.tarball.clone();
    let stuck = package.clone().serve_with(move |request| {
        let is_tarball = request.path.ends_with(".tgz");
        is_tarball.then(|| {
            opener.open();
            Reply {
                cut: Some((50_000, Cut::Stall)),
                ..Reply::ok(tarball.clone())
            }
        })
    });
    let directory = tempfile::tempdir().unwrap();
    let mut child = child("child_installs", directory.path(), &stuck.url)
        .spawn()
        .unwrap();
    asked.wait();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(leftovers(directory.path()).len(), 1);

    let server = package.serve();
    let bundles = Bundles::new(directory.path().to_owned(), server.registry());
    let bundle = bundles
        .ensure(&FAKE, VersionRequest::Default, &|_| ())
        .await;
    assert_eq!(bundle.unwrap().bytes, 100_002);
    assert_eq!(leftovers(directory.path()), [""; 0]);
}

/// Runs the child with `root` on a file system mounted with `options`, in its own mount namespace. `None` where the
/// machine does not permit that.
fn on_disk(options: &str, url: &str) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let inner = child("child_meets_a_bad_disk", directory.path(), url);
    let mount = "mount -t tmpfs -o \"$0\" none \"$ROLLCAGE_TEST_ROOT\" || exit 77; exec \"$@\"";
    let mut outer = Command::new("unshare");
    outer
        .args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            mount,
            options,
        ])
        .arg(inner.get_program())
        .args(inner.get_args())
        .envs(
            inner
                .get_envs()
                .filter_map(|(key, value)| Some((key, value?))),
        )
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let probe = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
        .args(["mount -t tmpfs none \"$0\"", directory.path().to_str()?])
        .output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        eprintln!("skipped: no mount namespace to be had here");
        return None;
    }
    Some(check_success(outer.spawn().unwrap()))
}

#[test]
fn a_disk_too_small_for_the_download_is_reported_and_left_clean() {
    let package = Package::with_program(&elf(3_000_000));
    let needed = package.tarball.len();
    let server = package.serve();
    if let Some(text) = on_disk("size=1m", &server.url) {
        assert!(text.contains(&format!("full, needed {needed}")), "{text}");
    }
}

#[test]
fn a_disk_too_small_for_unpacking_is_reported_and_left_clean() {
    let package = Package::with_program(&elf(3_000_000));
    let server = package.serve();
    if let Some(text) = on_disk("size=4m", &server.url) {
        let needed = text.split("full, needed ").nth(1).unwrap();
        let needed: u64 = needed.split('\n').next().unwrap().parse().unwrap();
        assert!((6_000_000..6_100_000).contains(&needed), "{needed}");
    }
}

#[test]
fn a_read_only_disk_is_reported() {
    let server = Package::new().serve();
    if let Some(text) = on_disk("ro", &server.url) {
        assert!(text.contains("not writable"), "{text}");
    }
}
