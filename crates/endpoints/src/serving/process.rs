//! The process of a model server that we started: process group, log, readiness and termination.
//!
//! A small shell script runs between us and the server. It holds the reading end of a pipe that only we write to, so it
//! notices when we exit, even by SIGKILL, and then kills the server's whole process group. It does so at once and needs
//! no `unsafe`; a pid file would only be read at our next start.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use super::ServingError;

/// Runs its arguments and waits. When the pipe on standard input closes, it terminates the server, and kills it after a
/// grace period. When the server exits, it terminates what is left in the process group.
const GUARD: &str = r#"
exec 3<&0 </dev/null
"$@" 3<&- &
server=$!
{ while read -r _ <&3; do :; done; kill -TERM "$server"; sleep 5; kill -KILL 0; } >/dev/null 2>&1 &
exec 3<&-
wait "$server"
code=$?
trap '' TERM
kill -TERM 0
exit "$code"
"#;
/// The guard's grace period of five seconds, plus a margin.
const STOP_LIMIT: Duration = Duration::from_secs(7);
/// Polling interval while a server starts; doubles up to `PAUSE_MAX`.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Timeout of one readiness check.
const LOOK_LIMIT: Duration = Duration::from_secs(5);
/// Size limit of a log, so that a long-lived server cannot fill the disk. Checked periodically, so it may be exceeded
/// briefly.
const LOG_BYTES_MAX: u64 = 16 << 20;
/// What is kept of a log that is too long: the start and the end.
const LOG_HEAD_BYTES: u64 = 1 << 20;
const LOG_TAIL_BYTES: u64 = 4 << 20;
const LOG_PAUSE: Duration = Duration::from_secs(5);
/// The part of a log that is shown in errors.
const TAIL_BYTES: u64 = 4096;
const TAIL_LINES: usize = 12;

/// What to start, and where to log.
pub(super) struct ServerLaunch {
    pub(super) name: String,
    /// The program's path, then its arguments.
    pub(super) command: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) log: PathBuf,
}

/// A started server. If dropped without [`ServerProcess::stop`] it is terminated in the background.
pub(super) struct ServerProcess {
    name: String,
    child: Child,
    group: Option<Pid>,
    log: PathBuf,
    /// Trims the log periodically; stops on drop.
    _trimming: JoinSet<()>,
}

impl ServerProcess {
    pub(super) fn start(launch: ServerLaunch) -> Result<Self, ServingError> {
        let failed = |source| ServingError::Start {
            name: launch.name.clone(),
            source,
        };
        File::create(&launch.log).map_err(failed)?;
        // In append mode, so that we can cut out the middle while the server writes.
        let log = File::options().append(true).open(&launch.log);
        let log = log.map_err(failed)?;
        let errors = log.try_clone().map_err(failed)?;
        let child = Command::new("/bin/sh")
            .args(["-c", GUARD, "rollcage-guard"])
            .args(&launch.command)
            .envs(&launch.env)
            .stdin(Stdio::piped())
            .stdout(log)
            .stderr(errors)
            // Keeps Ctrl-C from the server: it is stopped after the rollouts have ended.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let group = child.id().and_then(|id| i32::try_from(id).ok());
        Ok(ServerProcess {
            name: launch.name,
            group: group.map(Pid::from_raw),
            child,
            _trimming: trim_periodically(launch.log.clone()),
            log: launch.log,
        })
    }

    /// Waits until the URL responds with success. Fails early if the server exits.
    pub(super) async fn wait_ready(
        &mut self,
        client: &reqwest::Client,
        url: &str,
        limit: Duration,
    ) -> Result<(), ServingError> {
        let deadline = Instant::now() + limit;
        let mut pause = FIRST_PAUSE;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(ServingError::Exited {
                    name: self.name.clone(),
                    status: status.to_string(),
                    tail: self.tail(),
                    log: self.log.clone(),
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ServingError::NotReady {
                    name: self.name.clone(),
                    url: url.to_owned(),
                    limit_s: limit.as_secs_f64(),
                    tail: self.tail(),
                    log: self.log.clone(),
                });
            }
            let look = client.get(url).timeout(LOOK_LIMIT.min(left)).send().await;
            if look.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    pub(super) fn has_exited(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Stops the server and removes its log.
    pub(super) async fn stop(mut self) {
        self.end().await;
        let _ = std::fs::remove_file(&self.log);
    }

    /// Terminates the server, and kills its process group if it does not exit.
    pub(super) async fn end(&mut self) {
        drop(self.child.stdin.take());
        if tokio::time::timeout(STOP_LIMIT, self.child.wait())
            .await
            .is_err()
        {
            // The guard is not reaped yet, so the group id has not been reused.
            if let Some(group) = self.group {
                let _ = killpg(group, Signal::SIGKILL);
            }
            let _ = tokio::time::timeout(STOP_LIMIT, self.child.wait()).await;
        }
    }

    /// The last lines of its output.
    fn tail(&self) -> String {
        let text = read_tail(&self.log).unwrap_or_default();
        let lines: Vec<_> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        let skipped = lines.len().saturating_sub(TAIL_LINES);
        match &lines[skipped..] {
            [] => "it printed nothing".to_owned(),
            last => format!("it last printed:\n  {}", last.join("\n  ")),
        }
    }
}

fn trim_periodically(log: PathBuf) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        loop {
            tokio::time::sleep(LOG_PAUSE).await;
            let log = log.clone();
            // A missing log or a full disk must not stop a server.
            let _ = tokio::task::spawn_blocking(move || trim(&log, LOG_BYTES_MAX)).await;
        }
    });
    tasks
}

/// Cuts out the middle of a log that is too long. Output written at the same time may be lost.
fn trim(path: &Path, bytes_max: u64) -> std::io::Result<()> {
    let mut log = File::options().read(true).append(true).open(path)?;
    let length = log.metadata()?.len();
    if length <= bytes_max {
        return Ok(());
    }
    let from = length - LOG_TAIL_BYTES.min(length / 2);
    let kept = LOG_HEAD_BYTES.min(length / 4);
    log.seek(SeekFrom::Start(from))?;
    let mut tail = format!("\n[{} bytes were cut out here]\n", from - kept).into_bytes();
    (&mut log).take(length - from).read_to_end(&mut tail)?;
    log.set_len(kept)?;
    log.write_all(&tail)
}

fn read_tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Locates a program: a name on the search path, or a path as given.
pub(super) fn find_program(name: &str, search_path: Option<&str>) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let is_program = |path: &Path| {
        path.metadata()
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        let path = PathBuf::from(name);
        return is_program(&path).then_some(path);
    }
    std::env::split_paths(search_path?)
        .map(|directory| directory.join(name))
        .find(|path| is_program(path))
}

/// A currently free port, for the server to bind shortly after.
pub(super) fn free_port() -> std::io::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_too_long_keeps_its_beginning_and_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("1-x-2.log");
        let lines: String = (0..1000).map(|number| format!("line {number}\n")).collect();
        std::fs::write(&path, &lines).unwrap();
        let mut server = File::options().append(true).open(&path).unwrap();
        trim(&path, lines.len() as u64).unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            lines,
            "short enough"
        );
        trim(&path, 1000).unwrap();
        server.write_all(b"more\n").unwrap();
        let log = std::fs::read_to_string(&path).unwrap();
        assert!(log.len() < lines.len(), "{}", log.len());
        assert!(log.starts_with("line 0\nline 1\n"), "{log}");
        assert!(log.contains(" bytes were cut out here]\n"), "{log}");
        assert!(log.ends_with("line 998\nline 999\nmore\n"), "{log}");
    }
}
