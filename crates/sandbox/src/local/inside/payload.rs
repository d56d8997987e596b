//! A process between being a standby and the program it becomes: takes on its user, its limits and the filter. Runs in
//! a child of init; it never returns, and reports errors on its status pipe.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode as FileMode, umask};
use nix::unistd::{
    Gid, Uid, chdir, dup2_stderr, dup2_stdin, dup2_stdout, execve, setgroups, setresgid, setresuid,
    setsid,
};

use super::builtin;
use super::home;
use super::many;
use super::remove;
use super::seccomp::Filter;
use super::snapshot;
use crate::User;
use crate::guest::{USER_ID, WORKDIR};
use crate::local::shared::syscall;
use crate::local::shared::wire::{
    Failure, FailureKind, ProcessLimits, Spawn, SpawnMessage, WithStep, Work,
};

const OPEN_FILES_MAX: u64 = 8192;
const LOCKED_BYTES_MAX: u64 = 64 * 1024;
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, NET_BIND_SERVICE: needed to install packages. They only
/// apply inside the sandbox's user namespace.
const ROOT_CAPABILITIES: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 10;

pub(crate) const DAC_READ_SEARCH: u64 = 1 << 2;

/// The restrictions on every process of a sandbox.
pub(crate) struct ProcessRules {
    /// Root mode: the user namespace of the sandbox's uids.
    pub(crate) userns: Option<OwnedFd>,
    pub(crate) filter: Rc<Filter>,
    /// The `cgroup.procs` files of the sandbox: a process writes to each in order to join.
    pub(crate) cgroup_procs: Vec<File>,
}

/// The limits of each process.
fn limits(wanted: ProcessLimits) -> Vec<(Resource, u64)> {
    let ProcessLimits {
        file_bytes,
        data_bytes,
        processes,
    } = wanted;
    let mut limits = vec![
        // One byte is less than any core file, and unlike 0 it also keeps the kernel from running the host's core
        // handler.
        (Resource::RLIMIT_CORE, 1),
        (Resource::RLIMIT_NOFILE, OPEN_FILES_MAX),
        (Resource::RLIMIT_FSIZE, file_bytes),
        (Resource::RLIMIT_MEMLOCK, LOCKED_BYTES_MAX),
    ];
    limits.extend(data_bytes.map(|bytes| (Resource::RLIMIT_DATA, bytes)));
    limits.extend(processes.map(|count| (Resource::RLIMIT_NPROC, count)));
    for (resource, value) in &mut limits {
        // If the hard limit cannot be read, assume none.
        *value = getrlimit(*resource).map_or(*value, |(_, hard)| hard.min(*value));
    }
    limits
}

/// Descriptors that came with the request.
pub(crate) struct Descriptors {
    pub(crate) status: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) stdin: Option<OwnedFd>,
}

impl Descriptors {
    /// Takes them in the order in which they are sent.
    pub(crate) fn take(spawn: &Spawn, descriptors: Vec<OwnedFd>) -> Option<Descriptors> {
        let mut descriptors = descriptors.into_iter();
        Some(Descriptors {
            status: descriptors.next()?,
            stdout: descriptors.next()?,
            stderr: if spawn.has_stderr {
                descriptors.next()
            } else {
                None
            },
            stdin: if spawn.has_stdin {
                descriptors.next()
            } else {
                None
            },
        })
    }
}

/// Becomes the program or does the file operation.
pub(crate) fn run(message: &SpawnMessage, descriptors: Descriptors, rules: &ProcessRules) -> ! {
    let mut status = None;
    let result = match prepare(message, descriptors, rules, &mut status) {
        Ok(()) => work(&message.spawn.work),
        Err(failure) => Err(failure),
    };
    let Err(failure) = result else {
        syscall::exit_now(0)
    };
    if let (Some(status), Ok(json)) = (&mut status, serde_json::to_vec(&failure)) {
        let _ = status.write_all(&json);
    }
    syscall::exit_now(127)
}

fn prepare(
    message: &SpawnMessage,
    descriptors: Descriptors,
    rules: &ProcessRules,
    status: &mut Option<File>,
) -> Result<(), Failure> {
    let spawn = &message.spawn;
    *status = Some(File::from(
        descriptors.status.try_clone().step("copy a descriptor")?,
    ));
    setsid().step("start a session")?;
    syscall::unblock_signals().step("reset signals")?;
    umask(FileMode::from_bits_truncate(0o022));
    let null = || {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/null")
            .map(OwnedFd::from)
    };
    let stdin = descriptors
        .stdin
        .map_or_else(null, Ok)
        .step("open /dev/null")?;
    let stderr = descriptors
        .stderr
        .map_or_else(null, Ok)
        .step("open /dev/null")?;
    dup2_stdin(stdin).step("set stdin")?;
    dup2_stdout(descriptors.stdout).step("set stdout")?;
    dup2_stderr(stderr).step("set stderr")?;
    become_user(spawn, rules)?;
    // Not left to exec, because file operations do not exec. The status pipe stays open until then.
    let kept = syscall::close_all_but(descriptors.status).step("close descriptors")?;
    // Already closed with the others, so its destructor must not run.
    std::mem::forget(status.replace(kept));
    // After entering the sandbox's user namespace, whose processes RLIMIT_NPROC counts.
    for (resource, value) in limits(message.process_limits) {
        setrlimit(resource, value, value).map_err(|errno| {
            Failure::new(
                FailureKind::Setup,
                format!("set {resource:?}"),
                &errno.into(),
            )
        })?;
    }
    rules.filter.apply().step("apply the system call filter")?;
    let directory = if spawn.cwd.is_empty() {
        WORKDIR
    } else {
        &spawn.cwd
    };
    chdir(directory).map_err(|errno| Failure::new(FailureKind::Directory, directory, &errno.into()))
}

fn become_user(spawn: &Spawn, rules: &ProcessRules) -> Result<(), Failure> {
    let mut id = USER_ID;
    if let Some(userns) = &rules.userns {
        setns(userns, CloneFlags::CLONE_NEWUSER).step("enter the user namespace")?;
        if spawn.user == User::Root {
            id = 0;
        }
        setgroups(&[]).step("drop groups")?;
    }
    let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
    setresgid(gid, gid, gid).step("set the group")?;
    setresuid(uid, uid, uid).step("set the user")?;
    let kept = match (id, &spawn.work) {
        (0, _) => ROOT_CAPABILITIES,
        // Where there is only one user, unreadable files of that user belong to the snapshot too.
        (_, Work::Snapshot) => DAC_READ_SEARCH,
        _ => 0,
    };
    syscall::clear_ambient().step("clear ambient capabilities")?;
    syscall::keep_capabilities(kept).step("drop capabilities")?;
    // Inherited from init, but changing the user may have reset it. The next exec lifts it.
    prctl::set_dumpable(false).step("forbid tracing")
}

fn work(work: &Work) -> Result<(), Failure> {
    match work {
        Work::Exec { argv, env } => {
            let program = argv.first().map_or("", String::as_str);
            match exec(program, argv, env) {
                Ok(never) => match never {},
                Err(error) => Err(Failure::new(FailureKind::Exec, program, &error)),
            }
        }
        Work::Write { .. }
        | Work::Read { .. }
        | Work::Stat { .. }
        | Work::Remove { .. }
        | Work::KeepHome
        | Work::LayHome { .. }
        | Work::List { .. }
        | Work::Unpack { .. }
        | Work::ReadFiles { .. }
        | Work::Snapshot => {
            // To get an error that can be reported instead of a fatal signal.
            syscall::ignore_signals(&[libc::SIGXFSZ, libc::SIGPIPE]);
            file_operation(work)
        }
    }
}

fn file_operation(work: &Work) -> Result<(), Failure> {
    match work {
        Work::Exec { .. } => Ok(()),
        Work::Write { path, mode } => builtin::write(path, *mode),
        Work::Read { path, bytes_max } => builtin::read(path, *bytes_max),
        Work::Stat { path } => builtin::stat(path),
        Work::Remove { path } => remove::remove(path),
        Work::KeepHome => home::keep(),
        Work::LayHome { named } => home::lay(named),
        Work::List {
            path,
            depth,
            entries_max,
        } => builtin::list(path, *depth, *entries_max),
        Work::Unpack { target } => many::unpack_input(target),
        Work::ReadFiles { directory, paths } => many::read_files(directory, paths),
        Work::Snapshot => snapshot::take(),
    }
}

/// Looks the program up like execvp, but in the command's own PATH.
fn exec(program: &str, argv: &[String], env: &BTreeMap<String, String>) -> io::Result<Infallible> {
    let arguments: Vec<CString> = argv
        .iter()
        .map(|word| CString::new(word.as_str()))
        .collect::<Result<_, _>>()?;
    let environment: Vec<CString> = env
        .iter()
        .map(|(key, value)| CString::new(format!("{key}={value}")))
        .collect::<Result<_, _>>()?;
    if program.contains('/') {
        return Ok(execve(&CString::new(program)?, &arguments, &environment)?);
    }
    let mut denied = None;
    for directory in env
        .get("PATH")
        .map_or(DEFAULT_PATH, String::as_str)
        .split(':')
    {
        let directory = if directory.is_empty() { "." } else { directory };
        match execve(
            &CString::new(format!("{directory}/{program}"))?,
            &arguments,
            &environment,
        ) {
            Ok(never) => match never {},
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            // A later directory may have one that we may execute.
            Err(Errno::EACCES) => denied = Some(Errno::EACCES),
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(denied.unwrap_or(Errno::ENOENT).into())
}

/// Reports a failure that happened before there was a child to report it.
pub(crate) fn report(status: OwnedFd, failure: &Failure) {
    if let Ok(json) = serde_json::to_vec(failure) {
        let _ = File::from(status).write_all(&json);
    }
}
