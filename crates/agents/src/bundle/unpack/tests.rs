//! Ordinary archives, and hostile ones.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

use super::{UnpackState, unpack, unpacked_bytes};

/// One entry: type, raw path, mode, and contents or link target.
type TarEntry<'a> = (EntryType, &'a str, u32, &'a str);

const FILE: EntryType = EntryType::Regular;
const LINK: EntryType = EntryType::Symlink;
const HARD: EntryType = EntryType::Link;

fn archive(directory: &Path, lines: &[TarEntry<'_>]) -> PathBuf {
    let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (kind, path, mode, text) in lines {
        let mut header = Header::new_ustar();
        // Written raw: the tar crate would refuse to make the bad ones.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        let data = if *kind == FILE { text.as_bytes() } else { b"" };
        if *kind == LINK || *kind == HARD {
            header.as_old_mut().linkname[..text.len()].copy_from_slice(text.as_bytes());
        }
        header.set_size(data.len() as u64);
        header.set_cksum();
        builder.append(&header, data).unwrap();
    }
    let path = directory.join("package.tgz");
    std::fs::write(&path, builder.into_inner().unwrap().finish().unwrap()).unwrap();
    path
}

#[track_caller]
fn check_refused(lines: &[TarEntry<'_>], expect: &str) {
    let outer = tempfile::tempdir().unwrap();
    // Nested, so that a path that escapes by a level or two still lands in our own directory.
    let directory = outer.path().join("a/b");
    std::fs::create_dir_all(&directory).unwrap();
    let path = archive(&directory, lines);
    let result = unpack(&path, &directory.join("tree"), &UnpackState::default());
    let error = result.unwrap_err().to_string();
    assert!(error.contains(expect), "{error}");
    let names = |path: &Path| {
        let entries = std::fs::read_dir(path).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(outer.path()), ["a"]);
    assert_eq!(names(&outer.path().join("a")), ["b"]);
    assert_eq!(names(&directory), ["package.tgz", "tree"]);
}

#[test]
fn files_keep_their_place_and_whether_they_run() {
    let directory = tempfile::tempdir().unwrap();
    let path = archive(
        directory.path(),
        &[
            (EntryType::Directory, "package/", 0o700, ""),
            (FILE, "package/package.json", 0o600, "{}"),
            (FILE, "package/bin/program", 0o4711, "run me"),
            (LINK, "package/bin/alias", 0o777, "program"),
            (LINK, "package/up", 0o777, "bin/../package.json"),
            (HARD, "package/same", 0o644, "package/bin/program"),
        ],
    );
    let tree = directory.path().join("tree");
    let shared = UnpackState::default();
    assert_eq!(unpack(&path, &tree, &shared).unwrap(), 8);
    assert_eq!(shared.bytes.load(Ordering::Relaxed), 8);
    let mode = |path: &str| {
        std::fs::metadata(tree.join(path))
            .unwrap()
            .permissions()
            .mode()
    };
    assert_eq!(mode("") & 0o7777, 0o755);
    assert_eq!(mode("bin") & 0o7777, 0o755);
    assert_eq!(mode("package.json") & 0o7777, 0o644);
    assert_eq!(mode("bin/program") & 0o7777, 0o755);
    let text = |path: &str| std::fs::read_to_string(tree.join(path)).unwrap();
    assert_eq!(text("bin/alias"), "run me");
    assert_eq!(text("up"), "{}");
    assert_eq!(text("same"), "run me");
    assert!(unpacked_bytes(&path).unwrap() >= 8);
}

#[test]
fn another_leading_directory_is_stripped_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = archive(directory.path(), &[(FILE, "./opencode/bin/x", 0o755, "x")]);
    let tree = directory.path().join("tree");
    unpack(&path, &tree, &UnpackState::default()).unwrap();
    assert!(tree.join("bin/x").is_file());
}

#[test]
fn paths_out_of_the_bundle_are_refused() {
    let outside = "outside of the bundle";
    check_refused(&[(FILE, "../evil", 0o644, "x")], outside);
    check_refused(&[(FILE, "package/../../evil", 0o644, "x")], outside);
    check_refused(&[(FILE, "package/a/../b", 0o644, "x")], outside);
    check_refused(&[(FILE, "/tmp/rollcage-evil", 0o644, "x")], outside);
    assert!(!Path::new("/tmp/rollcage-evil").exists());
}

#[test]
fn links_out_of_the_bundle_are_refused() {
    let out = "links out of the bundle";
    check_refused(&[(LINK, "package/l", 0o777, "/etc/passwd")], out);
    check_refused(&[(LINK, "package/l", 0o777, "../x")], out);
    check_refused(&[(LINK, "package/a/l", 0o777, "../../x")], out);
    check_refused(&[(LINK, "package/l", 0o777, "nowhere")], out);
    check_refused(&[(HARD, "package/l", 0o644, "package/../../x")], out);
    check_refused(&[(HARD, "package/l", 0o644, "/etc/passwd")], "link");
}

#[test]
fn links_through_links_are_followed_to_their_end() {
    // Each target stays inside; together they lead one directory out.
    let lines = [
        (FILE, "package/a/file", 0o644, "x"),
        (LINK, "package/a/b", 0o777, ".."),
        (LINK, "package/c", 0o777, "a/b/.."),
    ];
    check_refused(&lines, "links out of the bundle");
}

#[test]
fn nothing_is_written_through_a_link() {
    let lines = [
        (LINK, "package/d", 0o777, "e"),
        (FILE, "package/e/f", 0o644, "x"),
        (FILE, "package/d/f", 0o644, "y"),
    ];
    check_refused(&lines, "link");
    let lines = [
        (LINK, "package/a/b", 0o777, ".."),
        (LINK, "package/c", 0o777, "a/b/.."),
        (LINK, "package/c/evil", 0o777, "x"),
    ];
    check_refused(&lines, "link");
}

#[test]
fn devices_and_pipes_are_refused() {
    let reason = "neither file, directory nor link";
    check_refused(&[(EntryType::Char, "package/null", 0o666, "")], reason);
    check_refused(&[(EntryType::Block, "package/sda", 0o666, "")], reason);
    check_refused(&[(EntryType::Fifo, "package/pipe", 0o666, "")], reason);
}

#[test]
fn an_archive_that_is_none_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("package.tgz");
    std::fs::write(&path, "<html>welcome to the hotel wifi</html>").unwrap();
    let error = unpack(
        &path,
        &directory.path().join("tree"),
        &UnpackState::default(),
    );
    assert_eq!(error.unwrap_err().to_string(), "read the archive");
}

#[test]
fn an_abandoned_unpacking_stops() {
    let directory = tempfile::tempdir().unwrap();
    let path = archive(directory.path(), &[(FILE, "package/x", 0o644, "x")]);
    let shared = UnpackState::default();
    shared.is_abandoned.store(true, Ordering::Relaxed);
    let error = unpack(&path, &directory.path().join("tree"), &shared);
    assert_eq!(error.unwrap_err().to_string(), "read the archive");
}
