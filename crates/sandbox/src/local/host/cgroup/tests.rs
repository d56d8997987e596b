//! Tests the version 2 code with a directory tree that looks like cgroupfs; version 1 is tested for real in `tests/`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::mount::Unified;
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

const FILES: [&str; 5] = [
    "memory.max",
    "memory.swap.max",
    "pids.max",
    "cpu.max",
    "cgroup.procs",
];

/// Creates the files that the kernel would create in new groups.
fn created(mounts: &Mounts, parent: &Path) -> (Cgroups, OwnedGroups) {
    let name = "rollcage-test";
    let directory = parent.join(name);
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("cgroup.controllers"), "cpu memory pids").unwrap();
    fs::write(directory.join("cgroup.subtree_control"), "").unwrap();
    Cgroups::create(mounts, name)
}

fn fill(directory: &Path, files: &[&str]) {
    for file in files {
        fs::write(directory.join(file), "").unwrap();
    }
}

#[test]
fn version_2_limits_everything_where_it_is_delegated() {
    let (mount, mounts) = unified("", "cpuset cpu io memory pids");
    let (cgroups, owned) = created(&mounts, mount.path());
    assert_eq!(owned.claims.len(), 1);
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
    let directory = mount.path().join("rollcage-test/one");
    fill(&directory, &FILES);
    let enforced = group.limit(&limits);
    assert_eq!(enforced.process_limits(&limits).data_bytes, None);
    let read = |file: &str| fs::read_to_string(directory.join(file)).unwrap();
    assert_eq!(
        ["memory.max", "memory.swap.max", "pids.max", "cpu.max"].map(read),
        ["1000", "0", "7", "150000 100000"]
    );
    assert_eq!(group.open_cgroup_procs().unwrap().len(), 1);

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
    fs::write(
        directory.join("memory.stat"),
        "anon 5\nfile 900\nshmem 800\nshmem_thp 0\n",
    )
    .unwrap();
    let expected = Usage {
        memory_peak_bytes: Some(900),
        memory_bytes: Some(805),
        disk_used_bytes: Some(800),
        cpu_s: Some(1.5),
        oom_kills: Some(2),
    };
    assert_eq!(group.usage(), expected);
}

#[test]
fn a_disabled_controller_is_replaced_by_process_limits_and_reported() {
    let (mount, mounts) = unified("", "cpu memory pids");
    let (cgroups, _holdings) = created(&mounts, mount.path());
    let group = cgroups.group("one");
    group.create().unwrap();
    let directory = mount.path().join("rollcage-test/one");
    fill(&directory, &["pids.max", "cpu.max", "cgroup.procs"]);
    let limits = Limits::default();
    let enforced = group.limit(&limits);
    let rest = enforced.process_limits(&limits);
    assert_eq!(rest.data_bytes, Some(limits.memory_bytes));
    assert_eq!(rest.processes, None);
    let isolation = enforced.correct(cgroups.isolation("userns"));
    assert_eq!(isolation.memory, "rlimits");
    assert_eq!(isolation.pids, "cgroup-v2");
    assert!(
        !directory.join("memory.max").exists(),
        "a file that is not the kernel's limits nothing"
    );
}

#[test]
fn a_group_with_other_processes_cannot_have_controllers_so_its_parent_is_taken() {
    let (mount, mounts) = unified("app.slice/engine.scope", "memory pids cpu");
    let own = mount.path().join("app.slice/engine.scope");
    fs::write(own.join("cgroup.type"), "domain").unwrap();
    let us = std::process::id();
    fs::write(own.join("cgroup.procs"), format!("{us}\n1\n")).unwrap();
    let (cgroups, _holdings) = created(&mounts, &mount.path().join("app.slice"));
    assert_eq!(
        cgroups.unified,
        Some(mount.path().join("app.slice/rollcage-test"))
    );
    assert_eq!(cgroups.memory, Controller::V2);
    assert!(!own.join("rollcage-test").exists());
    let handed_on = fs::read_to_string(own.join("cgroup.subtree_control"));
    assert_eq!(handed_on.unwrap(), "", "nothing was tried there");
}

#[test]
fn version_2_without_controllers_is_left_alone_while_version_1_limits() {
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
    let (cgroups, owned) = Cgroups::create(&mounts, "rollcage-test");
    assert_eq!(owned.claims.len(), 2, "one for each hierarchy");
    assert_eq!(cgroups.unified, None);
    assert!(!mount.path().join("rollcage-test").exists());
    assert_eq!(
        cgroups.memory,
        Controller::V1(v1.path().join("memory/rollcage-test"))
    );
    assert_eq!(cgroups.pids, Controller::None);

    let group = cgroups.group("one");
    group.create().unwrap();
    let memory = v1.path().join("memory/rollcage-test/one");
    let cpu = v1.path().join("cpu,cpuacct/rollcage-test/one");
    let tcp = "memory.kmem.tcp.limit_in_bytes";
    fill(&memory, &["memory.limit_in_bytes", tcp, "cgroup.procs"]);
    fill(
        &cpu,
        &["cpu.cfs_period_us", "cpu.cfs_quota_us", "cgroup.procs"],
    );
    group.limit(&Limits {
        cpus: Some(0.5),
        ..Limits::default()
    });
    let read = |path: PathBuf| fs::read_to_string(path).unwrap();
    assert_eq!(read(cpu.join("cpu.cfs_quota_us")), "50000");
    assert_eq!(read(memory.join(tcp)), TCP_BYTES_MAX.to_string());
    assert_eq!(group.open_cgroup_procs().unwrap().len(), 2);
}

#[test]
fn no_cgroups_at_all_is_no_error() {
    let (cgroups, owned) = Cgroups::create(&Mounts::default(), "rollcage-test");
    assert!(owned.claims.is_empty());
    assert_eq!(
        [&cgroups.memory, &cgroups.pids, &cgroups.cpu],
        [&Controller::None; 3]
    );
    let group = cgroups.group("one");
    group.create().unwrap();
    let limits = Limits::default();
    let rest = group.limit(&limits).process_limits(&limits);
    assert_eq!(rest.processes, Some(limits.pids));
    assert!(group.open_cgroup_procs().unwrap().is_empty());
    assert_eq!(group.usage(), Usage::default());
    group.remove().unwrap();
}
