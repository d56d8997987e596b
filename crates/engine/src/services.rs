//! A task's services: programs that run beside the agent or the verify commands.
//!
//! Each is watched until its end, so that its output never fills a pipe. The end of the output is kept in memory, and
//! written to the record when the rollout is over.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use rollcage_model::ending::Cause;
use rollcage_model::finding::{Code, Finding};
use rollcage_model::task::{Service, Task};
use rollcage_model::text::tail;
use rollcage_sandbox::{Error, ExitStatus, Output, Process, Sandbox};

use crate::judge::{Ending, exit_text};
use crate::shell::{TAIL_CHARS, live_processes, run_command, shell};
use crate::store::private_file;

type Variables = BTreeMap<String, String>;

/// What is kept of one service's output.
const LOG_BYTES_MAX: usize = 1 << 20;
/// Between two tries of a ready command. A service without one is ready if it still runs after this time.
const READY_PAUSE: Duration = Duration::from_millis(100);
/// How long to read output still in the pipes after a service's end.
const LAST_OUTPUT: Duration = Duration::from_millis(200);
/// How long a process may take to end before it counts as left behind by setup.
const LEAVE_PAUSE: Duration = Duration::from_millis(100);

/// The services of a rollout's two phases.
pub(crate) struct RolloutServices {
    pub(crate) agent: Services,
    pub(crate) verify: Services,
}

impl RolloutServices {
    pub(crate) fn of(task: &Task) -> Self {
        RolloutServices {
            agent: Services::new("service", &task.services),
            verify: Services::new("verify service", &task.verify_services),
        }
    }

    /// Writes the output of those that were started to the record.
    pub(crate) async fn keep(&self, directory: &Path) {
        for services in [&self.agent, &self.verify] {
            services.keep(directory).await;
        }
    }
}

/// Why services cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    #[error("{0}")]
    NotReady(String),
    #[error(transparent)]
    Sandbox(#[from] Error),
}

impl ServiceError {
    /// During setup.
    pub(crate) fn ending(self) -> Ending {
        match self {
            ServiceError::NotReady(text) => Ending::new(Cause::SetupFailed, text),
            ServiceError::Sandbox(error) => error.into(),
        }
    }
}

/// The services of one phase.
pub(crate) struct Services {
    /// What they are called in messages and, with dashes, in the record.
    kind: &'static str,
    services: Vec<Watched>,
    tasks: JoinSet<()>,
}

struct Watched {
    service: Service,
    log: Arc<Mutex<Log>>,
    /// Of its latest start, if any. Closed once all of the output is read.
    end: Option<watch::Receiver<Option<ExitStatus>>>,
}

impl Services {
    fn new(kind: &'static str, declared: &[Service]) -> Self {
        let watched = |service: &Service| Watched {
            service: service.clone(),
            log: Arc::default(),
            end: None,
        };
        Services {
            kind,
            services: declared.iter().map(watched).collect(),
            tasks: JoinSet::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// Starts them one after the other, each once the one before is ready. They may be started again when all are dead.
    pub(crate) async fn start(
        &mut self,
        sandbox: &dyn Sandbox,
        env: &Variables,
        cwd: &str,
    ) -> Result<(), ServiceError> {
        for index in 0..self.services.len() {
            let watched = &mut self.services[index];
            let command = shell(&watched.service.run, env.clone(), cwd);
            let process = sandbox.spawn(command).await?;
            let (tell, mut end) = watch::channel(None);
            self.tasks
                .spawn(watch_process(process, Arc::clone(&watched.log), tell));
            watched.end = Some(end.clone());
            let ready = until_ready(sandbox, &watched.service, &mut end, env, cwd).await?;
            if let Err(problem) = ready {
                let _ = timeout(LAST_OUTPUT, drained(&mut end)).await;
                let text = format!("{} {problem}{}", self.name(index), self.last_output(index));
                return Err(ServiceError::NotReady(text));
            }
        }
        Ok(())
    }

    /// Those that have ended, with what ran meanwhile. To be asked before they are killed.
    pub(crate) fn ended(&self, meanwhile: &str) -> Vec<Finding> {
        let services = self.services.iter().enumerate();
        let ended = services.filter_map(|(index, watched)| {
            let exit = (*watched.end.as_ref()?.borrow())?;
            let text = format!(
                "{} ended ({}) while {meanwhile}{}",
                self.name(index),
                exit_text(exit),
                self.last_output(index)
            );
            Some(Finding::warn(Code::ServiceEnded, text))
        });
        ended.collect()
    }

    /// Reads the rest of their output, once all processes of the sandbox are dead.
    pub(crate) async fn settle(&mut self) {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // Something outside the sandbox would have to hold a pipe open.
        if timeout(LAST_OUTPUT, all).await.is_err() {
            self.tasks.shutdown().await;
        }
        for watched in &mut self.services {
            watched.end = None;
        }
    }

    fn name(&self, index: usize) -> String {
        let command = &self.services[index].service.run;
        format!("{} {} (`{command}`)", self.kind, index + 1)
    }

    fn last_output(&self, index: usize) -> String {
        let text = self.services[index].log().text(4 * TAIL_CHARS);
        match tail(text.trim(), TAIL_CHARS) {
            text if text.is_empty() => "; it printed nothing".to_owned(),
            text => format!("; its last output: {text}"),
        }
    }

    async fn keep(&self, directory: &Path) {
        for (index, watched) in self.services.iter().enumerate() {
            if !watched.log().is_begun {
                continue;
            }
            let name = format!("{}-{}.log", self.kind.replace(' ', "-"), index + 1);
            let (path, log) = (directory.join(name), Arc::clone(&watched.log));
            let write = move || lock(&log).write(&path);
            let written = tokio::task::spawn_blocking(write).await;
            if let Err(error) = written.unwrap_or_else(|error| Err(io::Error::other(error))) {
                tracing::warn!(%error, "the output of a service is not written");
            }
        }
    }
}

impl Watched {
    fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until a service can be used. The inner error says why it cannot.
async fn until_ready(
    sandbox: &dyn Sandbox,
    service: &Service,
    end: &mut watch::Receiver<Option<ExitStatus>>,
    env: &Variables,
    cwd: &str,
) -> Result<Result<(), String>, Error> {
    tokio::select! {
        biased;
        exit = end_of(end) => {
            let exit = exit.map_or_else(|| "no exit status".to_owned(), exit_text);
            Ok(Err(format!("ended ({exit}) before it was ready: a service stays in the foreground")))
        }
        ready = try_ready(sandbox, service, env, cwd) => ready,
    }
}

async fn try_ready(
    sandbox: &dyn Sandbox,
    service: &Service,
    env: &Variables,
    cwd: &str,
) -> Result<Result<(), String>, Error> {
    let Some(command) = &service.ready else {
        sleep(READY_PAUSE).await;
        return Ok(Ok(()));
    };
    let deadline = Instant::now() + Duration::from_secs_f64(service.ready_timeout_s);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let tried = run_command(sandbox, command, env.clone(), cwd, left).await?;
        if tried.exit_code == 0 {
            return Ok(Ok(()));
        }
        if tried.timed_out || Instant::now() + READY_PAUSE >= deadline {
            let how = match tried.timed_out {
                true => "did not end".to_owned(),
                false => format!("exit {}", tried.exit_code),
            };
            return Ok(Err(format!(
                "was not ready after {} s: `{command}` {how} (`ready_timeout_s` gives it more time)",
                service.ready_timeout_s
            )));
        }
        sleep(READY_PAUSE).await;
    }
}

/// `None` when how it ended is not known.
async fn end_of(end: &mut watch::Receiver<Option<ExitStatus>>) -> Option<ExitStatus> {
    let ended = end.wait_for(Option::is_some).await;
    ended.ok().and_then(|exit| *exit)
}

async fn drained(end: &mut watch::Receiver<Option<ExitStatus>>) {
    while end.changed().await.is_ok() {}
}

/// Reads a process's output and waits for its end.
async fn watch_process(
    mut process: Process,
    log: Arc<Mutex<Log>>,
    tell: watch::Sender<Option<ExitStatus>>,
) {
    lock(&log).is_begun = true;
    let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
    let waited = async {
        if let Ok(exit) = process.wait().await {
            tell.send_replace(Some(exit));
        }
    };
    tokio::join!(fill(&log, stdout), fill(&log, stderr), waited);
}

async fn fill(log: &Mutex<Log>, stream: Option<Output>) {
    let Some(mut stream) = stream else { return };
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        lock(log).push(&buffer[..count]);
    }
}

/// The end of a service's output, both streams together.
#[derive(Default)]
struct Log {
    is_begun: bool,
    kept: VecDeque<u8>,
    dropped: u64,
}

impl Log {
    fn push(&mut self, bytes: &[u8]) {
        self.kept.extend(bytes);
        let excess = self.kept.len().saturating_sub(LOG_BYTES_MAX);
        self.kept.drain(..excess);
        self.dropped += excess as u64;
    }

    /// The last bytes of it, as text.
    fn text(&self, bytes_max: usize) -> String {
        let from = self.kept.len().saturating_sub(bytes_max);
        let bytes: Vec<u8> = self.kept.range(from..).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = private_file(path)?;
        if self.dropped > 0 {
            writeln!(file, "[rollcage: {} bytes not kept]", self.dropped)?;
        }
        let (front, back) = self.kept.as_slices();
        file.write_all(front)?;
        file.write_all(back)
    }
}

/// What survived setup without being a service. A process that is about to end is none of them.
pub(crate) async fn undeclared(sandbox: &dyn Sandbox) -> Result<Option<Finding>, Error> {
    if live_processes(sandbox).await?.is_empty() {
        return Ok(None);
    }
    sleep(LEAVE_PAUSE).await;
    let names = live_processes(sandbox).await?;
    let text = format!(
        "processes survived setup without being declared ({}): they run beside the agent and are ended with it. List what the \
         agent needs in `services`, and what verify commands need in `verify_services`",
        names.join(", ")
    );
    Ok((!names.is_empty()).then(|| Finding::warn(Code::ServicesKilled, text)))
}

#[cfg(test)]
mod tests;
