//! Standard output and standard error, written so that nobody dies of them: a reader that has gone, a full disk and a
//! lost terminal are ordinary ends of a command. Clippy forbids `println!` and its like, which panic then.

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

/// The first failure of standard output. It is kept here because errors of writing come back wrapped by whatever wrote,
/// JSON and Parquet among them, and some of it at the end of a program, where nobody looks any more.
static FAILURE: OnceLock<Errno> = OnceLock::new();

/// Between two looks at who reads.
const WATCH_PAUSE_MS: u16 = 500;

/// Why standard output took no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undelivered {
    /// Its reader has gone, which is no error of anybody's.
    Closed,
    /// It cannot be written, say because the disk is full.
    Failed(Errno),
}

/// Why standard output took no more, if it did not.
pub(crate) fn undelivered() -> Option<Undelivered> {
    let errno = *FAILURE.get()?;
    Some(if is_gone(errno) {
        Undelivered::Closed
    } else {
        Undelivered::Failed(errno)
    })
}

/// What came of writing to [`stdout`], for those who have more to say than that their reader has gone.
pub(crate) fn unless_gone<E>(written: Result<(), E>) -> Result<(), E> {
    match undelivered() {
        Some(Undelivered::Closed) => Ok(()),
        _ => written,
    }
}

/// Standard output for what a command was asked for, written line by line. The first failure is kept for
/// [`undelivered`].
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

/// Says on standard output where a server listens. One that nobody reads serves all the same.
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

/// A line on standard error. What cannot be said is lost: it is never a result.
pub(crate) fn say(text: &str) {
    let line = format!("{text}\n");
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// Standard error for logs. It never fails, so that nobody complains there about standard error.
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().lock().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn is_stdout_terminal() -> bool {
    io::stdout().is_terminal()
}

pub(crate) fn is_stderr_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Waits until nobody reads standard output any more; for ever where it is a file, which has no reader.
pub(crate) async fn reader_gone() {
    let (gone, told) = oneshot::channel();
    // A thread, which ends with whoever waits here: waiting for a descriptor that is not ours takes no `unsafe` so.
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
    if watching.is_err() || told.await.is_err() {
        std::future::pending().await
    }
}

/// Looks for a while. A pipe's end is seen at once, a terminal's at the next look.
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
            // Whoever started us made it non-blocking: wait for room like everybody else.
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

/// Whether there is nobody to write for. A terminal that was closed gives the error of a broken disk.
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
