//! Archives that a sandbox is started with.

use rollcage_sandbox::{Archive, Content, Error, Limits, Mount, Sandboxes, Spec};
use tar::{Builder, EntryType, Header};

use crate::kit::{backend, chain, is_root, output, sandbox, spec, start};

struct Tar(Builder<Vec<u8>>);

impl Tar {
    fn new() -> Tar {
        Tar(Builder::new(Vec::new()))
    }

    /// Names are written unchecked, wherever they lead.
    fn add(mut self, kind: EntryType, name: &str, link: &str, content: &[u8]) -> Tar {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(if kind == EntryType::Directory {
            0o755
        } else {
            0o4754
        });
        header.set_uid(4242);
        header.set_gid(4242);
        header.set_mtime(86_400);
        header.set_size(content.len() as u64);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.append(&header, content).unwrap();
        self
    }

    fn file(self, name: &str, content: &str) -> Tar {
        self.add(EntryType::Regular, name, "", content.as_bytes())
    }

    fn content(self) -> Content {
        Content::Archive(Archive::Bytes(self.0.into_inner().unwrap().into()))
    }
}

fn layer(content: Content) -> Spec {
    Spec {
        layers: vec![content],
        ..spec("content")
    }
}

#[tokio::test]
async fn an_archive_is_a_layer_whose_home_is_the_users() {
    let archive = Tar::new()
        .add(EntryType::Directory, "./", "", b"")
        .add(EntryType::Directory, "./usr/", "", b"")
        .file("./usr/share/rollcage-test", "in usr")
        .file("opt/tool", "tool")
        .file("home/user/.config/agent", "settings")
        .file("home/user/workdir/a", "first")
        .file("home/user/workdir/a", "second")
        .add(
            EntryType::Symlink,
            "home/user/workdir/link",
            "/etc/passwd",
            b"",
        )
        .add(
            EntryType::Link,
            "home/user/workdir/hard",
            "home/user/workdir/a",
            b"",
        )
        .content();
    let backend = backend().await;
    let sandbox = start(&backend, layer(archive)).await;
    let script = "cat /usr/share/rollcage-test ~user/.config/agent a hard; readlink link; \
                  stat -c '%n %U %a %Y' a ~/.config; touch ~/.config/new; echo more >> a; cat hard";
    let agent = "/home/user/.config";
    let told = output(&*sandbox, &format!("export HOME=/home/user; {script}")).await;
    let (before, after) = told.split_once("\n").unwrap();
    assert_eq!(before, "in usrsettingssecondsecond/etc/passwd");
    let mut lines = after.lines();
    assert_eq!(lines.next(), Some("a user 754 86400"));
    assert!(
        lines
            .next()
            .unwrap()
            .starts_with(&format!("{agent} user 755"))
    );
    let owner = if is_root() { "root" } else { "user" };
    let script = "stat -c %U /usr /opt/tool /usr/share/rollcage-test | sort -u";
    assert_eq!(output(&*sandbox, script).await, owner);
    assert!(
        !crate::kit::bash(&*sandbox, "touch /usr/bin/new /opt/new")
            .await
            .exit
            .success()
    );
}

#[tokio::test]
async fn an_archive_is_shown_read_only_also_from_a_file() {
    let Content::Archive(Archive::Bytes(bytes)) = Tar::new()
        .file("bin/tool", "#!/bin/sh\necho works\n")
        .content()
    else {
        unreachable!();
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("content.tar");
    std::fs::write(&path, &bytes).unwrap();
    let backend = backend().await;
    let shown = |archive, target: &str| Mount {
        content: Content::Archive(archive),
        target: target.into(),
    };
    let spec = Spec {
        mounts: vec![
            shown(Archive::Bytes(bytes), "/opt/one"),
            shown(Archive::File(path), "/home/user/two"),
        ],
        ..spec("content")
    };
    let sandbox = start(&backend, spec).await;
    let script = "sh /opt/one/bin/tool; sh ~user/two/bin/tool; touch /opt/one/x ~user/two/x 2>&1 | \
                  grep -c 'Read-only file system'";
    assert_eq!(output(&*sandbox, script).await, "works\nworks\n2");
}

#[tokio::test]
async fn an_archive_that_leads_elsewhere_is_refused() {
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    std::fs::write(&victim, "untouched").unwrap();
    let [directory, victim] = [outside.path().to_str().unwrap(), victim.to_str().unwrap()];
    let through = |kind, target: &str| {
        Tar::new()
            .add(kind, "x", target, b"")
            .file("x/victim", "hit")
    };
    let hostile = [
        Tar::new().file("../../../../x", "hit"),
        Tar::new().file("a/../../x", "hit"),
        Tar::new().file(victim, "hit"),
        through(EntryType::Symlink, directory),
        Tar::new()
            .add(EntryType::Symlink, "x", victim, b"")
            .add(EntryType::Link, "y", "x", b""),
        Tar::new().add(EntryType::Link, "x", victim, b""),
        Tar::new().add(EntryType::Link, "x", "../../etc/passwd", b""),
        Tar::new().add(EntryType::Char, "x", "", b""),
        Tar::new().add(EntryType::Fifo, "x", "", b""),
        Tar::new().file("x", "").file("x/y", ""),
        Tar::new()
            .add(EntryType::Directory, "x", "", b"")
            .file("x", "hit"),
    ];
    let backend = backend().await;
    for (index, archive) in hostile.into_iter().enumerate() {
        let refused = backend.start(layer(archive.content())).await.err();
        assert!(
            matches!(refused, Some(Error::Invalid { .. })),
            "{index}: {refused:?}"
        );
    }
    // A symbolic link may point anywhere: it is resolved inside.
    let link = Tar::new().add(EntryType::Symlink, "home/user/workdir/x", victim, b"");
    let sandbox = start(&backend, layer(link.content())).await;
    assert_eq!(
        output(&*sandbox, "cat x 2>&1 | grep -c 'No such file'").await,
        "1"
    );
    assert_eq!(std::fs::read_to_string(victim).unwrap(), "untouched");
}

#[tokio::test]
async fn an_archive_must_fit_and_be_whole() {
    let backend = backend().await;
    let small = |content| Spec {
        limits: Limits {
            disk_bytes: 1 << 20,
            ..Limits::default()
        },
        ..layer(content)
    };
    let large = Tar::new().file("large", &"x".repeat(2 << 20)).content();
    let refused = backend.start(small(large)).await.err();
    assert!(
        matches!(refused, Some(Error::Invalid { .. })),
        "{refused:?}"
    );
    // It would fit alone, but not beside the existing files.
    let full = Tar::new()
        .file("large", &"x".repeat((1 << 20) - 4096))
        .content();
    let refused = chain(&backend.start(small(full)).await.err().unwrap());
    assert_eq!(
        refused,
        "start sandbox: unpack large of an archive: No space left on device (os error 28)"
    );
    for bytes in [&b"\x1f\x8b not a tar file"[..], &[b'x'; 2048], &[]] {
        let archive = Content::Archive(Archive::Bytes(bytes.into()));
        let result = backend.start(layer(archive)).await;
        assert_eq!(
            result.is_err(),
            !bytes.is_empty(),
            "an empty archive is one"
        );
    }
    let (_backend, sandbox) = sandbox().await;
    assert_eq!(output(&*sandbox, "echo fine").await, "fine");
}
