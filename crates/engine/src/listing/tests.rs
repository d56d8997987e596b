use std::fs;

use rollcage_model::browse::rollout::Facet;
use rollcage_model::ending::Ended;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::Task;

use super::*;
use crate::result::begin_abandoned;
use crate::store::StartInfo;

fn store() -> (tempfile::TempDir, Store) {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    (home, store)
}

fn result(task: &str) -> RolloutResult {
    let task = Task {
        id: task.to_owned(),
        ..Task::default()
    };
    let id = RolloutId::generate();
    RolloutResult {
        started_at: id.unix_seconds(),
        ..begin_abandoned(id, task)
    }
}

fn commit(store: &Store, result: &RolloutResult, owner: Option<&str>) {
    let begun = store.begin(
        result.rollout_id,
        &Task::default(),
        &StartInfo::default(),
        owner,
    );
    begun.unwrap().commit(result).unwrap();
}

fn tasks(listing: &Listing, owner: &str) -> Vec<String> {
    let visible = listing.visible(owner, &[]).unwrap();
    visible
        .iter()
        .map(|summary| summary.row.task_id.clone())
        .collect()
}

/// Removes everything from the records but their directories.
fn empty_records(store: &Store) {
    for id in store.ids().unwrap() {
        for file in fs::read_dir(store.directory(id)).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
    }
}

#[test]
fn an_indexed_record_is_listed_without_being_opened() {
    let (home, store) = store();
    for task in ["a", "b", "c"] {
        commit(&store, &result(task), Some("me"));
    }
    commit(&store, &result("d"), Some("you"));
    empty_records(&store);
    let listing = Listing::new(store.clone());
    assert_eq!(tasks(&listing, "me"), ["c", "b", "a"]);
    assert_eq!(tasks(&listing, "you"), ["d"]);
    // Without the index nothing is known of them.
    fs::remove_file(home.path().join("index.jsonl")).unwrap();
    let unknown = Listing::new(store).visible("me", &[]).unwrap();
    assert_eq!(unknown.len(), 4);
    assert!(unknown.iter().all(|summary| summary.row.ended.is_none()));
}

#[test]
fn a_missing_index_is_made_from_the_records() {
    let (home, store) = store();
    for task in ["a", "b"] {
        commit(&store, &result(task), Some("me"));
    }
    let index = home.path().join("index.jsonl");
    fs::remove_file(&index).unwrap();
    let listing = Listing::new(store.clone());
    assert_eq!(tasks(&listing, "me"), ["b", "a"]);
    assert_eq!(fs::read_to_string(&index).unwrap().lines().count(), 2);
    empty_records(&store);
    assert_eq!(tasks(&Listing::new(store), "me"), ["b", "a"]);
    assert_eq!(tasks(&listing, "me"), ["b", "a"]);
}

#[test]
fn a_record_of_an_older_version_is_read_by_its_result() {
    let (home, store) = store();
    let mut old = result("a");
    old.reward = Some(1.0);
    old.reward_valid = true;
    old.usage.completion_tokens = 7;
    old.budget.spent.usd = 0.5;
    commit(&store, &old, Some("me"));
    fs::remove_file(home.path().join("index.jsonl")).unwrap();
    let summary = serde_json::json!({
        "rollout_id": old.rollout_id, "task_id": "a", "agent": "x", "model": "m", "ended": "completed",
        "reward": 1.0, "calls": 3, "wall_s": 1.0, "started_at": 1.0, "owner": "me",
    });
    let path = store.directory(old.rollout_id).join("summary.json");
    fs::write(path, summary.to_string()).unwrap();
    let listing = Listing::new(store.clone());
    let listed = listing.visible("me", &[]).unwrap();
    let row = &listed[0].row;
    assert_eq!((row.completion_tokens, row.cost_usd), (7, 0.5));
    assert_eq!(row.verdict, Verdict::Pass);
    assert_eq!(tasks(&listing, "you"), Vec::<String>::new());
    empty_records(&store);
    assert_eq!(Listing::new(store).visible("me", &[]).unwrap(), listed);
}

#[test]
fn a_record_that_another_process_makes_or_removes_is_noticed() {
    let (_home, store) = store();
    let (first, second) = (result("a"), result("b"));
    commit(&store, &first, None);
    let listing = Listing::new(store.clone());
    assert_eq!(tasks(&listing, "me"), ["a"]);
    let mut tail = IndexTail::new(&store);
    commit(&store, &second, None);
    assert_eq!(tasks(&listing, "me"), ["b", "a"]);
    let ended = tail.read("me").unwrap().unwrap();
    assert_eq!((ended.len(), ended[0].task_id.as_str()), (1, "b"));
    assert_eq!(tail.read("me").unwrap().unwrap(), []);
    store.remove(first.rollout_id).unwrap();
    assert_eq!(tasks(&listing, "me"), ["b"]);
    assert_eq!(listing.get(first.rollout_id), None);
}

#[test]
fn what_was_deleted_before_it_was_told_is_not_told() {
    let (_home, store) = store();
    let (gone, kept) = (result("gone"), result("kept"));
    let mut tail = IndexTail::new(&store);
    commit(&store, &gone, None);
    commit(&store, &kept, None);
    store.remove(gone.rollout_id).unwrap();
    let told = tail.read("me").unwrap().unwrap();
    assert_eq!(told, [Summary::of(&kept, None).row]);
}

#[test]
fn a_result_that_cannot_be_read_ended_somehow_is_indexed_once_and_can_be_removed() {
    let (home, store) = store();
    let damaged = result("a");
    let id = damaged.rollout_id;
    let begun = store.begin(id, &Task::default(), &StartInfo::default(), Some("me"));
    begun.unwrap().commit(&damaged).unwrap();
    let index = home.path().join("index.jsonl");
    fs::remove_file(&index).unwrap();
    for file in ["summary.json", "result.json"] {
        fs::write(store.directory(id).join(file), "{").unwrap();
    }
    let listed = Listing::new(store.clone()).visible("me", &[]).unwrap();
    let row = &listed[0].row;
    assert_eq!(
        (row.status, row.ended, row.verdict),
        (Status::Ended, None, Verdict::Invalid)
    );
    let error = row.error.as_deref().unwrap();
    assert!(error.starts_with("its result cannot be read"), "{error}");
    // It is known from the index, so its record is not read again.
    let lines = fs::read_to_string(&index).unwrap();
    empty_records(&store);
    let listing = Listing::new(store.clone());
    assert_eq!(listing.visible("me", &[]).unwrap(), listed);
    assert_eq!(listing.visible("you", &[]).unwrap(), []);
    assert_eq!(fs::read_to_string(&index).unwrap(), lines);
    fs::write(store.directory(id).join("result.json"), "{").unwrap();
    listing.remove(id).unwrap();
    assert_eq!(listing.visible("me", &[]).unwrap(), []);
}

#[test]
fn an_index_that_somebody_keeps_locked_holds_up_nobody_and_loses_nothing() {
    let (home, store) = store();
    commit(&store, &result("a"), Some("me"));
    let index = home.path().join("index.jsonl");
    let lines = || fs::read_to_string(&index).unwrap().lines().count();
    // As of a process that was stopped in the middle of a write.
    let locked = fs::File::open(&index).unwrap();
    locked.lock().unwrap();
    commit(&store, &result("b"), Some("me"));
    let listing = Listing::new(store.clone());
    assert_eq!(tasks(&listing, "me"), ["b", "a"]);
    assert_eq!(tasks(&listing, "me"), ["b", "a"]);
    assert_eq!(lines(), 1);
    drop(locked);
    assert_eq!(tasks(&Listing::new(store), "me"), ["b", "a"]);
    assert_eq!(lines(), 2);
}

#[test]
fn a_rollout_is_found_and_removed_while_a_list_is_made() {
    let (_home, store) = store();
    let stored = result("a");
    commit(&store, &stored, Some("me"));
    let listing = Listing::new(store);
    assert_eq!(tasks(&listing, "me"), ["a"]);
    let made = listing.state();
    let found = listing.get(stored.rollout_id).unwrap();
    assert_eq!(found, Summary::of(&stored, Some("me".to_owned())));
    listing.remove(stored.rollout_id).unwrap();
    assert_eq!(listing.get(stored.rollout_id), None);
    drop(made);
    assert_eq!(tasks(&listing, "me"), Vec::<String>::new());
}

#[test]
fn a_record_whose_owner_cannot_be_read_is_listed_for_nobody_and_not_indexed() {
    let (home, store) = store();
    let stored = result("a");
    commit(&store, &stored, Some("me"));
    let index = home.path().join("index.jsonl");
    fs::remove_file(&index).unwrap();
    let record = store.directory(stored.rollout_id);
    // As of an older version, so that the owner is in its own file only.
    fs::remove_file(record.join("summary.json")).unwrap();
    fs::remove_file(record.join("owner")).unwrap();
    fs::create_dir(record.join("owner")).unwrap();
    let listing = Listing::new(store.clone());
    for owner in ["me", "you"] {
        assert_eq!(listing.visible(owner, &[]).unwrap(), []);
        assert_eq!(listing.get(stored.rollout_id), None);
    }
    assert!(!index.exists());
    fs::remove_dir(record.join("owner")).unwrap();
    fs::write(record.join("owner"), "me").unwrap();
    assert_eq!(tasks(&listing, "me"), ["a"]);
    assert_eq!(tasks(&listing, "you"), Vec::<String>::new());
}

#[test]
fn an_index_that_is_mostly_of_no_use_is_written_anew() {
    let (home, store) = store();
    commit(&store, &result("a"), None);
    let gone: Vec<_> = (0..=STALE_LINES_MAX)
        .map(|_| Summary::of(&result("gone"), None))
        .collect();
    store.index().append(&gone).unwrap();
    let mut tail = IndexTail::new(&store);
    let listing = Listing::new(store.clone());
    assert_eq!(tasks(&listing, "me"), ["a"]);
    let text = fs::read_to_string(home.path().join("index.jsonl")).unwrap();
    assert_eq!(text.lines().count(), 1);
    assert_eq!(tail.read("me").unwrap(), None);
    commit(&store, &result("b"), None);
    assert_eq!(tasks(&listing, "me"), ["b", "a"]);
    assert_eq!(tail.read("me").unwrap().unwrap().len(), 1);
}

#[test]
fn a_summary_without_a_result_is_not_kept() {
    let (home, store) = store();
    let broken = result("a");
    commit(&store, &broken, None);
    fs::remove_file(home.path().join("index.jsonl")).unwrap();
    // As after a full disk: the next start closes the record with another result.
    fs::remove_file(store.directory(broken.rollout_id).join("result.json")).unwrap();
    assert_eq!(tasks(&Listing::new(store.clone()), "me"), ["a"]);
    assert!(!home.path().join("index.jsonl").exists());
}

/// Three rollouts, the newest last.
fn three() -> Vec<Arc<Summary>> {
    let mut all: Vec<_> = ["parse", "Sort", "parse"].map(result).into();
    all[0].reward = Some(1.0);
    all[0].reward_valid = true;
    all[0].usage.calls = 9;
    all[1].ended = Ended::TimedOut;
    all[1].error = Some("The time was used up".to_owned());
    all[1].group = "g1".to_owned();
    all[2].reward = Some(0.5);
    all[2].reward_valid = true;
    all[2].labels = [("step".to_owned(), "12".to_owned())].into();
    all.iter()
        .map(|result| Arc::new(Summary::of(result, None)))
        .collect()
}

const NONE: [usize; 0] = [];

/// Which of [`three`] match, by their places.
fn matching(filter: &Filter) -> Vec<usize> {
    let all = three();
    let ids: Vec<_> = all.iter().map(|summary| summary.row.rollout_id).collect();
    let found = filter.select(all);
    let place = |summary: &Arc<Summary>| ids.iter().position(|id| *id == summary.row.rollout_id);
    found.iter().filter_map(place).collect()
}

#[test]
fn filters_hold_together() {
    let task = |task: &str| Filter {
        task: Some(task.to_owned()),
        ..Filter::default()
    };
    assert_eq!(matching(&Filter::default()), [0, 1, 2]);
    assert_eq!(matching(&task("parse")), [0, 2]);
    assert_eq!(matching(&task("pars")), NONE);
    let passed = Filter {
        verdict: Some(Verdict::Pass),
        ..task("parse")
    };
    assert_eq!(matching(&passed), [0]);
    let late = Filter {
        ended: Some(EndedFilter::As(Ended::TimedOut)),
        status: Some(Status::Ended),
        ..Filter::default()
    };
    assert_eq!(matching(&late), [1]);
    let running = Filter {
        ended: Some(EndedFilter::Not),
        ..Filter::default()
    };
    assert_eq!(matching(&running), NONE);
    let group = Filter {
        group: Some("g1".to_owned()),
        ..Filter::default()
    };
    assert_eq!(matching(&group), [1]);
    let label = |value: &str| Filter {
        labels: vec![("step".to_owned(), value.to_owned())],
        ..Filter::default()
    };
    assert_eq!(matching(&label("12")), [2]);
    assert_eq!(matching(&label("1")), NONE);
    let time = |since, until| Filter {
        since,
        until,
        ..Filter::default()
    };
    assert_eq!(matching(&time(Some(0.0), None)), [0, 1, 2]);
    assert_eq!(matching(&time(None, Some(1.0))), NONE);
}

#[test]
fn a_text_is_looked_for_everywhere_whatever_its_case() {
    let text = |text: &str| {
        matching(&Filter {
            text: Some(text.to_owned()),
            ..Filter::default()
        })
    };
    assert_eq!(text("sORT"), [1]);
    assert_eq!(text("time was"), [1]);
    assert_eq!(text("STEP=1"), [2]);
    assert_eq!(text("G1"), [1]);
    assert_eq!(text("nowhere"), NONE);
}

fn sorted(sort: Option<(SortKey, Order)>, place: Place, limit: usize) -> RolloutPageOf {
    let mut all = three();
    all.reverse();
    let window = Window { sort, place, limit };
    let ids: Vec<_> = all.iter().map(|summary| summary.row.rollout_id).collect();
    let page = page(all, &window);
    let place = |id: RolloutId| 2 - ids.iter().position(|known| *known == id).unwrap();
    RolloutPageOf {
        places: page
            .rollouts
            .iter()
            .map(|row| place(row.rollout_id))
            .collect(),
        total: page.total,
        next: page.next_cursor.map(place),
    }
}

/// A page by the places in [`three`].
#[derive(Debug, PartialEq)]
struct RolloutPageOf {
    places: Vec<usize>,
    total: usize,
    next: Option<usize>,
}

#[track_caller]
fn check(
    sort: Option<(SortKey, Order)>,
    place: Place,
    limit: usize,
    places: &[usize],
    next: Option<usize>,
) {
    let expect = RolloutPageOf {
        places: places.to_vec(),
        total: 3,
        next,
    };
    assert_eq!(sorted(sort, place, limit), expect);
}

#[test]
fn pages_go_on_where_the_last_one_ended() {
    check(None, Place::Start, 2, &[2, 1], Some(1));
    check(None, Place::Start, 3, &[2, 1, 0], None);
    check(None, Place::Offset(1), 1, &[1], None);
    check(None, Place::Offset(5), 1, &[], None);
    let all = {
        let mut all = three();
        all.reverse();
        all
    };
    let after = all[1].row.rollout_id;
    let rest = page(
        all,
        &Window {
            sort: None,
            place: Place::After(after),
            limit: 2,
        },
    );
    assert_eq!((rest.rollouts.len(), rest.total), (1, 3));
    assert!(rest.rollouts[0].rollout_id < after);
}

#[test]
fn what_has_no_value_is_last_in_either_order() {
    let by = |key, order| Some((key, order));
    check(
        by(SortKey::Reward, Order::Descending),
        Place::Start,
        9,
        &[0, 2, 1],
        None,
    );
    check(
        by(SortKey::Reward, Order::Ascending),
        Place::Start,
        9,
        &[2, 0, 1],
        None,
    );
    check(
        by(SortKey::Calls, Order::Descending),
        Place::Start,
        9,
        &[0, 2, 1],
        None,
    );
    // Among equals the newest is first.
    check(
        by(SortKey::Task, Order::Ascending),
        Place::Start,
        9,
        &[1, 2, 0],
        None,
    );
    check(
        by(SortKey::StartedAt, Order::Ascending),
        Place::Offset(1),
        1,
        &[1],
        None,
    );
}

#[test]
fn rollouts_are_counted_by_what_they_have() {
    let mut all = three();
    all.reverse();
    let counted = facets(&all);
    let count = |counts: &std::collections::BTreeMap<String, usize>, name: &str| counts[name];
    assert_eq!(counted.total, 3);
    assert_eq!(count(&counted.status, "ended"), 3);
    assert_eq!(count(&counted.verdict, "pass"), 1);
    assert_eq!(count(&counted.verdict, "invalid"), 1);
    assert_eq!(count(&counted.ended, "timed_out"), 1);
    let facet = |value: &str, count| Facet {
        value: value.to_owned(),
        count,
    };
    assert_eq!(counted.tasks, [facet("parse", 2), facet("Sort", 1)]);
    assert_eq!(counted.groups, [facet("g1", 1)]);
}
