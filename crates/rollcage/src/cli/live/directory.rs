//! The directory of one live agent below `$ROLLCAGE_HOME/live`: its supervisor's socket, lock and log.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::stat::Mode;
use tokio::net::{UnixListener, UnixStream};

const SOCKET: &str = "socket";
const LOCK: &str = "supervisor.lock";
const LOG: &str = "supervisor.log";
/// A supervisor accepts at once, unless it is stuck.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const LOCK_POLL: Duration = Duration::from_millis(50);

/// Where all live agents of a home are.
pub(super) fn root(home: &Path) -> PathBuf {
    home.join("live")
}

#[derive(Clone, Debug)]
pub(super) struct AgentDirectory {
    path: PathBuf,
}

/// Held by a supervisor while it lives; the kernel releases it.
#[derive(Debug)]
pub(super) struct SupervisorLock {
    _file: Flock<File>,
}

impl AgentDirectory {
    pub(super) fn new(home: &Path, id: &str) -> Self {
        AgentDirectory {
            path: root(home).join(id),
        }
    }

    pub(super) fn log(&self) -> PathBuf {
        self.path.join(LOG)
    }

    pub(super) fn serve_log(&self) -> PathBuf {
        self.path.join("serve.log")
    }

    /// `None` while a supervisor lives.
    pub(super) fn lock(&self) -> io::Result<Option<SupervisorLock>> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(self.path.join(LOCK))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(Some(SupervisorLock { _file: file })),
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(errno.into()),
        }
    }

    /// Like [`AgentDirectory::lock`], past somebody who only looks whether a supervisor lives.
    pub(super) async fn lock_soon(&self, deadline: Instant) -> io::Result<Option<SupervisorLock>> {
        loop {
            match self.lock()? {
                Some(lock) => return Ok(Some(lock)),
                None if Instant::now() >= deadline => return Ok(None),
                None => tokio::time::sleep(LOCK_POLL).await,
            }
        }
    }

    /// Whether no supervisor lives any more, waited for until the deadline.
    pub(super) async fn wait_until_free(&self, deadline: Instant) -> io::Result<bool> {
        loop {
            match self.lock() {
                Ok(Some(_)) => return Ok(true),
                // The whole directory is gone.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
                Err(error) => return Err(error),
                Ok(None) if Instant::now() >= deadline => return Ok(false),
                Ok(None) => tokio::time::sleep(LOCK_POLL).await,
            }
        }
    }

    /// A path to the socket that is short enough for the kernel, valid while the descriptor is open.
    pub(super) fn short_socket(&self) -> io::Result<(PathBuf, OwnedFd)> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = nix::fcntl::open(&self.path, flags, Mode::empty())?;
        let path = format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd());
        Ok((PathBuf::from(path), directory))
    }

    /// Listens, with a socket that appears with its mode and replaces one that a dead supervisor left.
    pub(super) fn listen(&self, _held: &SupervisorLock) -> io::Result<UnixListener> {
        let (socket, _directory) = self.short_socket()?;
        let new = socket.with_extension("new");
        remove_if_there(&new)?;
        let listener = UnixListener::bind(&new)?;
        std::fs::set_permissions(&new, PermissionsExt::from_mode(0o600))?;
        std::fs::rename(&new, &socket)?;
        Ok(listener)
    }

    pub(super) fn remove_socket(&self, _held: &SupervisorLock) -> io::Result<()> {
        remove_if_there(&self.path.join(SOCKET))
    }

    /// Whether a supervisor listens. The socket of a dead one is removed.
    pub(super) async fn is_served(&self) -> bool {
        let Ok((socket, _directory)) = self.short_socket() else {
            return false;
        };
        let connected = tokio::time::timeout(CONNECT_LIMIT, UnixStream::connect(&socket)).await;
        if matches!(connected, Ok(Ok(_))) {
            return true;
        }
        // Only then: who locks it for a moment could be in the way of somebody that starts it.
        if self.path.join(SOCKET).exists()
            && let Ok(Some(held)) = self.lock()
        {
            // It is only untidy.
            let _ = self.remove_socket(&held);
        }
        false
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A new log of a supervisor, whose agent may not have a directory yet.
pub(super) struct NewLog {
    pub(super) file: File,
    path: PathBuf,
}

impl NewLog {
    pub(super) fn create(home: &Path) -> io::Result<Self> {
        let root = root(home);
        std::fs::DirBuilder::new()
            .recursive(true)
            .create(&root)
            .and_then(|()| std::fs::set_permissions(&root, PermissionsExt::from_mode(0o700)))?;
        let path = root.join(format!(".supervisor-{}.log", std::process::id()));
        remove_if_there(&path)?;
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .mode(0o600)
            .open(&path)?;
        Ok(NewLog { file, path })
    }

    pub(super) fn move_to(&mut self, agent: &AgentDirectory) -> io::Result<()> {
        let path = agent.log();
        std::fs::rename(&self.path, &path)?;
        self.path = path;
        Ok(())
    }

    pub(super) fn remove(&self) {
        let _ = remove_if_there(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(home: &Path) -> AgentDirectory {
        let agent = AgentDirectory::new(home, &"d".repeat(120));
        std::fs::create_dir_all(&agent.path).unwrap();
        agent
    }

    #[tokio::test]
    async fn a_socket_may_lie_deep_is_private_and_does_not_outlive_its_supervisor() {
        let home = tempfile::tempdir().unwrap();
        let agent = agent(home.path());
        assert!(!agent.is_served().await);
        let held = agent.lock().unwrap().unwrap();
        let listener = agent.listen(&held).unwrap();
        assert!(agent.is_served().await);
        assert!(agent.lock().unwrap().is_none());
        let socket = agent.path.join(SOCKET);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&socket), 0o600);
        assert_eq!(mode(&agent.path.join(LOCK)), 0o600);
        // As `kill -9` leaves it.
        drop((listener, held));
        assert!(socket.exists());
        assert!(!agent.is_served().await);
        assert!(!socket.exists());
    }
}
