//! Files that outlive their sandbox.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use rollcage_sandbox::guest::{TESTS, USER_ID, VERIFIER_LOGS};
use rollcage_sandbox::{Error, Limits, Sandbox, Sandboxes, Snapshot, Spec};

use crate::kit::{Backend, backend, bash, is_root, output, root_bash, spec, start, text};
use crate::verifier::ATTACKS;

/// A layer with files that a sandbox can change and remove.
fn layer() -> tempfile::TempDir {
    let layer = tempfile::tempdir().unwrap();
    let files = [
        "opt/tools/one",
        "opt/tools/two",
        "opt/other/deep/file",
        "home/user/.config/agent",
        "home/user/.config/other",
        "home/user/workdir/kept",
        "home/user/workdir/changed",
        "home/user/workdir/removed",
        "home/user/workdir/tree/a",
        "home/user/workdir/tree/b/c",
    ];
    let set = |path: &Path, mode, is_users: bool| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        if is_users && is_root() {
            chown(path, Some(USER_ID), Some(USER_ID)).unwrap();
        }
    };
    for file in files {
        let path = layer.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, file).unwrap();
        set(&path, 0o644, file.starts_with("home/user"));
        for directory in Path::new(file).ancestors().skip(1) {
            let path = layer.path().join(directory);
            set(&path, 0o755, directory.starts_with("home/user"));
        }
    }
    layer
}

fn with_layer(layer: &tempfile::TempDir, snapshot: Option<Snapshot>) -> Spec {
    Spec {
        layers: vec![layer.path().to_owned().into()],
        snapshot,
        ..spec("snapshot")
    }
}

const BY_THE_USER: &str = "set -e; cd ~user/workdir; echo new > new; echo more >> changed; rm removed; \
    rm -r tree; mkdir tree; echo again > tree/again; mkdir -p deep/er; echo x > deep/er/file; \
    chmod 640 new; chmod 1750 deep; chmod 4755 deep/er/file; ln -s /nowhere link; ln new hard; \
    echo secret > secret; chmod 000 secret; mkdir locked; echo in > locked/in; chmod 000 locked; \
    mkfifo pipe; touch -d @86400 new; echo t > /tmp/t; echo v > /var/tmp/v; \
    mv ~user/.config/other ~user/.config/moved; : > \"$(printf 'a\\nb \\xff')\"; mkdir empty; \
    mkdir ~user/\"$(printf '%0150d' 0)\"; touch ~user/\"$(printf '%0150d' 0)\"/\"$(printf '%0200d' 1)\"";
const BY_ROOT: &str = "set -e; echo x > /opt/new; rm /opt/tools/one; chown 1000:5 /opt/tools/two; rm -r /srv; \
    echo tool > /usr/local/bin/tool; chmod 755 /usr/local/bin/tool; rm /usr/bin/env; mkdir /usr/share/made; \
    mv /opt/other /opt/moved; echo y > /etc/own; echo r > ~user/workdir/roots; \
    rm -rf /var/cache; mkdir /var/cache; touch /var/cache/fresh";
/// A script that prints everything that could differ.
const LOOK: &str = "cd /; find home opt srv tmp var usr/local usr/share/made usr/bin/env etc/own \
    -path home/user/workdir/pipe -o -type d -printf '%p d %m %U %G\\n' -o -type l -printf '%p l %U %G %l\\n' -o \
    -printf '%p %y %m %U %G %n %s %Ts\\n' 2>&1 | sort; \
    find home/user/workdir -type f -exec sha256sum {} + 2>&1 | sort; find opt -type f | sort | xargs cat";

async fn look(sandbox: &dyn Sandbox) -> String {
    let looked = match is_root() {
        true => root_bash(sandbox, LOOK).await,
        false => bash(sandbox, LOOK).await,
    };
    text(&looked.stdout)
}

async fn worked_in(backend: &Backend, layer: &tempfile::TempDir) -> Box<dyn Sandbox> {
    let sandbox = start(backend, with_layer(layer, None)).await;
    let mut done = vec![bash(&*sandbox, BY_THE_USER).await];
    if is_root() {
        done.push(root_bash(&*sandbox, BY_ROOT).await);
    }
    for finished in done {
        assert!(finished.exit.success(), "{finished:?}");
    }
    sandbox
}

#[tokio::test]
async fn a_sandbox_started_from_a_snapshot_has_the_same_files() {
    let (backend, layer) = (backend().await, layer());
    let first = worked_in(&backend, &layer).await;
    let before = look(&*first).await;
    assert!(before.contains("workdir/deep/er/file"), "{before}");
    let snapshot = first.snapshot().await.unwrap();
    assert_eq!(look(&*first).await, before, "taking it changes nothing");
    first.close().await.unwrap();

    // Several at a time, and one from the snapshot of another.
    let from = |snapshot: &Snapshot| with_layer(&layer, Some(snapshot.clone()));
    let (second, third) = tokio::join!(
        start(&backend, from(&snapshot)),
        start(&backend, from(&snapshot))
    );
    let again = second.snapshot().await.unwrap();
    let fourth = start(&backend, from(&again)).await;
    for sandbox in [&second, &third, &fourth] {
        similar(&look(&**sandbox).await, &before);
        let checks = "cat changed new hard tree/again deep/er/file; ls -A tree; ! ls removed; readlink link; \
                      stat -c %Y new; test new -ef hard && echo linked; echo 1 > removed && cat removed";
        let expected =
            "home/user/workdir/changedmore\nnew\nnew\nagain\nx\nagain\n/nowhere\n86400\nlinked\n1";
        assert_eq!(output(&**sandbox, checks).await, expected);
    }
    assert_eq!(snapshot.kind(), "local");
    assert!(snapshot.bytes() > 0 && snapshot.bytes() < 1 << 20);
}

#[track_caller]
fn similar(got: &str, expected: &str) {
    for (got, expected) in got.lines().zip(expected.lines()) {
        assert_eq!(got, expected);
    }
    assert_eq!(got.lines().count(), expected.lines().count());
}

#[tokio::test]
async fn what_is_the_verifiers_is_neither_kept_nor_open_afterwards() {
    let backend = backend().await;
    let first = start(&backend, spec("first")).await;
    bash(&*first, "echo said > ~user/logs/agent/said").await;
    first.kill_all().await.unwrap();
    first.unseal(BTreeMap::new()).await.unwrap();
    for directory in [VERIFIER_LOGS, TESTS] {
        let path = format!("{directory}/secret");
        first.write_file(&path, 0o644, b"1".to_vec()).await.unwrap();
    }
    let snapshot = Some(first.snapshot().await.unwrap());
    let sandbox = start(
        &backend,
        Spec {
            snapshot,
            ..spec("second")
        },
    )
    .await;
    for attack in ATTACKS {
        assert!(!bash(&*sandbox, attack).await.exit.success(), "{attack}");
    }
    let left = "find ~user/logs ~user/tests -type f | wc -l; hostname; cat /etc/hostname";
    assert_eq!(output(&*sandbox, left).await, "0\nsecond\nsecond");
    sandbox.kill_all().await.unwrap();
    sandbox.unseal(BTreeMap::new()).await.unwrap();
    assert_eq!(
        output(&*sandbox, "echo 1 > ~user/tests/x; ls ~user/tests").await,
        "x"
    );
}

#[tokio::test]
async fn a_removed_or_replaced_work_directory_stays_so() {
    let (backend, layer) = (backend().await, layer());
    for has_layer in [false, true] {
        for (script, expected) in [
            ("rm -r ~user/workdir ~user/task", "missing"),
            ("rm -r ~user/workdir; echo x > ~user/workdir", "file"),
            ("rm -r ~user/workdir; ln -s /tmp ~user/workdir", "link"),
        ] {
            let spec = |snapshot| match has_layer {
                true => with_layer(&layer, snapshot),
                false => Spec {
                    snapshot,
                    ..spec("x")
                },
            };
            let first = start(&backend, spec(None)).await;
            assert!(bash(&*first, script).await.exit.success());
            let snapshot = first.snapshot().await.unwrap();
            let second = start(&backend, spec(Some(snapshot))).await;
            let look = "cd /; w=~user/workdir; if test -L $w; then echo link; elif test -f $w; then echo file; \
                        elif test -e $w; then echo directory; else echo missing; fi";
            let in_root = rollcage_sandbox::Command {
                cwd: "/".to_owned(),
                ..crate::kit::command(&["bash", "-c", look])
            };
            let looked = crate::kit::finish(&*second, in_root).await;
            assert_eq!(text(&looked.stdout), expected, "{script} {has_layer}");
        }
    }
}

#[tokio::test]
async fn a_snapshot_of_another_backend_or_too_large_is_refused() {
    let backend = backend().await;
    let foreign = Spec {
        snapshot: Some(Snapshot::new("other", 0, ())),
        ..spec("x")
    };
    let refused = backend.start(foreign).await.err();
    assert!(
        matches!(refused, Some(Error::Invalid { .. })),
        "{refused:?}"
    );
    let small = Spec {
        limits: Limits {
            disk_bytes: 1 << 20,
            ..Limits::default()
        },
        ..spec("x")
    };
    let sandbox = start(&backend, small).await;
    bash(&*sandbox, "truncate -s 600M hole").await;
    let refused = sandbox.snapshot().await.err();
    assert!(
        matches!(refused, Some(Error::TooLarge { .. })),
        "{refused:?}"
    );
    assert_eq!(output(&*sandbox, "rm hole; echo fine").await, "fine");
    assert!(sandbox.snapshot().await.is_ok());
}

#[tokio::test]
async fn a_snapshot_in_a_file_starts_the_same_sandbox() {
    let (backend, layer) = (backend().await, layer());
    let sandbox = worked_in(&backend, &layer).await;
    let expected = look(&*sandbox).await;
    let snapshot = sandbox.snapshot().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    // A second time, over what is there.
    for _ in 0..2 {
        backend.save_snapshot(&snapshot, &path).await.unwrap();
    }
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    drop((sandbox, snapshot));
    let loaded = backend.load_snapshot(&path).await.unwrap();
    assert_eq!(loaded.bytes(), metadata.len());
    let other = start(&backend, with_layer(&layer, Some(loaded))).await;
    similar(&look(&*other).await, &expected);
    assert!(backend.load_snapshot(folder.path()).await.is_err());
}
