//! Runs the commands of one page, in order and in a home of their own, with the servers that they start.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::page::{Block, Marker, Page, root};

/// For one block; `timeout` ends it then.
const BLOCK_LIMIT_S: &str = "120";
const STOP_LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Shell {
    scratch: tempfile::TempDir,
    servers: Vec<Server>,
    /// Ports as the page has them, and as they are.
    ports: Vec<(u16, u16)>,
}

struct Server {
    process: Child,
    /// Open for as long as it runs: a server whose reader goes away ends.
    _stdout: BufReader<ChildStdout>,
}

impl Shell {
    pub(crate) fn new() -> Shell {
        let scratch = tempfile::tempdir().unwrap();
        for name in ["examples", "manifests"] {
            let copied = Command::new("cp")
                .arg("-r")
                .args([root().join(name), scratch.path().join(name)])
                .status();
            assert!(copied.unwrap().success());
        }
        Shell {
            scratch,
            servers: Vec::new(),
            ports: Vec::new(),
        }
    }

    /// Runs a page from its beginning to its end; what is left of its home is the answer.
    pub(crate) fn run(mut self, page: &Page) -> BTreeSet<String> {
        for block in &page.blocks {
            let place = format!("{}:{}", page.name(), block.line);
            match (&block.marker, block.language.as_str()) {
                (Some(Marker::File(name)), _) => {
                    std::fs::write(self.scratch.path().join(name), &block.text).unwrap();
                }
                (Some(Marker::Server(port)), "sh") => self.start(*port, block, &place),
                (None, "sh") => self.run_block(&self.at_real_ports(&block.text), &place),
                _ => {}
            }
        }
        for server in std::mem::take(&mut self.servers) {
            stop(server);
        }
        self.left()
    }

    fn command(&self, program: &str) -> Command {
        let bin = Path::new(env!("CARGO_BIN_EXE_rollcage")).parent().unwrap();
        let mut command = Command::new(program);
        command
            .current_dir(self.scratch.path())
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
            .env("HOME", self.scratch.path())
            .env("ROLLCAGE_HOME", self.home())
            .env("LANG", "C.UTF-8");
        command
    }

    fn home(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    fn at_real_ports(&self, text: &str) -> String {
        let ports = self.ports.iter();
        ports.fold(text.to_owned(), |text, (shown, real)| {
            text.replace(&format!(":{shown}"), &format!(":{real}"))
        })
    }

    fn run_block(&self, text: &str, place: &str) {
        let output = self
            .command("timeout")
            .args([BLOCK_LIMIT_S, "bash", "-euo", "pipefail", "-c", text])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{place}: {}\n{text}\n{}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Starts the block's one command at a free port instead of its own.
    fn start(&mut self, port: u16, block: &Block, place: &str) {
        let text = self.at_real_ports(&block.text);
        let (command, _comment) = text.split_once("  #").unwrap_or((&text, ""));
        let log = self.scratch.path().join("server.log");
        let mut process = self
            .command("bash")
            .args(["-c", &format!("exec {} --port 0", command.trim())])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        self.servers.push(Server {
            process,
            _stdout: stdout,
        });
        let real = line.split("http://127.0.0.1:").nth(1).and_then(|rest| {
            let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next();
            digits?.parse().ok()
        });
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        let real = real.unwrap_or_else(|| panic!("{place}: no address: {line}{}", said()));
        self.ports.push((port, real));
    }

    /// The names at the top of the home, and those of files in records.
    fn left(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let top = entries(&self.home());
        names.extend(top.iter().map(|path| name_of(path)));
        for record in entries(&self.home().join("rollouts")) {
            names.extend(entries(&record).iter().map(|path| name_of(path)));
        }
        names
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.process.kill();
            let _ = server.process.wait();
        }
    }
}

/// As Ctrl-C does, so that it ends in good order.
fn stop(mut server: Server) {
    let process = Pid::from_raw(i32::try_from(server.process.id()).unwrap());
    kill(process, Signal::SIGTERM).unwrap();
    let deadline = Instant::now() + STOP_LIMIT;
    while server.process.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = server.process.kill();
            let _ = server.process.wait();
            panic!("a server of the documentation did not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(directory);
    found.map_or_else(
        |_| Vec::new(),
        |found| found.flatten().map(|entry| entry.path()).collect(),
    )
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}
