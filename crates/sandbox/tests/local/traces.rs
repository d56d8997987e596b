//! What an engine leaves on the machine: processes, cgroups, directories.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The common name of an engine's directories.
pub(crate) fn instance(state: &Path) -> String {
    let names: Vec<_> = std::fs::read_dir(state)
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(names.len(), 1, "{names:?}");
    names[0].to_string_lossy().into_owned()
}

pub(crate) fn cgroups(instance: &str) -> Vec<PathBuf> {
    let mounts = std::fs::read_dir("/sys/fs/cgroup")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    mounts
        .chain([PathBuf::from("/sys/fs/cgroup")])
        .map(|mount| mount.join(instance))
        .filter(|path| path.exists())
        .collect()
}

/// The groups of one of the engine's processes, one for each hierarchy.
pub(crate) fn groups(pid: u32, instance: &str) -> Vec<PathBuf> {
    let own = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let names = own.lines().filter_map(|line| line.rsplit_once(instance));
    let names: Vec<&str> = names.map(|(_, name)| name.trim_matches('/')).collect();
    cgroups(instance)
        .iter()
        .flat_map(|parent| names.iter().map(move |name| parent.join(name)))
        .filter(|path| path.exists())
        .collect()
}

/// Live processes whose command line contains `mark`, as handles that become readable when they end.
pub(crate) fn marked(mark: &str) -> Vec<(u32, OwnedFd)> {
    let pids = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid: &u32| pid != std::process::id())
        .filter(|pid| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(mark))
        })
        .filter_map(|pid| Some((pid, pidfd(pid)?)))
        .collect()
}

#[expect(unsafe_code, reason = "std has no stable pidfd")]
fn pidfd(pid: u32) -> Option<OwnedFd> {
    // SAFETY: takes two numbers and returns a new descriptor or an error.
    let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: the descriptor is new, so it is ours.
    (raw >= 0).then(|| unsafe { OwnedFd::from_raw_fd(i32::try_from(raw).unwrap()) })
}

pub(crate) fn wait_for_end(processes: &[(u32, OwnedFd)]) {
    for (pid, handle) in processes {
        let mut events = [PollFd::new(handle.as_fd(), PollFlags::POLLIN)];
        assert_eq!(
            poll(&mut events, PollTimeout::from(20_000_u16)).unwrap(),
            1,
            "process {pid} must end"
        );
    }
}

/// The zygote among the live processes with this mark.
///
/// A new clone has the same command line, and for a moment also the same pid namespace, so this polls until there is
/// just one.
pub(crate) fn zygote(mark: &str) -> (u32, OwnedFd) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let mut candidates = marked(mark);
        candidates.retain(|(pid, _)| in_our_pid_namespace(*pid));
        if candidates.len() == 1 {
            return candidates.remove(0);
        }
        assert!(Instant::now() < deadline, "{} zygotes", candidates.len());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// False if the process is gone.
fn in_our_pid_namespace(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .is_some_and(|numbers| numbers.split_whitespace().count() == 1)
}

/// Ends a process, if it has not ended with another one before.
pub(crate) fn kill(pid: u32) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
    match nix::sys::signal::kill(pid, nix::sys::signal::SIGKILL) {
        Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
        Err(error) => panic!("{error}"),
    }
}

fn name(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.unwrap_or_default().trim().to_owned()
}

/// Init processes of sandboxes in use.
pub(crate) fn inits(mark: &str) -> Vec<(u32, OwnedFd)> {
    let mut processes = marked(mark);
    processes.retain(|(pid, _)| name(*pid) == "sandbox-init");
    processes
}

/// Init processes of spare sandboxes.
pub(crate) fn spares(mark: &str) -> Vec<(u32, OwnedFd)> {
    let mut processes = marked(mark);
    processes.retain(|(pid, _)| name(*pid) == "sandbox-spare");
    processes
}

/// As [`spares`], once an idle engine has all of its spares.
pub(crate) async fn all_spares(mark: &str) -> Vec<(u32, OwnedFd)> {
    loop {
        let spares = spares(mark);
        if spares.len() == 2 {
            return spares;
        }
        // Polling takes processor time from the spares being made.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
