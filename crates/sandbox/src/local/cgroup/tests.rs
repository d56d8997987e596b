//! The version 2 code against a directory tree that looks like cgroupfs; version 1 runs for real in `tests/`.

use std::collections::BTreeMap;

use super::super::cgroup_mount::Unified;
use super::*;

/// A version 2 mount; `own` may be a group with processes, for which enabling a controller fails.
fn unified(own: &str, controllers: &str) -> (tempfile::TempDir, Mounts) {
    let mount = tempfile::tempdir().unwrap();
    let own = mount.path().join(own);
    fs::create_dir_all(&own).unwrap();
    for directory in own
        .ancestors()
        .take_while(|path| path.starts_with(mount.path()))
    {
        fs::write(directory.join("cgroup.controllers"), controllers).unwrap();
        fs::write(directory.join("cgroup.subtree_control"), "").unwrap();
    }
    let unified = Some(Unified {
        mount: mount.path().to_path_buf(),
        own,
    });
    (
        mount,
        Mounts {
            v1: BTreeMap::new(),
            unified,
        },
    )
}

/// The kernel fills new groups with files; here the test does.
fn created(mounts: &Mounts, parent: &Path) -> (Cgroups, Vec<Claim>) {
    let name = "rollcage-test";
    fs::create_dir_all(parent.join(name)).unwrap();
    fs::write(
        parent.join(name).join("cgroup.controllers"),
        "cpu memory pids",
    )
    .unwrap();
    Cgroups::create(mounts, name)
}

#[test]
fn version_2_limits_everything_where_it_is_delegated() {
    let (mount, mounts) = unified("", "cpuset cpu io memory pids");
    let (cgroups, claims) = created(&mounts, mount.path());
    assert_eq!(claims.len(), 1);
    assert_eq!(
        [&cgroups.memory, &cgroups.pids, &cgroups.cpu],
        [&Controller::V2; 3]
    );

    let group = cgroups.group("one");
    let limits = Limits {
        memory_bytes: 1000,
        pids: 7,
        cpus: Some(1.5),
        ..Limits::default()
    };
    group.create().unwrap();
    group.limit(&limits).unwrap();
    let directory = mount.path().join("rollcage-test/one");
    let read = |file: &str| fs::read_to_string(directory.join(file)).unwrap();
    assert_eq!(
        ["memory.max", "memory.swap.max", "pids.max", "cpu.max"].map(read),
        ["1000", "0", "7", "150000 100000"]
    );
    assert!(group.open_unified().unwrap().is_some());

    fs::write(directory.join("memory.peak"), "900\n").unwrap();
    fs::write(
        directory.join("memory.events"),
        "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n",
    )
    .unwrap();
    fs::write(
        directory.join("cpu.stat"),
        "usage_usec 1500000\nuser_usec 1\nsystem_usec 2\n",
    )
    .unwrap();
    let expected = Usage {
        memory_peak_bytes: Some(900),
        cpu_s: Some(1.5),
        oom_kills: Some(2),
    };
    assert_eq!(group.usage(), expected);
}

#[test]
fn a_group_with_processes_cannot_have_controllers_so_its_parent_is_taken() {
    let (mount, mounts) = unified("app.slice/engine.scope", "memory pids cpu");
    // As the kernel's EBUSY: the file cannot be written.
    let own = mount
        .path()
        .join("app.slice/engine.scope/cgroup.subtree_control");
    fs::remove_file(&own).unwrap();
    fs::create_dir(&own).unwrap();
    let (cgroups, _claims) = created(&mounts, &mount.path().join("app.slice"));
    assert_eq!(
        cgroups.unified,
        Some(mount.path().join("app.slice/rollcage-test"))
    );
    assert_eq!(cgroups.memory, Controller::V2);
    assert!(
        !mount
            .path()
            .join("app.slice/engine.scope/rollcage-test")
            .exists()
    );
}

#[test]
fn version_2_without_controllers_still_serves_to_kill_while_version_1_limits() {
    let (mount, mut mounts) = unified("", "hugetlb");
    let v1 = tempfile::tempdir().unwrap();
    for controller in ["memory", "cpu", "cpuacct"] {
        let path = v1.path().join(if controller == "memory" {
            "memory"
        } else {
            "cpu,cpuacct"
        });
        fs::create_dir_all(&path).unwrap();
        mounts.v1.insert(controller.to_owned(), path);
    }
    let (cgroups, claims) = Cgroups::create(&mounts, "rollcage-test");
    assert_eq!(claims.len(), 3, "one for each hierarchy");
    assert_eq!(cgroups.unified, Some(mount.path().join("rollcage-test")));
    assert_eq!(
        cgroups.memory,
        Controller::V1(v1.path().join("memory/rollcage-test"))
    );
    assert_eq!(cgroups.pids, Controller::None);

    let group = cgroups.group("one");
    group.create().unwrap();
    group
        .limit(&Limits {
            cpus: Some(0.5),
            ..Limits::default()
        })
        .unwrap();
    group.join(42).unwrap();
    let quota = fs::read_to_string(
        v1.path()
            .join("cpu,cpuacct/rollcage-test/one/cpu.cfs_quota_us"),
    )
    .unwrap();
    assert_eq!(quota, "50000");
    let members =
        fs::read_to_string(v1.path().join("memory/rollcage-test/one/cgroup.procs")).unwrap();
    assert_eq!(members, "42");
}

#[test]
fn no_cgroups_at_all_is_no_error() {
    let (cgroups, claims) = Cgroups::create(&Mounts::default(), "rollcage-test");
    assert!(claims.is_empty());
    assert_eq!(
        [&cgroups.memory, &cgroups.pids, &cgroups.cpu],
        [&Controller::None; 3]
    );
    let group = cgroups.group("one");
    group.create().unwrap();
    group.limit(&Limits::default()).unwrap();
    group.join(42).unwrap();
    assert_eq!(group.usage(), Usage::default());
    group.remove().unwrap();
}
