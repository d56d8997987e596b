use std::os::unix::fs::MetadataExt;

use super::*;

fn sizes(directory: &Path) -> Vec<(String, u64)> {
    let entries = std::fs::read_dir(directory).unwrap().flatten();
    let mut sizes: Vec<_> = entries
        .map(|entry| {
            let metadata = entry.metadata().unwrap();
            assert_eq!(metadata.mode() & 0o7777, 0o600);
            (entry.file_name().into_string().unwrap(), metadata.len())
        })
        .collect();
    sizes.sort();
    sizes
}

#[test]
fn a_flood_leaves_three_files_of_limited_size() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("serve.log");
    let mut log = RotatingLog::new(path.clone(), 1000);
    for number in 0..1000 {
        log.write(format!("line {number:04}\n").as_bytes());
    }
    let names = ["serve.log", "serve.log.1", "serve.log.2"];
    let expect = names.map(|name| (name.to_owned(), 1000)).to_vec();
    assert_eq!(sizes(directory.path()), expect);
    assert_eq!(log.last_lines(2), "line 0998\nline 0999");
    let tail = read_tail(&path, 1500).unwrap();
    assert!(tail.starts_with("line 0850\n"), "{tail}");
    assert!(tail.ends_with("line 0999\n"), "{tail}");
    assert_eq!(tail.len(), 1500);
}

#[test]
fn a_log_of_earlier_goes_on_and_is_tightened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("serve.log");
    std::fs::write(&path, "earlier\n").unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    RotatingLog::new(path.clone(), 1000).write(b"now\n");
    assert_eq!(read_tail(&path, 100).unwrap(), "earlier\nnow\n");
    assert_eq!(sizes(directory.path()), [("serve.log".to_owned(), 12)]);
}

#[test]
fn what_cannot_be_written_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("folder");
    let path = folder.join("serve.log");
    let mut log = RotatingLog::new(path.clone(), 1000);
    log.write(b"12345\n");
    log.write(b"67890\n");
    assert_eq!(log.last_lines(9), "12345\n67890");
    std::fs::create_dir(&folder).unwrap();
    log.write(b"more\n");
    let text = read_tail(&path, 100).unwrap();
    assert_eq!(text, "\n[12 bytes could not be written here]\nmore\n");
}

#[test]
fn a_link_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("target");
    std::fs::write(&target, "theirs").unwrap();
    let path = directory.path().join("serve.log");
    std::os::unix::fs::symlink(&target, &path).unwrap();
    RotatingLog::new(path, 1000).write(b"ours");
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "theirs");
}

#[tokio::test]
async fn both_streams_are_read_to_their_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("serve.log");
    let log = RotatingLog::shared(path.clone());
    let streams = ["out\n", "err\n"].map(|text| Some(Box::new(text.as_bytes()) as Output));
    for stream in streams {
        drain(stream, Arc::clone(&log)).await;
    }
    assert_eq!(read_tail(&path, 100).unwrap(), "out\nerr\n");
}
