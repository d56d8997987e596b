//! Spare sandboxes, from the request to the end.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use rollcage_sandbox::local::Local;
use rollcage_sandbox::{Mount, Sandbox, Sandboxes, Spec};
use tokio::task::JoinSet;

use crate::kit::{chain, is_root, options, output, spec, start};
use crate::traces::{all_spares, cgroups, instance, kill, marked, spares, wait_for_end};

/// A backend whose processes can be distinguished from those of other tests.
async fn marked_backend(name: &str) -> (Local, tempfile::TempDir, String) {
    let state = tempfile::tempdir().unwrap();
    let mark = format!("rollcage-{name}-mark-{}", std::process::id());
    let options = options(state.path().join("state"), vec![mark.clone()]);
    (Local::open(options).await.unwrap(), state, mark)
}

#[tokio::test]
async fn nothing_waits_before_the_first_start_and_nothing_is_left_after_shutdown() {
    let (local, state, mark) = marked_backend("idle").await;
    local.doctor().await.unwrap();
    assert_eq!(marked(&mark).len(), 1, "the zygote");
    let sandbox = start(&local, spec("first")).await;
    let name = instance(&state.path().join("state"));
    let waiting = all_spares(&mark).await;
    sandbox.close().await.unwrap();
    local
        .shutdown()
        .await
        .unwrap_or_else(|error| panic!("{}", chain(&error)));
    for (pid, _) in &waiting {
        let left = PathBuf::from(format!("/proc/{pid}"));
        assert!(!left.exists(), "process {pid} must be dead and collected");
    }
    assert_eq!(marked(&mark).len(), 0);
    assert_eq!(cgroups(&name), Vec::<PathBuf>::new());
    let state = std::fs::read_dir(state.path().join("state")).unwrap();
    assert_eq!(state.count(), 0);
}

#[tokio::test]
async fn killed_spares_are_noticed_and_replaced() {
    let (local, _state, mark) = marked_backend("killed-spare").await;
    let first = start(&local, spec("first")).await;
    let waiting = all_spares(&mark).await;
    for (pid, _) in &waiting {
        kill(*pid);
    }
    wait_for_end(&waiting);
    let second = start(&local, spec("second")).await;
    assert_eq!(output(&*first, "hostname").await, "first");
    assert_eq!(output(&*second, "hostname").await, "second");
    assert_eq!(all_spares(&mark).await.len(), 2);
    local.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_burst_of_starts_leaves_no_more_spares_than_a_single_one() {
    let (local, _state, mark) = marked_backend("burst").await;
    let local = Arc::new(local);
    let mut starting = JoinSet::new();
    for index in 0..20 {
        let local = Arc::clone(&local);
        starting.spawn(async move { start(&local, spec(&format!("burst-{index}"))).await });
    }
    let sandboxes: Vec<Box<dyn Sandbox>> = starting.join_all().await;
    for sandbox in &sandboxes {
        assert_eq!(output(&**sandbox, "hostname").await, sandbox.id());
    }
    assert!(spares(&mark).len() <= 2);
    for sandbox in sandboxes {
        sandbox.close().await.unwrap();
    }
    local.shutdown().await.unwrap();
    assert_eq!(marked(&mark).len(), 0);
}

#[tokio::test]
async fn dropping_the_backend_ends_those_that_wait() {
    let (local, _state, mark) = marked_backend("dropped-backend").await;
    drop(start(&local, spec("first")).await);
    let waiting = all_spares(&mark).await;
    drop(local);
    wait_for_end(&waiting);
}

/// Not a test by itself: runs in its own mount namespace, so that its mount affects nobody else.
#[tokio::test]
#[ignore = "started by what_was_mounted_after_a_spare_was_made_is_seen"]
async fn mounts_a_disk_between_two_starts() {
    let Some(disk) = std::env::var_os("ROLLCAGE_TEST_DISK").map(PathBuf::from) else {
        return;
    };
    let (local, _state, mark) = marked_backend("disk").await;
    let first = start(&local, spec("first")).await;
    all_spares(&mark).await;
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "disk"])
        .arg(&disk)
        .status();
    assert!(mounted.unwrap().success());
    std::fs::write(disk.join("file"), "new").unwrap();
    let target = PathBuf::from("/mnt/disk");
    let mounts = vec![Mount {
        content: disk.into(),
        target,
    }];
    let second = Spec {
        mounts,
        ..spec("second")
    };
    let second = start(&local, second).await;
    assert_eq!(output(&*second, "cat /mnt/disk/file").await, "new");
    drop((first, second));
    local.shutdown().await.unwrap();
}

#[test]
fn what_was_mounted_after_a_spare_was_made_is_seen() {
    if !is_root() {
        // Mounting requires root.
        return;
    }
    let disk = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "spare::mounts_a_disk_between_two_starts"])
        .args(["--ignored", "--nocapture"])
        .env("ROLLCAGE_TEST_DISK", disk.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}
