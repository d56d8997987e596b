use std::os::unix::fs::PermissionsExt;

use rollcage_model::id::RolloutId;
use rollcage_model::task::Task;

use super::*;

fn summary(task: &str) -> Summary {
    let task = Task {
        id: task.to_owned(),
        ..Task::default()
    };
    let result = crate::result::begin_abandoned(RolloutId::generate(), task);
    Summary::of(&result, Some("me".to_owned()))
}

fn index() -> (tempfile::TempDir, Index) {
    let home = tempfile::tempdir().unwrap();
    let index = Index::new(home.path());
    (home, index)
}

fn read_all(index: &Index) -> Appended {
    index.read_on(&mut Position::default()).unwrap()
}

#[test]
fn a_reader_gets_what_was_added_since_it_last_read() {
    let (_home, index) = index();
    let mut position = Position::default();
    assert_eq!(index.read_on(&mut position).unwrap(), Appended::default());
    let (first, second) = (summary("a"), summary("b"));
    index.append([&first]).unwrap();
    assert_eq!(index.read_on(&mut position).unwrap().summaries, [first]);
    index.append([&second]).unwrap();
    assert_eq!(index.read_on(&mut position).unwrap().summaries, [second]);
    assert_eq!(position, index.end());
    assert_eq!(index.read_on(&mut position).unwrap(), Appended::default());
}

#[test]
fn only_its_owner_can_read_it() {
    let (_home, index) = index();
    index.append([&summary("a")]).unwrap();
    let mode = |index: &Index| fs::metadata(&index.path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&index), 0o600);
    index
        .replace([&summary("b")], &mut Position::default())
        .unwrap();
    assert_eq!(mode(&index), 0o600);
}

#[test]
fn a_torn_line_is_passed_over_and_what_follows_is_not() {
    let (_home, index) = index();
    let (first, torn, last) = (summary("a"), summary("b"), summary("c"));
    index.append([&first, &torn]).unwrap();
    let text = fs::read(&index.path).unwrap();
    fs::write(&index.path, &text[..text.len() - 20]).unwrap();
    let mut position = Position::default();
    let read = index.read_on(&mut position).unwrap();
    assert_eq!(
        (read.summaries.len(), read.lines),
        (1, 1),
        "it may be half written"
    );
    index.append([&last]).unwrap();
    let read = index.read_on(&mut position).unwrap();
    assert_eq!((read.lines, &read.summaries), (2, &vec![last.clone()]));
    assert_eq!(read_all(&index).summaries, [first, last]);
}

#[test]
fn lines_of_another_version_are_none() {
    let (_home, index) = index();
    index.append([&summary("a")]).unwrap();
    let text = fs::read_to_string(&index.path).unwrap();
    let older = text.replace("\"version\":1", "\"version\":0");
    assert_ne!(older, text);
    fs::write(&index.path, older).unwrap();
    let read = read_all(&index);
    assert_eq!((read.lines, read.summaries), (1, Vec::new()));
}

#[test]
fn a_result_that_another_program_could_not_read_is_read_again() {
    let (_home, index) = index();
    let mut unreadable = summary("a");
    unreadable.row.ended = None;
    index.append([&unreadable]).unwrap();
    assert_eq!(read_all(&index).summaries, [unreadable]);
    let text = fs::read_to_string(&index.path).unwrap();
    let ours = format!("\"unreadable_by\":\"{PROGRAM}\"");
    let other = text.replace(&ours, "\"unreadable_by\":\"0.0.0\"");
    assert_ne!(other, text);
    fs::write(&index.path, other).unwrap();
    let read = read_all(&index);
    assert_eq!((read.lines, read.summaries), (1, Vec::new()));
}

#[test]
fn many_writers_write_whole_lines_while_it_is_replaced() {
    const WRITERS: usize = 4;
    const LINES: usize = 50;
    let (_home, index) = index();
    let (kept, added) = (summary("kept"), summary("added"));
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| (0..LINES).for_each(|_| index.append([&added]).unwrap()));
        }
        scope.spawn(|| {
            for _ in 0..LINES {
                index.replace([&kept], &mut Position::default()).unwrap();
            }
        });
    });
    index.append([&added]).unwrap();
    let read = read_all(&index);
    // Lines may be lost to a replacement, never torn or mixed.
    assert_eq!(read.lines, read.summaries.len());
    let known = [&kept, &added];
    assert!(read.summaries.iter().all(|found| known.contains(&found)));
    assert_eq!(read.summaries.last(), Some(&added));
}

#[test]
fn a_reader_starts_over_in_a_file_that_was_replaced_or_removed() {
    let (_home, index) = index();
    index.append([&summary("a"), &summary("b")]).unwrap();
    let mut position = Position::default();
    index.read_on(&mut position).unwrap();
    let only = summary("c");
    let mut written = Position::default();
    index.replace([&only], &mut written).unwrap();
    assert_eq!(written, index.end());
    let read = index.read_on(&mut position).unwrap();
    assert_eq!((read.is_new, read.summaries), (true, vec![only]));
    fs::remove_file(&index.path).unwrap();
    let read = index.read_on(&mut position).unwrap();
    assert_eq!((read.is_new, read.lines), (true, 0));
    assert_eq!(position, Position::default());
}
