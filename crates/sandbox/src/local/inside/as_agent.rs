//! The program `as-agent`, which verify commands call: asks init to run a command as the agent would run it, copies its
//! streams, and exits as it did. Its own descriptors stay its own.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use super::builtin::standard;
use crate::guest::{AS_AGENT, AS_AGENT_SOCKET, VERIFY_RUN};
use crate::local::shared::wire::{self, Failure, FailureKind, ViewReply, ViewRequest};

const HELP: &str = "\
Runs a command as the agent would run it, so that nothing of the verifier's is within its reach.

Usage: as-agent COMMAND [ARGUMENT...]

The command has the agent's HOME and environment, and a /tmp of its own. It sees neither tests, logs nor the
verifier's processes. It runs in the current directory, or in the work directory where it cannot see that. All it
started ends with it, and it ends with its caller. The exit code is the command's own, 128 + N after signal N, 126
or 127 if it could not be started.
";

/// Shells' codes for a command that cannot be run and one that is not there.
const NOT_RUNNABLE: i32 = 126;
const NOT_FOUND: i32 = 127;
const WRONG_USE: i32 = 2;
const STDOUT: i32 = 1;
const STDERR: i32 = 2;

/// Runs as `as-agent` and exits, if this program was called by that name.
pub fn run_if_called() {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    if Path::new(&name).file_name() != Path::new(AS_AGENT).file_name() {
        return;
    }
    let argv: Vec<String> = arguments
        .map(|it| it.to_string_lossy().into_owned())
        .collect();
    let code = match argv.first().map(String::as_str) {
        None | Some("-h" | "--help") => {
            let _ = standard(STDOUT).write_all(HELP.as_bytes());
            if argv.is_empty() { WRONG_USE } else { 0 }
        }
        Some(_) => run(argv).unwrap_or_else(|error| {
            complain(&error.to_string());
            NOT_RUNNABLE
        }),
    };
    std::process::exit(code)
}

fn complain(text: &str) {
    let _ = writeln!(standard(STDERR), "as-agent: {text}");
}

fn run(argv: Vec<String>) -> io::Result<i32> {
    let connection = call()?;
    let cwd = std::env::current_dir().unwrap_or_default();
    let cwd = String::from_utf8_lossy(cwd.as_os_str().as_bytes()).into_owned();
    let command = argv.first().cloned().unwrap_or_default();
    wire::send(connection.as_fd(), &ViewRequest { argv, cwd }, &[])?;
    let mut copies = Vec::new();
    loop {
        match wire::receive(connection.as_fd())? {
            Some((ViewReply::Started, streams)) => copies = copy_streams(streams),
            Some((ViewReply::Ended { code, signal }, _)) => {
                // Everything that could write is dead, so these come to their end.
                for copy in copies {
                    let _ = copy.join();
                }
                return Ok(if signal == 0 { code } else { 128 + signal });
            }
            Some((ViewReply::Failed(failure), _)) => return Ok(explain(&command, &failure)),
            None => {
                return Err(io::Error::other(
                    "too many calls, or no memory for one more",
                ));
            }
        }
    }
}

fn call() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let connection = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    let address = UnixAddr::new(Path::new(VERIFY_RUN).join(AS_AGENT_SOCKET).as_path())?;
    connect(connection.as_raw_fd(), &address)?;
    Ok(connection)
}

/// Copies stdin to the command, and back what it prints. Returns the latter.
fn copy_streams(streams: Vec<OwnedFd>) -> Vec<thread::JoinHandle<()>> {
    let mut streams = streams.into_iter().map(File::from);
    if let Some(mut stdin) = streams.next() {
        // Nobody waits for it: the caller's stdin may never end.
        thread::spawn(move || io::copy(&mut io::stdin().lock(), &mut stdin));
    }
    let outputs = streams.zip([STDOUT, STDERR]);
    let copies = outputs.map(|(mut stream, ours)| {
        thread::spawn(move || drop(io::copy(&mut stream, &mut *standard(ours))))
    });
    copies.collect()
}

/// Says why a command could not be started, and with which code to exit.
fn explain(command: &str, failure: &Failure) -> i32 {
    let source = failure.source();
    match failure.kind {
        FailureKind::Exec => complain(&format!("{command}: {source}")),
        _ => complain(&format!("{}: {source}", failure.step)),
    }
    match (failure.kind, source.kind()) {
        (FailureKind::Exec, io::ErrorKind::NotFound) => NOT_FOUND,
        _ => NOT_RUNNABLE,
    }
}
