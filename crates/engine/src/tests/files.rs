//! Files into sandboxes and out of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rollcage_model::finding::{Code, Finding};
use rollcage_model::record::{Artifact, RolloutResult};
use rollcage_model::task::{SandboxLimits, SetupUser, Task};
use rollcage_testkit::sandbox::{CommandBehaviour, Fault, Operation};

use super::{Lab, task};
use crate::intake::Upload;
use crate::mount::HostMount;
use crate::store::StartFiles;

/// SHA-256 of `abc`, as its standard has it.
const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

/// The agent leaves some files, one of them a megabyte large.
fn leaves_files(text: &str) -> CommandBehaviour {
    match text {
        "agent" => CommandBehaviour::program(|guest| async move {
            for (path, content) in [("out/a", "abc"), ("out/b/c", ""), ("notes", "x")] {
                let _ = guest.write(path, content);
            }
            let _ = guest.write("out/large", &"0".repeat(1 << 20));
            0
        }),
        _ => CommandBehaviour::exits(0),
    }
}

fn wanting(patterns: &[&str]) -> Task {
    Task {
        artifacts: patterns.iter().map(|&text| text.to_owned()).collect(),
        limits: SandboxLimits {
            artifacts_mb: Some(1),
            ..SandboxLimits::default()
        },
        ..task()
    }
}

fn cut(result: &RolloutResult) -> Option<&str> {
    let mut findings = result.findings.iter();
    let cut = findings.find(|finding| finding.code == Code::ArtifactsCut);
    cut.map(|finding| finding.text.as_str())
}

#[tokio::test(start_paused = true)]
async fn artifacts_are_kept_with_the_record_up_to_their_limit() {
    let lab = Lab::new(leaves_files).await;
    let result = lab.run(wanting(&["out/**"])).await;
    let kept = |path: &str, bytes: u64, sha256: &str| Artifact {
        path: path.to_owned(),
        bytes,
        sha256: sha256.to_owned(),
    };
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(
        result.artifacts,
        [kept("out/a", 3, ABC), kept("out/b/c", 0, empty)]
    );
    let record = Path::new(&result.record);
    let text = std::fs::read_to_string(record.join("artifacts/out/a")).unwrap();
    assert_eq!(text, "abc");
    assert_eq!(
        cut(&result),
        Some("not kept: out/large (1048576 bytes, over the limit artifacts_mb)")
    );
    let result = lab.run(wanting(&["none/*"])).await;
    assert_eq!((result.artifacts.len(), cut(&result)), (0, None));
    assert!(!Path::new(&result.record).join("artifacts").exists());
}

/// A file of 64 MiB, in which something is at its beginning, its middle and just before its end.
fn leaves_a_hole(text: &str) -> CommandBehaviour {
    match text {
        "agent" => CommandBehaviour::program(|guest| async move {
            let mut content = vec![0; 64 << 20];
            for at in [0, (32 << 20) + 7, (50 << 20) - 1] {
                content[at] = b'x';
            }
            let _ = guest.write("sparse", std::str::from_utf8(&content).unwrap());
            0
        }),
        _ => CommandBehaviour::exits(0),
    }
}

#[tokio::test(start_paused = true)]
async fn a_hole_in_an_artifact_takes_no_room_and_counts_by_its_length() {
    use std::os::unix::fs::MetadataExt;
    let lab = Lab::new(leaves_a_hole).await;
    let kept_within = async |mebibytes| {
        let mut task = wanting(&["sparse"]);
        task.limits.artifacts_mb = Some(mebibytes);
        lab.run(task).await
    };
    let result = kept_within(64).await;
    let kept = Path::new(&result.record).join("artifacts/sparse");
    let content = std::fs::read(&kept).unwrap();
    let marks = content.iter().enumerate().filter(|(_, byte)| **byte != 0);
    let marks: Vec<usize> = marks.map(|(at, _)| at).collect();
    assert_eq!(marks, [0, (32 << 20) + 7, (50 << 20) - 1]);
    assert_eq!(
        (content.len(), result.artifacts[0].bytes),
        (64 << 20, 64 << 20)
    );
    let on_disk = kept.metadata().unwrap().blocks() * 512;
    assert!(on_disk <= 1 << 20, "{on_disk}");
    let refused = kept_within(63).await;
    let said = cut(&refused).unwrap();
    assert!(
        said.contains("67108864 bytes, over the limit artifacts_mb"),
        "{said}"
    );
}

#[tokio::test(start_paused = true)]
async fn artifacts_that_cannot_be_read_are_a_finding_and_change_no_grade() {
    let lab = Lab::new(leaves_files).await;
    lab.sandboxes.fault(Operation::ReadFiles, Fault::Fails);
    let result = lab.run(wanting(&["out/a"])).await;
    assert_eq!(result.reward, Some(1.0));
    let text = cut(&result).expect("a finding");
    assert!(text.contains("a fault of the test's"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_tree_is_put_in_by_one_operation_and_its_tests_after_the_agent() {
    let lab = Lab::new(|_| CommandBehaviour::exits(0)).await;
    let mut rollout = lab.rollout(task());
    let numbers = 0..20;
    let of = |directory: &str| {
        let directory = directory.to_owned();
        let path = move |number: i32| (format!("{directory}/{number}"), Upload::file("x"));
        numbers.clone().map(path).collect::<BTreeMap<_, _>>()
    };
    let mut uploads = of("data");
    uploads.extend(of("/home/user/tests"));
    rollout.uploads = Arc::new(uploads);
    let mut entries = lab.engine.submit(rollout, 1).unwrap();
    let result = lab.end_of(entries.remove(0)).await;
    assert_eq!(result.reward, Some(1.0), "{:?}", result.error);
    let operations = lab.sandboxes.operations();
    let of = |what: &str| operations.iter().filter(|line| *line == what).count();
    assert_eq!(of("unpack /"), 2);
    assert!(lab.place("unpack /") < lab.place("-c setup"));
    let unsealed = lab.place("unseal").unwrap();
    assert!(operations[unsealed..].contains(&"unpack /".to_owned()));
}

#[tokio::test]
async fn a_patch_is_what_the_agent_changed_and_its_failure_changes_no_grade() {
    let lab = Lab::new(leaves_files).await;
    let wanting = || Task {
        patch: true,
        ..task()
    };
    let result = lab.run(wanting()).await;
    let record = Path::new(&result.record);
    let text = std::fs::read_to_string(record.join("workdir.patch")).unwrap();
    assert_eq!(result.patch_bytes, Some(text.len() as u64));
    assert!(
        text.contains("+++ b/out/a\n@@ -0,0 +1 @@\n+abc\n"),
        "{text}"
    );
    assert!(!record.join("workdir.git.partial").exists());

    lab.sandboxes.fault(Operation::ReadFiles, Fault::Fails);
    let result = lab.run(wanting()).await;
    assert_eq!((result.reward, result.patch_bytes), (Some(1.0), None));
    let mut codes = result.findings.iter().map(|finding| finding.code);
    assert!(codes.any(|code| code == Code::PatchIncomplete));
    assert!(!Path::new(&result.record).join("workdir.patch").exists());
    // A task that wants none costs nothing: its files are read once, for the result.
    let before = lab.sandboxes.operations().len();
    lab.run(task()).await;
    let operations = lab.sandboxes.operations();
    let asked = operations[before..].iter();
    assert_eq!(
        asked.filter(|line| line.starts_with("read_files")).count(),
        1
    );
}

/// Setup leaves two texts, bytes that are no text, and a text below the depth that is looked at; the agent changes one.
fn sets_up_and_changes(text: &str) -> CommandBehaviour {
    match text {
        "prepare" => CommandBehaviour::program(|guest| async move {
            for (path, content) in [("a", "old"), ("b/c", "kept"), ("b/d/e", "deep")] {
                let _ = guest.write(path, content);
            }
            let _ = guest.write("large", &"0".repeat(70_000));
            0
        }),
        "agent" => CommandBehaviour::program(|guest| async move {
            let _ = guest.write("a", "new");
            0
        }),
        _ => CommandBehaviour::exits(0),
    }
}

#[tokio::test(start_paused = true)]
async fn what_setup_left_is_kept_with_the_record() {
    let lab = Lab::new(sets_up_and_changes).await;
    let texts = |texts: &[(&str, &str)]| {
        let texts = texts.iter();
        let texts =
            texts.map(|(path, text)| (format!("/home/user/workdir/{path}"), (*text).into()));
        texts.collect::<BTreeMap<String, String>>()
    };
    let task_with = |setup: &[&str]| Task {
        files: [
            ("z", "of the task"),
            ("/home/user/other", "elsewhere"),
            ("x/y/z", "deep"),
        ]
        .map(|(path, text)| (path.to_owned(), text.to_owned()))
        .into(),
        setup: setup.iter().map(|&text| text.to_owned()).collect(),
        ..task()
    };
    let result = lab.run(task_with(&["prepare"])).await;
    let start = lab
        .engine
        .store()
        .start_files(result.rollout_id)
        .unwrap()
        .unwrap();
    let expected = StartFiles {
        files: texts(&[("a", "old"), ("b/c", "kept"), ("z", "of the task")]),
        files_extra: vec!["/home/user/workdir/large".to_owned()],
        is_cut: false,
    };
    assert_eq!(start, expected);
    assert_eq!(result.files["/home/user/workdir/a"], "new");

    // Without setup commands the sandbox is not asked, and the answer is the same.
    let result = lab.run(task_with(&[])).await;
    let start = lab
        .engine
        .store()
        .start_files(result.rollout_id)
        .unwrap()
        .unwrap();
    let expected = StartFiles {
        files: texts(&[("z", "of the task")]),
        ..StartFiles::default()
    };
    assert_eq!(start, expected);
}

/// Setup leaves more directories than are looked at, before a file.
fn fills(text: &str) -> CommandBehaviour {
    match text {
        "fill" => CommandBehaviour::program(|guest| async move {
            for number in 0..4096 {
                let _ = guest.write(&format!("a/{number}/deep"), "");
            }
            let _ = guest.write("z", "left");
            0
        }),
        _ => CommandBehaviour::exits(0),
    }
}

#[tokio::test(start_paused = true)]
async fn a_work_directory_that_is_not_looked_at_whole_says_so() {
    let lab = Lab::new(fills).await;
    let filled = Task {
        setup: vec!["fill".to_owned()],
        ..task()
    };
    let result = lab.run(filled).await;
    let expected = StartFiles {
        is_cut: true,
        ..StartFiles::default()
    };
    let start = lab.engine.store().start_files(result.rollout_id);
    assert_eq!(start.unwrap(), Some(expected));
    let cut = Finding::info(
        Code::FilesNotCollected,
        "the work directory holds more than 4096 files and directories, and the rest was not looked at",
    );
    assert_eq!(result.files, BTreeMap::new());
    assert!(result.findings.contains(&cut), "{:?}", result.findings);
}

/// What is mounted in the work directory is there before the agent, so the sandbox is asked.
#[tokio::test(start_paused = true)]
async fn what_is_mounted_counts_as_left_by_setup() {
    let lab = Lab::new(sets_up_and_changes).await;
    let mut rollout = lab.rollout(task());
    rollout.mounts = vec![HostMount::parse("/usr/share:/home/user/workdir/d").unwrap()];
    let before = lab.sandboxes.operations().len();
    let entry = lab.engine.submit(rollout, 1).unwrap().remove(0);
    lab.end_of(entry).await;
    let operations = lab.sandboxes.operations();
    let asked = operations[before..].iter();
    let lists = asked.filter(|line| *line == "list /home/user/workdir");
    assert_eq!(lists.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_mounted_is_mounted_once() {
    let lab = Lab::new(|_| CommandBehaviour::exits(0)).await;
    for setup_user in [SetupUser::User, SetupUser::Root] {
        let mut rollout = lab.rollout(Task {
            setup_user,
            ..task()
        });
        rollout.mounts = vec![HostMount::parse("/usr/share:/data").unwrap()];
        let entry = lab.engine.submit(rollout, 1).unwrap().remove(0);
        lab.end_of(entry).await;
        let specs = lab.sandboxes.specs();
        let mounts = specs.last().unwrap().mounts.iter();
        let shown = mounts.filter(|mount| mount.target == Path::new("/data"));
        assert_eq!(shown.count(), 1, "{setup_user:?}");
    }
}
