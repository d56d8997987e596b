//! Runs the agent until it exits, its time is up, or we are told to stop; afterwards nothing of it is alive.

use std::path::Path;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use rollcage_model::record::Ended;
use rollcage_sandbox::{AGENT_LOGS, Command, ExitStatus, Process, Sandbox, Stdin};

use crate::agent::Launch;
use crate::log::Log;
use crate::proxy::Session;
use crate::result;
use crate::rollout::{Ending, Plan};
use crate::shell::{TAIL_CHARS, base_environment, tail};
use crate::store::Record;

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
    Idle,
}

pub(crate) async fn drive(
    sandbox: &dyn Sandbox,
    plan: &Plan,
    launch: Launch,
    record: &Record,
    session: &Session,
    cancel: &CancellationToken,
) -> Result<Driven, Ending> {
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
        whole: Duration::from_secs_f64(plan.task.agent_timeout_s),
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
        watched?
    };
    let (stdout, stderr) = logs.finish();
    let seen = format!("{AGENT_LOGS}/stdout.log");
    // For verifiers that look at what the agent said; a full disk there is the agent's doing and no failure of ours.
    let _ = sandbox
        .write_file(&seen, 0o644, stdout.clone().into_bytes())
        .await;
    let exit_code = exit.map(|exit| {
        exit.code
            .unwrap_or_else(|| 128 + exit.signal.unwrap_or_default())
    });
    let ending = judge(&stop, plan, session, &stdout, &stderr);
    Ok(Driven {
        ending,
        exit_code,
        log_tail: log_tail(&stdout, &stderr),
    })
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
        Stop::TimedOut | Stop::Cancelled | Stop::Unrecorded | Stop::Exhausted | Stop::Idle => {
            terminate(process).await
        }
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

fn judge(stop: &Stop, plan: &Plan, session: &Session, stdout: &str, stderr: &str) -> Ending {
    if let (Stop::Exited(_) | Stop::Exhausted, Some(limit)) = (stop, session.stopped_by()) {
        return Ending::new(
            Ended::Budget,
            format!("the rollout's budget is used up: {limit}"),
        );
    }
    match stop {
        Stop::Exhausted => Ending::new(Ended::Budget, "the rollout's budget is used up"),
        Stop::Idle => Ending::new(
            Ended::Budget,
            "the agent made no model call for too long: idle_s",
        ),
        Stop::Cancelled => Ending::new(Ended::Cancelled, "cancelled while the agent ran"),
        Stop::Unrecorded => Ending::new(Ended::EngineFailed, session.broken().unwrap_or_default()),
        Stop::TimedOut => Ending::new(
            Ended::TimedOut,
            format!("agent timeout: {} s", plan.task.agent_timeout_s),
        ),
        Stop::Exited(exit) => {
            // An agent that ended well in spite of a failed call coped with it.
            let is_well = exit.code == Some(0) && session.has_answers();
            let upstream = session.last_failure().filter(|_| !is_well);
            match (exit.code, upstream) {
                (Some(0), None) => Ending {
                    ended: Ended::Completed,
                    error: None,
                },
                (_, Some(failure)) => Ending::new(Ended::UpstreamFailed, failure),
                (code, None) => {
                    let how = match (code, exit.signal) {
                        (Some(code), _) => format!("exit {code}"),
                        (None, Some(signal)) => format!("signal {signal}"),
                        (None, None) => "no exit status".to_owned(),
                    };
                    let said = plan.agent.failure(stdout).or_else(|| last_line(stderr));
                    let said = said.map(|text| format!(": {text}")).unwrap_or_default();
                    Ending::new(Ended::AgentFailed, format!("agent failed ({how}){said}"))
                }
            }
        }
    }
}

fn last_line(text: &str) -> Option<String> {
    text.lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .map(|line| tail(line.trim(), 300))
}

fn log_tail(stdout: &str, stderr: &str) -> String {
    let whole = if stderr.is_empty() {
        stdout.to_owned()
    } else {
        format!("{stdout}\n[stderr]\n{stderr}")
    };
    tail(&whole, TAIL_CHARS)
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
            stdout: open("agent.stdout.log")?,
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
