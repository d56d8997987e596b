//! Runs the agent until it exits, its time is up, or we are told to stop; afterwards nothing of it is alive.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use rollcage_model::record::Ended;
use rollcage_sandbox::{Command, ExitStatus, Process, Sandbox, Stdin};

use rollcage_model::transcript::{End, Report, Transcript};

use crate::agent::Launch;
use crate::log::Log;
use crate::places::leave_logs;
use crate::proxy::{Serving, Session};
use crate::result;
use crate::rollout::{Ending, Plan};
use crate::shell::{LOG_TAIL_CHARS, base_environment, last_events, tail};
use crate::store::{EVENTS_BYTES_MAX, EVENTS_FILE, Record, STDOUT_FILE, private_file};

/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
const SIGTERM: i32 = 15;
/// For an agent whose budget is used up to write down what it has.
const LAST_WORDS: Duration = Duration::from_secs(30);
/// For output that is still in the pipes.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// How the agent ended.
#[derive(Debug)]
pub(crate) struct Driven {
    pub(crate) ending: Ending,
    pub(crate) exit_code: Option<i32>,
    pub(crate) log_tail: String,
    pub(crate) report: Report,
}

/// How long the agent may take.
#[derive(Clone, Copy)]
struct Patience {
    whole: Duration,
    /// Without a model call.
    idle: Option<Duration>,
}

/// What stopped the wait for the agent.
enum Stop {
    Exited(ExitStatus),
    TimedOut,
    Cancelled,
    /// The exchanges can no longer be written, so going on would lose tokens.
    Unrecorded,
    /// A limit was reached, and the agent went on for the whole grace period.
    Exhausted,
    /// Too many calls failed in a row.
    Hopeless,
    Idle,
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
    let (stop, exit) = {
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
    let ending = judge(&stop, plan, session, &transcript.end, &stderr);
    Ok(Driven {
        ending,
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
) -> Result<(Stop, Option<ExitStatus>), Ending> {
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
    sandbox.kill_all().await?;
    Ok((stop, exit))
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
        () = tokio::time::sleep(patience.whole) => Ok(Stop::TimedOut),
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

fn judge(stop: &Stop, plan: &Plan, session: &Session, end: &End, stderr: &str) -> Ending {
    if let (Stop::Exited(_) | Stop::Exhausted, Some(limit)) = (stop, session.stopped_by()) {
        return Ending::new(
            Ended::Budget,
            format!("the rollout's budget is used up: {limit}"),
        );
    }
    match stop {
        Stop::Exhausted => Ending::new(Ended::Budget, "the rollout's budget is used up"),
        Stop::Hopeless => Ending::new(
            Ended::UpstreamFailed,
            session.last_failure().unwrap_or_default(),
        ),
        Stop::Idle => Ending::new(
            Ended::Budget,
            "the agent made no model call for too long: idle_s",
        ),
        Stop::Cancelled => Ending::new(Ended::Cancelled, "cancelled while the agent ran"),
        Stop::Unrecorded => Ending::new(Ended::EngineFailed, session.broken().unwrap_or_default()),
        Stop::TimedOut => Ending::new(
            Ended::TimedOut,
            format!("agent timeout: {} s", plan.task.agent_timeout_s()),
        ),
        Stop::Exited(exit) => judge_exit(*exit, session, end, stderr),
    }
}

/// What the agent says of its end counts before its exit code: several exit with 0 after a failure, or with 1 after an
/// error that they got over.
fn judge_exit(exit: ExitStatus, session: &Session, end: &End, stderr: &str) -> Ending {
    let is_well = match end {
        End::Done => true,
        End::Failed(_) => false,
        End::Unsaid => exit.code == Some(0),
    };
    // An agent that ended well in spite of a failed call coped with it.
    let has_coped = is_well && session.has_answers();
    if let Some(failure) = session.last_failure().filter(|_| !has_coped) {
        return Ending::new(Ended::UpstreamFailed, failure);
    }
    if is_well {
        return Ending {
            ended: Ended::Completed,
            error: None,
        };
    }
    let how = match (exit.code, exit.signal) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no exit status".to_owned(),
    };
    let said = match end {
        End::Failed(why) => Some(head(why)),
        End::Done | End::Unsaid => last_line(stderr),
    };
    let said = said.map(|text| format!(": {text}")).unwrap_or_default();
    Ending::new(Ended::AgentFailed, format!("agent failed ({how}){said}"))
}

/// The beginning of a reason: some agents give a whole page.
fn head(text: &str) -> String {
    text.chars().take(300).collect()
}

fn last_line(text: &str) -> Option<String> {
    text.lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .map(|line| tail(line.trim(), 300))
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
                    Ended::EngineFailed,
                    format!("{name}: {}", result::chain(&error)),
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
