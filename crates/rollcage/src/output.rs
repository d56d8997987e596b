//! Writing to standard output and standard error without panics: a closed pipe, a full disk and a lost terminal are
//! ordinary ends of a command. Clippy forbids `println!` and the like, which panic in these cases.

#![expect(
    clippy::disallowed_methods,
    reason = "this is the one place that writes there"
)]

use std::io::{self, IsTerminal, LineWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

/// The first failure of standard output. It is a global because write errors come back wrapped in the errors of JSON,
/// Parquet and others, and some occur in a final flush whose result nobody checks.
static FAILURE: OnceLock<Errno> = OnceLock::new();

/// Between two checks whether standard output still has a reader.
const WATCH_PAUSE_MS: u16 = 500;

/// Why standard output cannot be written any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputFailure {
    /// Its reader has gone, which is not an error.
    Closed,
    /// It cannot be written, say because the disk is full.
    Failed(Errno),
}

/// The first failure of standard output, if there was one.
pub(crate) fn failure() -> Option<OutputFailure> {
    let errno = *FAILURE.get()?;
    Some(if is_gone(errno) {
        OutputFailure::Closed
    } else {
        OutputFailure::Failed(errno)
    })
}

/// The result of writing to [`stdout`], as success if only the reader has gone: for commands that have other work to
/// finish.
pub(crate) fn ignore_closed_reader<E>(written: Result<(), E>) -> Result<(), E> {
    match failure() {
        Some(OutputFailure::Closed) => Ok(()),
        _ => written,
    }
}

/// Standard output for a command's results, written line by line. The first failure is kept for [`failure`].
pub(crate) fn stdout() -> impl Write + Send {
    LineWriter::new(Stdout)
}

struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_some(bytes).map_err(|errno| {
            note(errno);
            let text = format!("write to standard output: {}", errno.desc());
            io::Error::new(io::Error::from(errno).kind(), text)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Prints on standard output where a server listens. A server whose output nobody reads runs all the same.
pub(crate) fn announce(text: &str) {
    let mut line = text.as_bytes().to_vec();
    line.push(b'\n');
    let mut rest = line.as_slice();
    while !rest.is_empty() {
        match write_some(rest) {
            Ok(written) => rest = &rest[written..],
            Err(_) => return say(text),
        }
    }
}

/// Prints a line on standard error. Failures are ignored, since results never go there.
pub(crate) fn say(text: &str) {
    let line = format!("{text}\n");
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// Standard error for logs. Writing never fails, so that the logger does not report its own failures to standard error.
pub(crate) struct StderrLog;

impl Write for StderrLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().lock().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// For a process that stays when its starter has gone: standard output becomes `/dev/null`, standard error the log.
/// Returns what standard output was.
pub(crate) fn detach(log: &std::fs::File) -> io::Result<std::fs::File> {
    let starter = io::stdout().as_fd().try_clone_to_owned()?;
    let nowhere = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    nix::unistd::dup2_stdin(&nowhere)?;
    nix::unistd::dup2_stdout(&nowhere)?;
    nix::unistd::dup2_stderr(log)?;
    Ok(starter.into())
}

pub(crate) fn is_stdout_terminal() -> bool {
    io::stdout().is_terminal()
}

pub(crate) fn is_stderr_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Waits until standard output has no reader any more; forever if it is a file.
pub(crate) async fn reader_gone() {
    let (gone, notified) = oneshot::channel();
    // A thread that polls until this future is dropped: registering a descriptor that we do not own needs `unsafe`.
    let watch = std::thread::Builder::new().name("output-watch".to_owned());
    let watching = watch.spawn(move || {
        while !gone.is_closed() {
            if has_no_reader() {
                note(Errno::EPIPE);
                let _ = gone.send(());
                return;
            }
        }
    });
    if watching.is_err() || notified.await.is_err() {
        std::future::pending().await
    }
}

/// Polls for a while. A closed pipe is noticed at once, a closed terminal at the next poll.
fn has_no_reader() -> bool {
    let stdout = io::stdout();
    let mut end = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    match poll(&mut end, WATCH_PAUSE_MS) {
        Ok(_) => end[0].any().unwrap_or_default(),
        Err(_) => false,
    }
}

fn note(errno: Errno) {
    // Later failures follow from the first.
    let _ = FAILURE.set(errno);
}

fn write_some(bytes: &[u8]) -> nix::Result<usize> {
    let stdout = io::stdout();
    loop {
        match nix::unistd::write(&stdout, bytes) {
            Err(Errno::EINTR) => {}
            // Our parent made it non-blocking: wait until it is writable.
            Err(Errno::EAGAIN) => {
                let mut room = [PollFd::new(stdout.as_fd(), PollFlags::POLLOUT)];
                match poll(&mut room, PollTimeout::NONE) {
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
            written => return written,
        }
    }
}

/// Whether the reader has gone. A closed terminal returns EIO, as a broken disk does.
fn is_gone(errno: Errno) -> bool {
    match errno {
        Errno::EPIPE | Errno::ECONNRESET => true,
        Errno::EIO => {
            let file = io::stdout().as_fd().try_clone_to_owned();
            let kind = file.and_then(|file| std::fs::File::from(file).metadata());
            kind.is_ok_and(|metadata| metadata.file_type().is_char_device())
        }
        _ => false,
    }
}
