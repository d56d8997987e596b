//! Runs the agent until it exits, its time is up, or we are told to stop; afterwards nothing of it is alive.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use rollcage_model::ending::Cause;
use rollcage_model::transcript::{Report, Transcript};
use rollcage_sandbox::{Command, ExitStatus, Process, Sandbox, Stdin};

use crate::judge::{Ending, Evidence, Stop, judge};
use crate::log::Log;
use crate::places::leave_logs;
use crate::plan::Plan;
use crate::shell::{LOG_TAIL_CHARS, last_events};
use crate::store::{EVENTS_BYTES_MAX, EVENTS_FILE, Record, STDOUT_FILE, private_file};
use rollcage_agents::Launch;
use rollcage_agents::base_environment;
use rollcage_model::text::tail;
use rollcage_proxy::{Serving, Session};

/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
const SIGTERM: i32 = 15;
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

/// How long the agent may take.
#[derive(Clone, Copy)]
struct Patience {
    whole: Duration,
    /// Without a model call.
    idle: Option<Duration>,
}

pub(crate) async fn drive(
    sandbox: &dyn Sandbox,
    plan: &Plan,
    launch: Launch,
    record: &Record,
    (session, serving): (&Session, &mut Serving),
    cancel: &CancellationToken,
) -> Result<Driven, Ending> {
    for (path, text) in launch.files {
        let written = sandbox.write_file(&path, 0o600, text.into_bytes()).await;
        written.map_err(Ending::from_setup)?;
    }
    let mut env = base_environment(&plan.task.env);
    env.extend(launch.env);
    let stdin = Stdin::Bytes(launch.stdin.into_bytes());
    let mut process = sandbox
        .spawn(Command {
            argv: launch.argv,
            env,
            stdin,
            ..Command::default()
        })
        .await?;
    let mut logs = Logs::create(record.path())?;
    let patience = Patience {
        whole: Duration::from_secs_f64(plan.task.agent_timeout_s()),
        idle: plan.task.budget.idle_s.map(Duration::from_secs_f64),
    };
    let (stop, exit, killed) = {
        let dead = CancellationToken::new();
        let streams = logs.fill_from(&mut process);
        // With everything dead the streams end by themselves; should something hold them open, we do not wait for it.
        let fill = async {
            tokio::select! {
                () = streams => {}
                () = async { dead.cancelled().await; tokio::time::sleep(DRAIN_LIMIT).await } => {}
            }
        };
        let watch = async {
            let watched = end_of_agent(sandbox, &mut process, patience, session, cancel).await;
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
        unrecorded: session.broken(),
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
    sandbox: &dyn Sandbox,
    process: &mut Process,
    patience: Patience,
    session: &Session,
    cancel: &CancellationToken,
) -> Result<(Stop, Option<ExitStatus>, u64), Ending> {
    let stop = wait(process, patience, session, cancel).await?;
    let exit = match stop {
        Stop::Exited(exit) => Some(exit),
        Stop::TimedOut
        | Stop::Cancelled
        | Stop::Unrecorded
        | Stop::Exhausted
        | Stop::Hopeless
        | Stop::Idle => terminate(process).await,
    };
    // Also after a clean exit: agents leave shells and servers behind.
    let killed = sandbox.kill_all().await?;
    Ok((stop, exit, killed))
}

async fn wait(
    process: &mut Process,
    patience: Patience,
    session: &Session,
    cancel: &CancellationToken,
) -> Result<Stop, Ending> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Ok(Stop::Cancelled),
        () = session.unrecorded() => Ok(Stop::Unrecorded),
        exit = process.wait() => Ok(Stop::Exited(exit?)),
        () = exhausted(session) => Ok(Stop::Exhausted),
        () = session.hopeless() => Ok(Stop::Hopeless),
        () = idle(session, patience.idle) => Ok(Stop::Idle),
        () = time_used(session, patience.whole) => Ok(Stop::TimedOut),
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

/// Asks the agent to end. Its output is drained meanwhile, so that it cannot block on a full pipe.
async fn terminate(process: &mut Process) -> Option<ExitStatus> {
    process.signal(SIGTERM);
    tokio::time::timeout(GRACE, process.wait()).await.ok()?.ok()
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

    /// Takes the streams out of the process at once, and reads them when polled.
    fn fill_from(&mut self, process: &mut Process) -> impl Future<Output = ()> + use<'_> {
        let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
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
