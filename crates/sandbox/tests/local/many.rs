//! Many files at once, in and out, including those that an agent prepared to mislead us.

use rollcage_sandbox::{Error, FileStream, Sandbox, StreamedHead, StreamedKind};

use crate::kit::{bash, chain, output, sandbox};

fn entry(builder: &mut tar::Builder<Vec<u8>>, path: &str, mode: u32, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_mode(mode);
    header.set_size(content.len() as u64);
    // By hand: the crate itself refuses names that lead out.
    let name = &mut header.as_old_mut().name;
    name[..path.len()].copy_from_slice(path.as_bytes());
    header.set_cksum();
    builder.append(&header, content).unwrap();
}

fn link(builder: &mut tar::Builder<Vec<u8>>, path: &str, target: &str) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_mode(0o777);
    header.set_size(0);
    builder.append_link(&mut header, path, target).unwrap();
}

/// The whole stream: what each path is, and its content.
async fn read(sandbox: &dyn Sandbox, paths: &[&str]) -> Vec<(StreamedKind, Vec<u8>)> {
    let asked = paths.iter().map(|&path| path.to_owned()).collect();
    let mut stream: FileStream = sandbox
        .read_files("/home/user/workdir", asked)
        .await
        .unwrap();
    let mut files = Vec::new();
    for _ in paths {
        let StreamedHead { kind, .. } = stream.next().await.unwrap();
        let (mut content, mut buffer) = (Vec::new(), [0; 7000]);
        loop {
            match stream.read(&mut buffer).await.unwrap() {
                0 => break,
                count => content.extend(&buffer[..count]),
            }
        }
        files.push((kind, content));
    }
    assert!(stream.next().await.is_err(), "there is no other file");
    files
}

#[tokio::test]
async fn an_archive_is_unpacked_as_the_user() {
    let (_backend, sandbox) = sandbox().await;
    bash(&*sandbox, "mkdir data; echo old > data/a; ln -s /etc to").await;
    let mut archive = tar::Builder::new(Vec::new());
    entry(
        &mut archive,
        "home/user/workdir/data/a",
        0o644,
        b"\0new\xff",
    );
    entry(
        &mut archive,
        "home/user/workdir/data/run",
        0o755,
        b"#!/bin/sh\necho ran\n",
    );
    link(&mut archive, "home/user/workdir/data/link", "a");
    sandbox
        .unpack(archive.into_inner().unwrap(), "/")
        .await
        .unwrap();
    assert_eq!(
        output(
            &*sandbox,
            "stat -c '%a %U %n' data data/a data/run; readlink data/link; data/run; od -An -tx1 data/a"
        )
        .await,
        "755 user data\n644 user data/a\n755 user data/run\na\nran\n 00 6e 65 77 ff"
    );
    for (path, why) in [
        ("../x", "it leads out of the archive"),
        (
            "home/user/workdir/to/x",
            "it lies below something that is not a directory",
        ),
        ("usr/bin/x", "usr/bin/x"),
    ] {
        let mut archive = tar::Builder::new(Vec::new());
        entry(&mut archive, path, 0o644, b"x");
        let archive = archive.into_inner().unwrap();
        let error = sandbox.unpack(archive, "/").await.unwrap_err();
        assert!(chain(&error).contains(why), "{}", chain(&error));
    }
}

#[tokio::test]
async fn files_are_read_in_order_and_links_lead_nowhere() {
    let (_backend, sandbox) = sandbox().await;
    bash(
        &*sandbox,
        "mkdir -p a/b; head -c 300000 /dev/zero > a/b/large; printf x > run; chmod 755 run; ln -s /etc etc; \
         ln -s a/b/large link; mkfifo pipe; printf y > locked; chmod 0 locked",
    )
    .await;
    let paths = [
        "a/b/large",
        "run",
        "link",
        "etc/passwd",
        "pipe",
        "locked",
        "../../../etc/passwd",
        "/etc/passwd",
        "none",
        "a",
        "run",
    ];
    let nothing = (StreamedKind::Nothing, Vec::new());
    let program = (StreamedKind::Program, b"x".to_vec());
    assert_eq!(
        read(&*sandbox, &paths).await,
        [
            (StreamedKind::File, vec![0; 300_000]),
            program.clone(),
            (StreamedKind::Link, b"a/b/large".to_vec()),
            nothing.clone(),
            nothing.clone(),
            nothing.clone(),
            nothing.clone(),
            nothing.clone(),
            nothing.clone(),
            nothing,
            program,
        ]
    );
}

#[tokio::test]
async fn a_stream_tells_why_it_broke_off() {
    let (_backend, sandbox) = sandbox().await;
    let asked = vec!["a".to_owned()];
    let mut stream = sandbox.read_files("/nowhere", asked.clone()).await.unwrap();
    let error = stream.next().await.unwrap_err();
    assert!(
        matches!(&error, Error::File { path, .. } if path == "/nowhere"),
        "{error:?}"
    );
    // What is not read is skipped.
    bash(&*sandbox, "head -c 3000000 /dev/zero > a; printf b > b").await;
    let asked = vec!["a".to_owned(), "b".to_owned()];
    let mut stream = sandbox.read_files("", asked).await.unwrap();
    assert_eq!(stream.next().await.unwrap().bytes, 3_000_000);
    assert_eq!(stream.next().await.unwrap().bytes, 1);
}
