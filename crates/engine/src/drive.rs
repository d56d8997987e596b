//! Drives the agent until it exits, its time is up, or it is cancelled; afterwards none of its processes is alive. How
//! an agent is started, messaged and asked to stop is up to its [`Driver`].

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use rollcage_model::ending::Cause;
use rollcage_model::finding::Finding;
use rollcage_model::transcript::{Report, Transcript};
use rollcage_sandbox::{ExitStatus, Sandbox};

use crate::controls::Controls;
use crate::judge::{Ending, Evidence, StopReason, judge};
use crate::layout::leave_logs;
use crate::plan::Plan;
use crate::services::Services;
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

/// How long an agent may still run once its budget is used up, to write down its results.
const LAST_WORDS: Duration = Duration::from_secs(30);
/// The minimum interval between checks of the agent's remaining time, which does not run down during an outage of the
/// endpoint.
const CLOCK_TICK: Duration = Duration::from_millis(50);
/// How long to read output still in the pipes after every process is dead.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// The outcome of one agent run.
#[derive(Debug)]
pub(crate) struct AgentRun {
    pub(crate) ending: Ending,
    pub(crate) exit_code: Option<i32>,
    pub(crate) log_tail: String,
    pub(crate) report: Report,
    /// Services that did not live as long as the agent.
    pub(crate) services_ended: Vec<Finding>,
}

/// What driving an agent needs: its sandbox, and the sources that its end is judged by.
pub(crate) struct DriveContext<'a> {
    pub(crate) sandbox: &'a dyn Sandbox,
    pub(crate) plan: &'a Plan,
    pub(crate) record: &'a Record,
    pub(crate) session: &'a Session,
    pub(crate) controls: &'a Controls,
    pub(crate) services: &'a Services,
}

pub(crate) async fn drive(
    cx: &DriveContext<'_>,
    driver: &mut dyn Driver,
    serving: &mut ServerHandle,
) -> Result<AgentRun, Ending> {
    let DriveContext {
        sandbox,
        plan,
        record,
        session,
        ..
    } = *cx;
    let mut logs = Logs::create(record.path())?;
    let streams = driver.start(sandbox).await?;
    let (stop, exit, services_ended) = {
        let dead = CancellationToken::new();
        let streams = logs.fill_from(streams);
        // Once every process is dead the streams end by themselves; if something holds them open, stop waiting for it.
        let fill = async {
            tokio::select! {
                () = streams => {}
                () = async { dead.cancelled().await; tokio::time::sleep(DRAIN_LIMIT).await } => {}
            }
        };
        let watch = async {
            let watched = run_to_end(cx, driver).await;
            dead.cancel();
            watched
        };
        let ((), watched) = tokio::join!(fill, watch);
        // No process that may call the model is left: from here on only verify commands run.
        serving.close().await;
        watched?
    };
    let (stdout, stderr) = logs.finish();
    let events = read_events(sandbox, plan, record, &stdout).await;
    leave_logs(sandbox, plan.agent.name(), &events, &session.log()).await;
    let exit_code = exit.map(|exit| {
        exit.code
            .unwrap_or_else(|| 128 + exit.signal.unwrap_or_default())
    });
    let transcript = transcript(plan, events).await;
    let ending = judge(&Evidence {
        stop,
        calls: &session.calls(),
        has_model: plan.agent.dialect().is_some(),
        unrecorded: session.record_error(),
        agent_timeout_s: plan.task.agent_timeout_s(),
        end: &transcript.end,
        stderr: &stderr,
    });
    Ok(AgentRun {
        ending,
        services_ended,
        exit_code,
        log_tail: log_tail(&stdout, &stderr),
        report: Report {
            format: Some(plan.agent.events().format),
            mcp_names: plan.mcp_names(),
            ..transcript.report()
        },
    })
}

/// The agent's own event log, from its standard output or from the file that it writes.
async fn read_events(sandbox: &dyn Sandbox, plan: &Plan, record: &Record, stdout: &str) -> String {
    match &plan.agent.events().file {
        None => whole_output(record)
            .await
            .unwrap_or_else(|| stdout.to_owned()),
        Some(path) => {
            let content = sandbox.read_file(path, EVENTS_BYTES_MAX).await;
            let content = content.unwrap_or_default();
            // Saved with the record, because the sandbox is removed soon.
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

/// Everything printed, or `None` if that is too large; its tail is enough then.
async fn whole_output(record: &Record) -> Option<String> {
    let path = record.path().join(STDOUT_FILE);
    let metadata = tokio::fs::metadata(&path).await.ok()?;
    if metadata.len() > EVENTS_BYTES_MAX {
        return None;
    }
    let bytes = tokio::fs::read(&path).await.ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Waits for the end of the agent and kills what is left of it.
async fn run_to_end(
    cx: &DriveContext<'_>,
    driver: &mut dyn Driver,
) -> Result<(StopReason, Option<ExitStatus>, Vec<Finding>), Ending> {
    let stop = wait(cx, driver).await?;
    let exit = match stop {
        StopReason::Exited(exit) => Some(exit),
        StopReason::TimedOut
        | StopReason::Cancelled
        | StopReason::Unrecorded
        | StopReason::Exhausted
        | StopReason::Hopeless
        | StopReason::Idle => driver.stop().await,
    };
    let services_ended = cx.services.ended("the agent ran");
    // Also after a clean exit: agents leave shells and servers behind.
    cx.sandbox.kill_all().await?;
    Ok((stop, exit, services_ended))
}

/// Returns when the agent has exited or must be stopped. Until then it delivers messages to the agent.
async fn wait(cx: &DriveContext<'_>, driver: &mut dyn Driver) -> Result<StopReason, Ending> {
    let DriveContext {
        plan,
        session,
        controls,
        ..
    } = *cx;
    let takes_messages = driver.takes_messages();
    let mut mailbox = takes_messages.then(|| controls.open_mailbox());
    let whole = Duration::from_secs_f64(plan.task.agent_timeout_s());
    let limits = async {
        tokio::select! {
            biased;
            () = exhausted(session) => StopReason::Exhausted,
            () = session.hopeless() => StopReason::Hopeless,
            () = idle(session, plan.task.budget.idle_s.map(Duration::from_secs_f64)) => StopReason::Idle,
            () = time_used(session, whole) => StopReason::TimedOut,
        }
    };
    let mut limits = std::pin::pin!(limits);
    loop {
        tokio::select! {
            biased;
            () = controls.abort.cancelled() => return Ok(StopReason::Cancelled),
            () = session.unrecorded() => return Ok(StopReason::Unrecorded),
            exit = driver.exited() => return Ok(StopReason::Exited(exit?)),
            stop = &mut limits => return Ok(stop),
            Some(text) = next_message(&mut mailbox) => driver.message(text).await?,
        }
    }
}

async fn next_message(mailbox: &mut Option<mpsc::Receiver<String>>) -> Option<String> {
    match mailbox {
        Some(mailbox) => mailbox.recv().await,
        None => std::future::pending().await,
    }
}

/// Returns once the agent's time is used up. The clock is paused during outages of the endpoint.
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

/// Returns a grace period after a limit was reached: an agent that was notified of it usually ends by itself.
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
