use rollcage_model::record::{AgentInfo, EndpointInfo};

use super::*;

#[test]
fn what_a_killed_process_was_writing_goes_with_the_next_start() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    let id = RolloutId::generate();
    let record = store
        .begin(id, &Task::default(), &StartInfo::default(), None)
        .unwrap();
    let path = record.path().to_owned();
    let listed = || {
        let mut names: Vec<_> = fs::read_dir(&path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    // The state after kill -9: the marker exists and is not locked.
    drop(record);
    fs::rename(path.join("task.json"), path.join("task.partial")).unwrap();
    fs::write(path.join("owner.partial"), "").unwrap();
    let abandoned = store.abandoned().unwrap();
    assert_eq!(abandoned.len(), 1);
    assert_eq!(listed(), ["start.json"]);
}

#[test]
fn a_record_is_not_there_before_it_says_whose_it_is() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    // Enough records to hit the moments in which one begins.
    std::thread::scope(|scope| {
        let beginning = scope.spawn(|| {
            for _ in 0..100 {
                let (id, task) = (RolloutId::generate(), Task::default());
                let begun = store.begin(id, &task, &StartInfo::default(), Some("me"));
                drop(begun.unwrap());
            }
        });
        while !beginning.is_finished() {
            let listed = store.list(1).unwrap();
            assert!(listed.iter().all(|it| it.owner.as_deref() == Some("me")));
        }
    });
    assert_eq!(store.ids().unwrap().len(), 100);
}

#[test]
fn a_record_that_was_never_seen_goes_with_the_next_start() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    let id = RolloutId::generate();
    let begun = store.begin(id, &Task::default(), &StartInfo::default(), None);
    drop(begun.unwrap());
    fs::rename(store.directory(id), store.partial_directory(id)).unwrap();
    assert_eq!(store.ids().unwrap(), []);
    assert!(store.abandoned().unwrap().is_empty());
    for directory in ["rollouts", "running"] {
        let left = fs::read_dir(home.path().join(directory)).unwrap();
        assert_eq!(left.count(), 0, "{directory}");
    }
}

#[test]
fn a_record_whose_owner_cannot_be_read_is_shown_to_nobody_and_left_as_it_is() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    let id = RolloutId::generate();
    let begun = store.begin(id, &Task::default(), &StartInfo::default(), Some("me"));
    drop(begun.unwrap());
    // A directory is opened but not read, like a file on a disk that fails.
    let owner = store.directory(id).join(OWNER);
    fs::remove_file(&owner).unwrap();
    fs::create_dir(&owner).unwrap();
    assert_eq!(store.summary(id), None);
    assert_eq!(store.list(9).unwrap(), []);
    assert!(store.abandoned().unwrap().is_empty());
    // Another start may be able to read it.
    fs::remove_dir(&owner).unwrap();
    fs::write(&owner, "me").unwrap();
    let abandoned = store.abandoned().unwrap();
    assert_eq!(abandoned[0].2.owner.as_deref(), Some("me"));
}

#[test]
fn a_killed_processs_rollout_is_known_by_its_start() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    let id = RolloutId::generate();
    let start = StartInfo {
        started_at: 1234.5,
        agent: AgentInfo {
            name: "opencode".to_owned(),
            ..AgentInfo::default()
        },
        endpoint: EndpointInfo {
            model: "tiny".to_owned(),
            ..EndpointInfo::default()
        },
        group: "g".to_owned(),
        labels: [("step".to_owned(), "12".to_owned())].into(),
        mode: "black_box".to_owned(),
        mcp_names: None,
    };
    drop(store.begin(id, &Task::default(), &start, None).unwrap());
    let listed = store.summary(id).unwrap().row;
    assert_eq!(
        (listed.agent.as_str(), listed.model.as_str()),
        ("opencode", "tiny")
    );
    let abandoned = store.abandoned().unwrap();
    assert_eq!(StartInfo::read(abandoned[0].2.path()), Some(start));
}

#[test]
fn a_marker_removed_before_it_was_locked_is_created_again() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("mark");
    // Enough iterations to hit the moment between creating and locking.
    for _ in 0..300 {
        let marker = std::thread::scope(|scope| {
            let marking = scope.spawn(|| create_marker(&path).unwrap());
            while !marking.is_finished() {
                if let Ok(found) = File::options().write(true).open(&path)
                    && found.try_lock().is_ok()
                {
                    let _ = fs::remove_file(&path);
                }
            }
            marking.join().unwrap()
        });
        assert!(is_same_file(&marker, &path));
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_rollout_without_calls_is_committed_too() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    let id = RolloutId::generate();
    let begun = store.begin(id, &Task::default(), &StartInfo::default(), Some("me"));
    let record = begun.unwrap();
    assert_eq!(StartInfo::read(record.path()), Some(StartInfo::default()));
    let result = crate::result::begin_abandoned(id, Task::default());
    record.commit(&result).unwrap();
    assert_eq!(store.result(id).unwrap(), result);
    assert_eq!(store.summary(id).unwrap().owner.as_deref(), Some("me"));
    assert!(store.abandoned().unwrap().is_empty());
}

#[test]
fn an_unfinished_record_is_read_by_what_its_start_says() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    let id = RolloutId::generate();
    let start = StartInfo {
        mode: "black_box".to_owned(),
        ..StartInfo::default()
    };
    let _record = store.begin(id, &Task::default(), &start, None).unwrap();
    assert!(store.facts(id).unwrap().is_black_box);
    assert_eq!(store.interpret(id).unwrap().usage.calls, 0);
}
