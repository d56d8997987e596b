//! Writing, reading and listing files, including those that an agent prepared to mislead us.

use std::io::ErrorKind;

use rollcage_sandbox::{DirectoryEntry, EntryKind, Error, Mount, Spec};

use crate::kit::{backend, bash, is_root, output, sandbox, spec, start};

fn kind(error: &Error) -> Option<ErrorKind> {
    match error {
        Error::File { source, .. } => Some(source.kind()),
        _ => None,
    }
}

#[tokio::test]
async fn a_large_file_survives_the_way_in_and_out() {
    let (_backend, sandbox) = sandbox().await;
    let content: Vec<u8> = (0..20_000_000_u32)
        .map(|index| (index % 251) as u8)
        .collect();
    sandbox
        .write_file("deep/er/file", 0o750, content.clone())
        .await
        .unwrap();
    assert_eq!(
        output(&*sandbox, "stat -c '%a %U %s' deep/er/file deep").await,
        "750 user 20000000\n755 user 60"
    );
    assert!(
        sandbox
            .read_file("/home/user/workdir/deep/er/file", 20_000_000)
            .await
            .unwrap()
            == content
    );
    let refused = sandbox
        .read_file("deep/er/file", 19_999_999)
        .await
        .unwrap_err();
    assert!(
        matches!(
            refused,
            Error::TooLarge {
                bytes_max: 19_999_999,
                ..
            }
        ),
        "{refused:?}"
    );
}

#[tokio::test]
async fn writing_replaces_a_file_and_what_it_links_to_stays() {
    let (_backend, sandbox) = sandbox().await;
    bash(
        &*sandbox,
        "echo kept > target; ln -s target link; ln target hard; mkdir directory",
    )
    .await;
    for name in ["link", "hard"] {
        sandbox
            .write_file(name, 0o644, b"new".to_vec())
            .await
            .unwrap();
    }
    assert_eq!(
        output(&*sandbox, "cat target link hard; stat -c %F link").await,
        "kept\nnewnewregular file"
    );
    let refused = sandbox
        .write_file("directory", 0o644, Vec::new())
        .await
        .unwrap_err();
    assert_eq!(kind(&refused), Some(ErrorKind::IsADirectory), "{refused:?}");
    let refused = sandbox
        .write_file("/etc/passwd", 0o644, Vec::new())
        .await
        .unwrap_err();
    let expected = if is_root() {
        ErrorKind::PermissionDenied
    } else {
        ErrorKind::ReadOnlyFilesystem
    };
    assert_eq!(kind(&refused), Some(expected), "{refused:?}");
}

#[tokio::test]
async fn reading_refuses_what_is_no_regular_file_without_waiting_for_it() {
    let (_backend, sandbox) = sandbox().await;
    bash(
        &*sandbox,
        "mkfifo fifo; ln -s fifo to-fifo; ln -s /dev/zero zero; ln -s loop loop; mkdir directory",
    )
    .await;
    for name in ["fifo", "to-fifo", "zero", "directory", "/dev/tty"] {
        let refused = sandbox.read_file(name, 10).await.unwrap_err();
        let no_terminal = name == "/dev/tty" && matches!(refused, Error::File { .. });
        assert!(
            matches!(refused, Error::NotRegular { .. }) || no_terminal,
            "{name}: {refused:?}"
        );
    }
    assert!(matches!(
        sandbox.read_file("loop", 10).await,
        Err(Error::File { .. })
    ));
    assert_eq!(
        kind(&sandbox.read_file("absent", 10).await.unwrap_err()),
        Some(ErrorKind::NotFound)
    );
    // Claims to be empty and is not.
    assert!(matches!(
        sandbox.read_file("/proc/self/status", 10).await,
        Err(Error::TooLarge { .. })
    ));
}

#[tokio::test]
async fn a_link_leads_nowhere_that_the_agent_could_not_go() {
    let (_backend, sandbox) = sandbox().await;
    bash(
        &*sandbox,
        "ln -s /proc/1/root/etc/shadow one; ln -s /proc/1/environ two; ln -s /root/x three",
    )
    .await;
    for name in ["one", "two", "three"] {
        let refused = sandbox.read_file(name, 1000).await.unwrap_err();
        // Init's own files are not even visible.
        let is_hidden = name != "three" || !is_root();
        let expected = if is_hidden {
            ErrorKind::NotFound
        } else {
            ErrorKind::PermissionDenied
        };
        assert_eq!(kind(&refused), Some(expected), "{name}: {refused:?}");
    }
}

#[tokio::test]
async fn a_listing_is_sorted_bounded_and_follows_no_links() {
    let (_backend, sandbox) = sandbox().await;
    let script = "mkdir -p a/b/c && echo 123 > a/b/c/f && ln -s / link && mkfifo fifo && touch a-b $'bad\\xff'";
    bash(&*sandbox, script).await;
    let entry = |path: &str, kind, bytes| DirectoryEntry {
        path: path.to_owned(),
        kind,
        bytes,
    };
    let sizes = |entries: Vec<DirectoryEntry>| -> Vec<DirectoryEntry> {
        // The sizes of directories and links depend on the file system.
        let bytes = |entry: &DirectoryEntry| {
            if entry.kind == EntryKind::File {
                entry.bytes
            } else {
                0
            }
        };
        entries
            .into_iter()
            .map(|entry| DirectoryEntry {
                bytes: bytes(&entry),
                ..entry
            })
            .collect()
    };
    let all = vec![
        entry("a", EntryKind::Directory, 0),
        entry("a-b", EntryKind::File, 0),
        entry("a/b", EntryKind::Directory, 0),
        entry("a/b/c", EntryKind::Directory, 0),
        entry("a/b/c/f", EntryKind::File, 4),
        entry("bad\u{fffd}", EntryKind::File, 0),
        entry("fifo", EntryKind::Other, 0),
        entry("link", EntryKind::Symlink, 0),
    ];
    assert_eq!(
        sizes(sandbox.list("/home/user/workdir", 10, 100).await.unwrap()),
        all
    );
    assert_eq!(
        sandbox
            .list("/home/user/workdir", 1, 100)
            .await
            .unwrap()
            .len(),
        5
    );
    assert_eq!(
        sandbox
            .list("/home/user/workdir", 10, 3)
            .await
            .unwrap()
            .len(),
        3
    );
    assert!(
        matches!(sandbox.list("link", 1, 10).await, Err(Error::File { .. })),
        "a link is no directory"
    );
}

#[tokio::test]
async fn layers_and_mounts_show_up_where_they_should() {
    let host = tempfile::tempdir().unwrap();
    let make = |path: &str, content: &str| {
        let path = host.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    };
    make("upper/opt/tool", "upper");
    make("lower/opt/tool", "lower");
    make("lower/opt/other", "lower");
    make("lower/usr/share/rollcage-test", "in usr");
    make("lower/home/user/.config/agent", "settings");
    make("shared/data/file", "shared");
    let backend = backend().await;
    let mount = |source: &str, target: &str| Mount {
        content: host.path().join(source).into(),
        target: target.into(),
    };
    let spec = Spec {
        layers: vec![
            host.path().join("upper").into(),
            host.path().join("lower").into(),
        ],
        mounts: vec![
            mount("shared", "/opt/shared"),
            mount("shared/data/file", "/home/user/.local/share/one"),
        ],
        ..spec("layers")
    };
    let sandbox = start(&backend, spec).await;
    let script = "cat /opt/tool /opt/other /usr/share/rollcage-test ~user/.config/agent /opt/shared/data/file ~user/.local/share/one";
    assert_eq!(
        output(&*sandbox, script).await,
        "upperlowerin ususettingssharedshared".replace("ususe", "usrse")
    );
    let script =
        "touch /opt/shared/new; echo x > ~user/.local/share/one; chmod 777 /opt/shared/data/file";
    let finished = bash(&*sandbox, script).await;
    assert_eq!(
        crate::kit::text(&finished.stderr)
            .matches("Read-only file system")
            .count(),
        3,
        "{finished:?}"
    );
    assert_eq!(
        output(&*sandbox, "mkdir ~user/.local/bin && ls -A ~user/.local").await,
        "bin\nshare"
    );
}

#[tokio::test]
async fn files_are_reachable_even_if_the_work_directory_is_gone() {
    let (_backend, sandbox) = sandbox().await;
    bash(&*sandbox, "rmdir /home/user/workdir").await;
    sandbox
        .write_file("/home/user/note", 0o600, b"here".to_vec())
        .await
        .unwrap();
    assert_eq!(
        sandbox.read_file("/home/user/note", 10).await.unwrap(),
        b"here"
    );
    assert_eq!(
        sandbox.list("/home/user/task", 1, 10).await.unwrap(),
        Vec::new()
    );
}
