//! Drives the agent until it is over, its time is up, or it is cancelled; afterwards none of its processes is alive. How
//! an agent is started, messaged and asked to stop is up to its [`Driver`].

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use rollcage_agents::{LaunchError, LaunchRequest};
use rollcage_model::ending::Cause;
use rollcage_model::finding::Finding;
use rollcage_model::task::AgentDriver;
use rollcage_model::transcript::{Report, Transcript};
use rollcage_sandbox::Sandbox;

use crate::controls::{Activity, Controls};
use crate::feed::Feed;
use crate::judge::{Ending, Evidence, StopReason, judge};
use crate::layout::leave_logs;
use crate::plan::Plan;
use crate::services::Services;
use crate::shell::{LOG_TAIL_CHARS, last_events};
use crate::store::{EVENTS_BYTES_MAX, EVENTS_FILE, Record, STDERR_FILE, STDOUT_FILE, private_file};
use rollcage_model::text::tail;
use rollcage_proxy::{ServerHandle, Session};

mod driver;
mod exec;
mod log;
pub(crate) mod serve;

pub(crate) use driver::Driver;

use driver::Streams;
use exec::Exec;
use log::Log;
use serve::{Serve, ServeContext, ServedAgent};

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
    /// A served agent's own name for its conversation.
    pub(crate) session: Option<String>,
    /// Services that did not live as long as the agent.
    pub(crate) services_ended: Vec<Finding>,
}

/// What driving an agent needs: its sandbox, and the sources that its end is judged by.
pub(crate) struct DriveContext<'a> {
    pub(crate) sandbox: &'a Arc<Box<dyn Sandbox>>,
    pub(crate) plan: &'a Plan,
    pub(crate) record: &'a Record,
    pub(crate) session: &'a Session,
    pub(crate) feed: &'a Arc<Feed>,
    pub(crate) controls: &'a Controls,
    pub(crate) services: &'a Services,
}

/// The driver that the task wants. `variables` are the task's; `ready` is a server that stands in the sandbox already.
pub(crate) fn driver<'a>(
    cx: &DriveContext<'a>,
    request: &LaunchRequest<'_>,
    variables: &BTreeMap<String, String>,
    ready: Option<ServedAgent>,
) -> Result<Box<dyn Driver + 'a>, Ending> {
    let unlaunched = |error: LaunchError| Ending::new(Cause::SetupFailed, error.to_string());
    let agent = &cx.plan.agent;
    let served = match cx.plan.task.driver.unwrap_or_default() {
        AgentDriver::Cli => None,
        AgentDriver::Serve => agent.serve(request),
    };
    let Some(launch) = served else {
        let launch = agent.launch(request).map_err(unlaunched)?;
        return Ok(Box::new(Exec::new(launch, variables)));
    };
    let mut launch = launch.map_err(unlaunched)?;
    let directory = cx.record.path();
    let (served, files) = match ready {
        // What is written before a server's start was written before this one's.
        Some(ready) => (ready, Vec::new()),
        None => {
            let files = std::mem::take(&mut launch.files);
            let log = directory.join(STDERR_FILE);
            let agent = ServedAgent::new(cx.sandbox, &launch, variables, log);
            let unmade = |error| Ending::new(Cause::EngineFailed, format!("serve: {error}"));
            (agent.map_err(unmade)?, files)
        }
    };
    let context = ServeContext {
        instruction: cx.plan.task.instruction.clone(),
        variant: launch.variant,
        model: launch.model,
        controls: cx.controls,
        feed: cx.feed,
        record: directory,
    };
    Ok(Box::new(Serve::new(context, served, files)))
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
    let sandbox = &***sandbox;
    let mut logs = Logs::create(record.path())?;
    let streams = driver.start(sandbox).await?;
    let watched = run_logged(cx, driver, logs.fill_from(streams)).await;
    // No process that may call the model is left: from here on only verify commands run.
    serving.close().await;
    let (stop, services_ended) = watched?;
    let account = driver.account();
    if let Some(account) = &account {
        logs.stdout.push(account.events.as_bytes());
    }
    let (stdout, stderr) = logs.finish();
    let stderr = match &account {
        Some(_) => server_log(record).await,
        None => stderr,
    };
    let events = read_events(sandbox, plan, record, &stdout).await;
    leave_logs(sandbox, plan.agent.name(), &events, &session.log()).await;
    let exit_code = own_exit_code(&stop);
    let mut transcript = transcript(plan, events).await;
    let is_served = account.is_some();
    let mut session_id = None;
    if let Some(account) = account {
        transcript.end = account.end;
        session_id = account.session;
    }
    let ending = judge(&Evidence {
        stop,
        calls: &session.calls(),
        has_model: plan.agent.dialect().is_some(),
        unrecorded: session.record_error(),
        agent_timeout_s: plan.task.agent_timeout_s(),
        is_served,
        end: &transcript.end,
        stderr: &stderr,
    });
    Ok(AgentRun {
        ending,
        services_ended,
        exit_code,
        session: session_id,
        log_tail: log_tail(&stdout, &stderr),
        report: Report {
            format: Some(plan.agent.events().format),
            mcp_names: plan.mcp_names(),
            ..transcript.report()
        },
    })
}

type AgentStop = (StopReason, Vec<Finding>);

/// Waits for the end of the agent, and for the end of its output.
async fn run_logged(
    cx: &DriveContext<'_>,
    driver: &mut dyn Driver,
    streams: impl Future<Output = ()>,
) -> Result<AgentStop, Ending> {
    let dead = CancellationToken::new();
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
    tokio::join!(fill, watch).1
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

/// The end of what a server printed.
async fn server_log(record: &Record) -> String {
    let text = tokio::fs::read(record.path().join(STDERR_FILE)).await;
    let text = text.unwrap_or_default();
    tail(&String::from_utf8_lossy(&text), LOG_TAIL_CHARS)
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

/// Of an agent that exited by itself. How one exits that is asked to says nothing about its work.
fn own_exit_code(stop: &StopReason) -> Option<i32> {
    match stop {
        StopReason::Exited(exit) => {
            let by_signal = || 128 + exit.signal.unwrap_or_default();
            Some(exit.code.unwrap_or_else(by_signal))
        }
        StopReason::Served(_)
        | StopReason::TimedOut
        | StopReason::Cancelled
        | StopReason::Unrecorded
        | StopReason::Exhausted
        | StopReason::Hopeless
        | StopReason::Idle => None,
    }
}

/// Waits for the end of the agent and kills what is left of it.
async fn run_to_end(cx: &DriveContext<'_>, driver: &mut dyn Driver) -> Result<AgentStop, Ending> {
    let stop = wait(cx, driver).await?;
    if !matches!(stop, StopReason::Exited(_)) {
        driver.stop().await;
    }
    let services_ended = cx.services.ended("the agent ran");
    // Also after a clean exit: agents leave shells and servers behind.
    cx.sandbox.kill_all().await?;
    Ok((stop, services_ended))
}

/// Returns when the agent is over or must be stopped. Of an agent that is idle only the time is limited.
async fn wait(cx: &DriveContext<'_>, driver: &mut dyn Driver) -> Result<StopReason, Ending> {
    let DriveContext {
        plan,
        session,
        controls,
        ..
    } = *cx;
    let whole = Duration::from_secs_f64(plan.task.agent_timeout_s());
    let idle_limit = plan.task.budget.idle_s.map(Duration::from_secs_f64);
    let limits = async {
        tokio::select! {
            biased;
            () = while_busy(controls, || exhausted(session)) => StopReason::Exhausted,
            () = while_busy(controls, || session.hopeless()) => StopReason::Hopeless,
            () = while_busy(controls, || idle(session, controls, idle_limit)) => StopReason::Idle,
            () = time_used(session, whole) => StopReason::TimedOut,
        }
    };
    let limit = tokio::select! {
        biased;
        () = controls.abort.cancelled() => return Ok(StopReason::Cancelled),
        () = session.unrecorded() => return Ok(StopReason::Unrecorded),
        over = driver.over() => return over,
        limit = limits => limit,
    };
    Ok(driver.at_limit(limit))
}

/// Returns once a limit is reached by an agent that works.
async fn while_busy<F: Future<Output = ()>>(controls: &Controls, limit: impl Fn() -> F) {
    loop {
        limit().await;
        if !controls.is_idle() {
            return;
        }
        controls.busy().await;
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

/// Returns once there was no model call for so long. The pause before a served agent's turn does not count.
async fn idle(session: &Session, controls: &Controls, limit: Option<Duration>) {
    let Some(limit) = limit else {
        return std::future::pending().await;
    };
    loop {
        session.idle_for(limit).await;
        let left = match controls.activity() {
            Activity::Busy { since } => limit.saturating_sub(since.elapsed()),
            Activity::Idle => Duration::ZERO,
        };
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
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
            stderr: open(STDERR_FILE)?,
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
