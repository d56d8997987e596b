//! Drives the agent until it is over, its time is up, or we are told to stop; afterwards nothing of it is alive. How it is
//! started, spoken to and asked to end is its driver's to know.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use rollcage_model::ending::Cause;
use rollcage_model::transcript::{Report, Transcript};
use rollcage_sandbox::{ExitStatus, Sandbox};

use crate::controls::Controls;
use crate::judge::{Ending, Evidence, Stop, judge};
use crate::places::leave_logs;
use crate::plan::Plan;
use crate::shell::{LOG_TAIL_CHARS, last_events};
use crate::store::{EVENTS_BYTES_MAX, EVENTS_FILE, Record, STDOUT_FILE, private_file};
use rollcage_model::text::tail;
use rollcage_proxy::{ServerHandle, Session};

mod driver;
pub(crate) mod exec;
mod log;

pub(crate) use driver::Driver;

use driver::Streams;
use log::Log;

/// For an agent whose budget is used up to write down what it has.
const LAST_WORDS: Duration = Duration::from_secs(30);
/// While the endpoint is out of order, the agent's time is looked at this often.
const CLOCK_TICK: Duration = Duration::from_millis(50);
/// For output that is still in the pipes.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// How the agent ended.
#[derive(Debug)]
pub(crate) struct Driven {
    pub(crate) ending: Ending,
    pub(crate) exit_code: Option<i32>,
    pub(crate) log_tail: String,
    pub(crate) report: Report,
    /// Processes that were alive when the agent had ended.
    pub(crate) killed: u64,
}

/// Where an agent is driven, and what its end is judged by.
pub(crate) struct Stage<'a> {
    pub(crate) sandbox: &'a dyn Sandbox,
    pub(crate) plan: &'a Plan,
    pub(crate) record: &'a Record,
    pub(crate) session: &'a Session,
    pub(crate) controls: &'a Controls,
}

pub(crate) async fn drive(
    stage: &Stage<'_>,
    driver: &mut dyn Driver,
    serving: &mut ServerHandle,
) -> Result<Driven, Ending> {
    let Stage {
        sandbox,
        plan,
        record,
        session,
        ..
    } = *stage;
    let mut logs = Logs::create(record.path())?;
    let streams = driver.start(sandbox).await?;
    let (stop, exit, killed) = {
        let dead = CancellationToken::new();
        let streams = logs.fill_from(streams);
        // With everything dead the streams end by themselves; should something hold them open, we do not wait for it.
        let fill = async {
            tokio::select! {
                () = streams => {}
                () = async { dead.cancelled().await; tokio::time::sleep(DRAIN_LIMIT).await } => {}
            }
        };
        let watch = async {
            let watched = end_of_agent(stage, driver).await;
            dead.cancel();
            watched
        };
        let ((), watched) = tokio::join!(fill, watch);
        // Nobody who may ask the model is left. Whoever runs from here on grades the agent or is graded.
        serving.close().await;
        watched?
    };
    let (stdout, stderr) = logs.finish();
    let account = account(sandbox, plan, record, &stdout).await;
    leave_logs(sandbox, plan.agent.name(), &account, &session.log()).await;
    let exit_code = exit.map(|exit| {
        exit.code
            .unwrap_or_else(|| 128 + exit.signal.unwrap_or_default())
    });
    let transcript = transcript(plan, account).await;
    let ending = judge(&Evidence {
        stop,
        calls: &session.calls(),
        has_model: plan.agent.dialect().is_some(),
        unrecorded: session.record_error(),
        agent_timeout_s: plan.task.agent_timeout_s(),
        end: &transcript.end,
        stderr: &stderr,
    });
    Ok(Driven {
        ending,
        killed,
        exit_code,
        log_tail: log_tail(&stdout, &stderr),
        report: Report {
            format: Some(plan.agent.events().format),
            mcp_names: plan.mcp_names(),
            ..transcript.report()
        },
    })
}

/// The agent's own account, from its output or from the file that it keeps.
async fn account(sandbox: &dyn Sandbox, plan: &Plan, record: &Record, stdout: &str) -> String {
    match &plan.agent.events().file {
        None => whole_output(record)
            .await
            .unwrap_or_else(|| stdout.to_owned()),
        Some(path) => {
            let content = sandbox.read_file(path, EVENTS_BYTES_MAX).await;
            let content = content.unwrap_or_default();
            // Kept with the record: the sandbox is gone soon.
            if let Ok(mut file) = private_file(&record.path().join(EVENTS_FILE)) {
                let _ = file.write_all(&content);
            }
            String::from_utf8_lossy(&content).into_owned()
        }
    }
}

async fn transcript(plan: &Plan, text: String) -> Transcript {
    let events = plan.agent.events();
    let names = plan.mcp_names();
    let read = move || {
        let mut transcript = Transcript::read(events.format, &text);
        if let Some(names) = names {
            transcript.name_mcp(&names);
        }
        transcript
    };
    tokio::task::spawn_blocking(read).await.unwrap_or_default()
}

/// All that was printed, unless it was a flood; its end is enough then to tell how it went.
async fn whole_output(record: &Record) -> Option<String> {
    let path = record.path().join(STDOUT_FILE);
    let metadata = tokio::fs::metadata(&path).await.ok()?;
    if metadata.len() > EVENTS_BYTES_MAX {
        return None;
    }
    let bytes = tokio::fs::read(&path).await.ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Waits for the agent and leaves nothing of it alive.
async fn end_of_agent(
    stage: &Stage<'_>,
    driver: &mut dyn Driver,
) -> Result<(Stop, Option<ExitStatus>, u64), Ending> {
    let stop = wait(stage, driver).await?;
    let exit = match stop {
        Stop::Exited(exit) => Some(exit),
        Stop::TimedOut
        | Stop::Cancelled
        | Stop::Unrecorded
        | Stop::Exhausted
        | Stop::Hopeless
        | Stop::Idle => driver.stop().await,
    };
    // Also after a clean exit: agents leave shells and servers behind.
    let killed = stage.sandbox.kill_all().await?;
    Ok((stop, exit, killed))
}

/// Returns when the agent is over, or when it has to be. Until then it is told what somebody has to say to it.
async fn wait(stage: &Stage<'_>, driver: &mut dyn Driver) -> Result<Stop, Ending> {
    let Stage {
        plan,
        session,
        controls,
        ..
    } = *stage;
    let takes_messages = driver.takes_messages();
    let mut mailbox = takes_messages.then(|| controls.open_mailbox());
    let whole = Duration::from_secs_f64(plan.task.agent_timeout_s());
    let limits = async {
        tokio::select! {
            biased;
            () = exhausted(session) => Stop::Exhausted,
            () = session.hopeless() => Stop::Hopeless,
            () = idle(session, plan.task.budget.idle_s.map(Duration::from_secs_f64)) => Stop::Idle,
            () = time_used(session, whole) => Stop::TimedOut,
        }
    };
    let mut limits = std::pin::pin!(limits);
    loop {
        tokio::select! {
            biased;
            () = controls.abort.cancelled() => return Ok(Stop::Cancelled),
            () = session.unrecorded() => return Ok(Stop::Unrecorded),
            exit = driver.over() => return Ok(Stop::Exited(exit?)),
            stop = &mut limits => return Ok(stop),
            Some(text) = next(&mut mailbox) => driver.message(text).await?,
        }
    }
}

async fn next(mailbox: &mut Option<mpsc::Receiver<String>>) -> Option<String> {
    match mailbox {
        Some(mailbox) => mailbox.recv().await,
        None => std::future::pending().await,
    }
}

/// Returns once the agent has had its time. The clock stands still while the endpoint is out of order.
async fn time_used(session: &Session, limit: Duration) {
    let since = Instant::now();
    loop {
        let used = since.elapsed().saturating_sub(session.outage());
        let left = limit.saturating_sub(used);
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.max(CLOCK_TICK)).await;
    }
}

/// Returns a while after a limit was reached: an agent that was told so ends by itself.
async fn exhausted(session: &Session) {
    session.exhausted().await;
    tokio::time::sleep(LAST_WORDS).await;
}

async fn idle(session: &Session, limit: Option<Duration>) {
    match limit {
        Some(limit) => session.idle_for(limit).await,
        None => std::future::pending().await,
    }
}

fn log_tail(stdout: &str, stderr: &str) -> String {
    let events = last_events(stdout);
    if stderr.is_empty() {
        return events;
    }
    format!("{events}\n[stderr]\n{}", tail(stderr, LOG_TAIL_CHARS))
}

/// Both output streams of an agent.
struct Logs {
    stdout: Log,
    stderr: Log,
}

impl Logs {
    fn create(directory: &Path) -> Result<Self, Ending> {
        let open = |name: &str| {
            Log::create(&directory.join(name)).map_err(|error| {
                Ending::new(
                    Cause::EngineFailed,
                    format!("{name}: {}", rollcage_model::text::chain(&error)),
                )
            })
        };
        Ok(Logs {
            stdout: open(STDOUT_FILE)?,
            stderr: open("agent.stderr.log")?,
        })
    }

    /// Reads the streams to their ends.
    fn fill_from(&mut self, streams: Streams) -> impl Future<Output = ()> + use<'_> {
        let Streams { stdout, stderr } = streams;
        let Logs {
            stdout: stdout_log,
            stderr: stderr_log,
        } = self;
        async move {
            let fill_stdout = async {
                if let Some(stream) = stdout {
                    stdout_log.fill_from(stream).await;
                }
            };
            let fill_stderr = async {
                if let Some(stream) = stderr {
                    stderr_log.fill_from(stream).await;
                }
            };
            tokio::join!(fill_stdout, fill_stderr);
        }
    }

    fn finish(&mut self) -> (String, String) {
        (self.stdout.finish(), self.stderr.finish())
    }
}
