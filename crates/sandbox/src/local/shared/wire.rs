//! The messages between engine, zygote and a sandbox's init, and their transport: one message is one packet of a
//! SOCK_SEQPACKET socket, with file descriptors attached. Messages too large for a packet (a command's environment may
//! be megabytes) are sent in a memfd.
#![expect(
    unsafe_code,
    reason = "received descriptors are taken over as raw numbers"
)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cgroup::Cgroups;
use super::mode::Mode;
use crate::User;
use crate::doctor::Check;

/// Larger messages are sent in a memfd. Well below the socket buffer's default of 208 KiB.
const INLINE_BYTES_MAX: usize = 16 * 1024;
/// More descriptors than any message carries: one per archive, at most [`ARCHIVES_MAX`].
const DESCRIPTORS_MAX: usize = 64;
pub(crate) const ARCHIVES_MAX: usize = 60;

/// Engine to zygote.
#[derive(Serialize, Deserialize)]
pub(crate) enum ZygoteRequest {
    /// The first message, sent once.
    Configure(Setup),
    /// Carries the sandbox's end of its control socket.
    Clone(CloneParameters),
    Doctor,
}

/// Settings shared by all sandboxes of an engine.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) mode: Mode,
    pub(crate) cgroups: Cgroups,
    pub(crate) skeleton: PathBuf,
    /// An empty directory; each sandbox mounts its own tmpfs on it, in its own mount namespace.
    pub(crate) stage: PathBuf,
    /// What sandboxes show as `as-agent`.
    pub(crate) program: PathBuf,
    pub(crate) engine_pid: u32,
}

/// The parameters of a new clone, which are known before its specification.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct CloneParameters {
    /// The name of its cgroup; never used twice by one engine.
    pub(crate) group: String,
    /// Selects the uid range.
    pub(crate) slot: u32,
}

/// Engine to init, the first message: the sandbox's specification. Carries the snapshot to start from, if any, then the
/// archives in the order of their sources.
#[derive(Serialize, Deserialize)]
pub(crate) struct StartMessage {
    pub(crate) id: String,
    pub(crate) disk_bytes: u64,
    /// The size of `/dev/shm`, where it is not part of the disk.
    pub(crate) shm_bytes: Option<u64>,
    pub(crate) process_limits: ProcessLimits,
    /// Uppermost first.
    pub(crate) layers: Vec<ContentSource>,
    pub(crate) mounts: Vec<ReadOnlyMount>,
    pub(crate) has_entrance: bool,
    pub(crate) intercepted_ports: Option<Vec<u16>>,
    pub(crate) has_snapshot: bool,
}

/// The source of a layer or mount.
#[derive(Serialize, Deserialize)]
pub(crate) enum ContentSource {
    HostTree(PathBuf),
    Archive,
}

/// A read-only mount at `target`.
#[derive(Serialize, Deserialize)]
pub(crate) struct ReadOnlyMount {
    pub(crate) source: ContentSource,
    pub(crate) target: PathBuf,
}

/// Limits per process. They replace those that no cgroup enforces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessLimits {
    pub(crate) file_bytes: u64,
    pub(crate) data_bytes: Option<u64>,
    pub(crate) processes: Option<u64>,
}

/// Init to the child that becomes a process. Carries: status pipe, stdout, then stderr and stdin as specified.
#[derive(Serialize, Deserialize)]
pub(crate) struct SpawnMessage {
    pub(crate) spawn: Spawn,
    pub(crate) process_limits: ProcessLimits,
}

/// Zygote to engine.
#[derive(Serialize, Deserialize)]
pub(crate) enum ZygoteReply {
    /// Carries a pidfd. Everything else about the sandbox is reported on its control socket.
    Cloned,
    /// Carries a pidfd if the process was cloned.
    Failed(Failure),
    Checks(Vec<Check>),
}

/// Init to engine, once, in reply to [`StartMessage`] or instead of waiting for it.
#[derive(Serialize, Deserialize)]
pub(crate) enum StartReply {
    /// Carries the entrance, a listening socket, where one was asked for; then proxy, DNS and intercepted ports, likewise.
    Ready,
    Failed(Failure),
}

/// Engine to init, once it is ready.
#[derive(Serialize, Deserialize)]
pub(crate) enum InitRequest {
    /// Carries: exit pipe, status pipe, stdout, then stderr and stdin as specified.
    Spawn(Spawn),
    Signal {
        process: u64,
        signal: i32,
    },
    /// Carries a reply pipe.
    KillAll,
    /// Carries a reply pipe. `agent` is the environment of what `as-agent` runs.
    Unseal {
        agent: BTreeMap<String, String>,
    },
    /// Carries a reply pipe.
    Renew,
    /// Carries a reply pipe.
    SealSetup,
    /// Carries a packet socket, on which a `Result<(), Failure>` comes back with a connection that may still be under
    /// way.
    Connect {
        port: u16,
    },
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Spawn {
    pub(crate) process: u64,
    pub(crate) work: Work,
    pub(crate) cwd: String,
    pub(crate) user: User,
    pub(crate) has_stderr: bool,
    pub(crate) has_stdin: bool,
}

/// What a new process in the sandbox does.
#[derive(Serialize, Deserialize)]
pub(crate) enum Work {
    Exec {
        argv: Vec<String>,
        env: BTreeMap<String, String>,
    },
    Write {
        path: String,
        mode: u32,
    },
    Read {
        path: String,
        bytes_max: u64,
    },
    /// The status, or null, is standard output.
    Stat {
        path: String,
    },
    Remove {
        path: String,
    },
    KeepHome,
    LayHome {
        named: Vec<PathBuf>,
    },
    List {
        path: String,
        depth: u32,
        entries_max: usize,
    },
    /// The archive is standard input.
    Unpack {
        target: String,
    },
    ReadFiles {
        directory: String,
        paths: Vec<String>,
    },
    /// Init adds the areas to save, as standard input.
    Snapshot,
}

/// `as-agent` to the process that init cloned for it, once.
#[derive(Serialize, Deserialize)]
pub(crate) struct ViewRequest {
    pub(crate) argv: Vec<String>,
    pub(crate) cwd: String,
}

/// The answers: that the command runs and how it ended, or why it cannot run.
#[derive(Serialize, Deserialize)]
pub(crate) enum ViewReply {
    /// Carries our ends of the command's stdin, stdout and stderr.
    Started,
    Ended {
        code: i32,
        signal: i32,
    },
    Failed(Failure),
}

/// A step that failed in the zygote or a sandbox, with the kernel's error.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) step: String,
    pub(crate) errno: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FailureKind {
    Setup,
    /// The kernel refuses namespaces, or more of them.
    Namespaces,
    /// `/proc` cannot be mounted. The outer one is never used instead: it would reveal our environment.
    Proc,
    Directory,
    Exec,
    File,
    NotRegular,
    TooLarge,
    /// An archive has an invalid entry.
    Archive,
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, step: impl Into<String>, error: &io::Error) -> Failure {
        Failure {
            kind,
            step: step.into(),
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        }
    }

    pub(crate) fn source(&self) -> io::Error {
        io::Error::from_raw_os_error(self.errno)
    }
}

/// Attaches the failed step to an error.
pub(crate) trait WithStep<T> {
    fn step(self, step: impl Into<String>) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> WithStep<T> for Result<T, E> {
    fn step(self, step: impl Into<String>) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(FailureKind::Setup, step, &error.into()))
    }
}

/// Encodes how a process ended for its exit pipe: code and signal, one of which is zero.
pub(crate) fn encode_exit(code: i32, signal: i32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&code.to_le_bytes());
    bytes[4..].copy_from_slice(&signal.to_le_bytes());
    bytes
}

/// The inverse of [`encode_exit`].
pub(crate) fn decode_exit(bytes: [u8; 8]) -> (i32, i32) {
    let [a, b, c, d, e, f, g, h] = bytes;
    (
        i32::from_le_bytes([a, b, c, d]),
        i32::from_le_bytes([e, f, g, h]),
    )
}

/// A connected pair of packet sockets, both close-on-exec.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?)
}

/// Sends one message. On a non-blocking socket it fails with `WouldBlock` without sending anything.
pub(crate) fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let json = serde_json::to_vec(message)?;
    let mut raw: Vec<RawFd> = descriptors
        .iter()
        .map(|descriptor| descriptor.as_raw_fd())
        .collect();
    let large = if json.len() > INLINE_BYTES_MAX {
        Some(sealed_memfd(&json)?)
    } else {
        None
    };
    let (tag, body): (&[u8], &[u8]) = match &large {
        Some(memfd) => {
            raw.push(memfd.as_raw_fd());
            (b"m", b"")
        }
        None => (b"i", &json),
    };
    let control = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() {
        &control[..0]
    } else {
        &control[..]
    };
    let parts = [IoSlice::new(tag), IoSlice::new(body)];
    sendmsg::<UnixAddr>(
        socket.as_raw_fd(),
        &parts,
        control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    Ok(())
}

/// Receives one message; `None` when the other side is gone.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut buffer = vec![0; INLINE_BYTES_MAX + 1];
    let mut control = nix::cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let (count, mut descriptors) = {
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message =
            recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
        let mut descriptors = Vec::new();
        for item in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(raw) = item {
                // SAFETY: the kernel has just installed these descriptors for us; nobody else owns them.
                descriptors.extend(
                    raw.into_iter()
                        .map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }),
                );
            }
        }
        (message.bytes, descriptors)
    };
    let value = match buffer.get(..count) {
        None | Some([]) => return Ok(None),
        Some([b'i', json @ ..]) => serde_json::from_slice(json)?,
        Some(_) => {
            let memfd = descriptors.pop().ok_or(io::ErrorKind::InvalidData)?;
            let mut json = Vec::new();
            let mut file = File::from(memfd);
            file.rewind()?;
            file.read_to_end(&mut json)?;
            serde_json::from_slice(&json)?
        }
    };
    Ok(Some((value, descriptors)))
}

/// Content as a sealed memfd, positioned at its start.
pub(crate) fn sealed_memfd(content: &[u8]) -> io::Result<OwnedFd> {
    let mut file = memfd()?;
    file.write_all(content)?;
    seal(file)
}

/// An empty memfd.
pub(crate) fn memfd() -> io::Result<File> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let no_exec = MFdFlags::from_bits_retain(libc::MFD_NOEXEC_SEAL);
    // Some systems refuse executable memfds; kernels before 6.3 do not know the flag.
    let memfd =
        memfd_create(c"rollcage", flags | no_exec).or_else(|_| memfd_create(c"rollcage", flags));
    Ok(memfd?.into())
}

/// Makes a memfd immutable and rewinds it.
pub(crate) fn seal(mut file: File) -> io::Result<OwnedFd> {
    file.rewind()?;
    let seals = SealFlag::F_SEAL_SEAL
        | SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_WRITE;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_message_and_its_descriptors_arrive_whole_at_any_size() {
        let (left, right) = pair().unwrap();
        for size in [0, 1, INLINE_BYTES_MAX - 2, INLINE_BYTES_MAX, 3_000_000] {
            let text = "x".repeat(size);
            let extra = sealed_memfd(b"beside").unwrap();
            send(left.as_fd(), &text, &[extra.as_fd()]).unwrap();
            let (got, descriptors): (String, _) = receive(right.as_fd()).unwrap().unwrap();
            assert_eq!(got, text);
            assert_eq!(descriptors.len(), 1);
        }
        drop(left);
        assert!(receive::<String>(right.as_fd()).unwrap().is_none());
    }
}
