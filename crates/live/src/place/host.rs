//! This machine as a place. A server here outlives us when we are killed: whoever keeps its [`ProcessIdentity`] on disk takes
//! it over at the next start, or ends it.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use rollcage_sandbox::{BoxedStream, ExitStatus, Output};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::tree::Tree;
use super::{MARK, Place, ProcessIdentity, ServeCommand, ServeProcess, new_mark};

/// How often it is looked whether a process that is not our child is still there.
const ADOPTED_PAUSE: Duration = Duration::from_millis(100);
/// SIGKILL works at once unless the kernel is stuck.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// A destructor must not keep its thread for long.
const DROP_LIMIT: Duration = Duration::from_millis(500);

/// This machine, without any isolation. An empty work directory means our own.
#[derive(Debug, Default)]
pub struct HostPlace {}

impl HostPlace {
    /// Takes over a server that an earlier process of ours started here; `None` if it has ended. Nobody reads what it prints
    /// from now on.
    pub fn adopt(&self, identity: ProcessIdentity) -> Option<Box<dyn ServeProcess>> {
        identity.is_alive().then(|| {
            let process = HostProcess {
                child: None,
                tree: Tree::new(identity),
                is_over: false,
            };
            Box::new(process) as Box<dyn ServeProcess>
        })
    }
}

#[async_trait]
impl Place for HostPlace {
    fn free_port(&self, _attempt: u32) -> io::Result<u16> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        Ok(listener.local_addr()?.port())
    }

    async fn spawn(&self, command: ServeCommand) -> io::Result<Box<dyn ServeProcess>> {
        let (program, arguments) = command
            .argv
            .split_first()
            .ok_or(io::ErrorKind::InvalidInput)?;
        let mark = new_mark()?;
        let mut start = Command::new(program);
        start
            .args(arguments)
            .env_clear()
            .envs(&command.env)
            .env(MARK, &mark)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Keeps a terminal's Ctrl-C from the server: whoever owns it ends it in its turn.
            .process_group(0)
            .kill_on_drop(true);
        if !command.cwd.is_empty() {
            start.current_dir(&command.cwd);
        }
        let child = start.spawn()?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        // Our own child is in /proc at least until somebody waits for it.
        let identity = pid.and_then(|pid| ProcessIdentity::of_child(pid, mark));
        let identity = identity.ok_or_else(|| io::Error::other("/proc does not show processes"))?;
        Ok(Box::new(HostProcess {
            child: Some(child),
            tree: Tree::new(identity),
            is_over: false,
        }))
    }

    async fn connect(&self, port: u16) -> io::Result<BoxedStream> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}

struct HostProcess {
    /// `None` for one that was adopted.
    child: Option<Child>,
    tree: Tree,
    /// Nothing of it is left.
    is_over: bool,
}

#[async_trait]
impl ServeProcess for HostProcess {
    fn take_output(&mut self) -> (Option<Output>, Option<Output>) {
        let Some(child) = &mut self.child else {
            return (None, None);
        };
        let stdout = child.stdout.take().map(|stream| Box::new(stream) as Output);
        let stderr = child.stderr.take().map(|stream| Box::new(stream) as Output);
        (stdout, stderr)
    }

    fn identity(&self) -> Option<ProcessIdentity> {
        Some(self.tree.root.clone())
    }

    async fn wait(&mut self) -> io::Result<ExitStatus> {
        use std::os::unix::process::ExitStatusExt;
        if let Some(child) = &mut self.child {
            let status = child.wait().await?;
            return Ok(ExitStatus {
                code: status.code(),
                signal: status.signal(),
            });
        }
        while self.tree.root.is_alive() {
            tokio::time::sleep(ADOPTED_PAUSE).await;
        }
        Err(io::Error::other("it was started by an earlier process"))
    }

    async fn end(&mut self, grace: Duration) -> Option<ExitStatus> {
        // Before the server's end, which takes their parent from its children.
        self.with_tree(|tree| drop(tree.look())).await;
        if self.tree.root.is_alive() {
            self.tree.terminate();
            let _ = tokio::time::timeout(grace, self.wait()).await;
        }
        self.with_tree(|tree| tree.kill(KILL_LIMIT)).await;
        self.is_over = true;
        let end = tokio::time::timeout(KILL_LIMIT, self.wait()).await;
        end.ok()?.ok()
    }
}

impl HostProcess {
    /// Reading /proc blocks.
    async fn with_tree(&mut self, work: impl FnOnce(&mut Tree) + Send + 'static) {
        let mut tree = self.tree.clone();
        let done = tokio::task::spawn_blocking(move || {
            work(&mut tree);
            tree
        });
        if let Ok(tree) = done.await {
            self.tree = tree;
        }
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        if !self.is_over {
            self.tree.kill(DROP_LIMIT);
        }
    }
}
