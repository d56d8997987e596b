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
/// For output that is still in the pipes.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// How the agent ended.
#[derive(Debug)]
pub(crate) struct Driven {
    pub(crate) ending: Ending,
    pub(crate) exit_code: Option<i32>,
    pub(crate) log_tail: String,
}

/// What stopped the wait for the agent.
enum Stop {
    Exited(ExitStatus),
    TimedOut,
    Cancelled,
    /// The exchanges can no longer be written, so going on would lose tokens.
    Unrecorded,
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
    let limit = Duration::from_secs_f64(plan.task.agent_timeout_s);
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
            let watched = end_of_agent(sandbox, &mut process, limit, session, cancel).await;
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
    limit: Duration,
    session: &Session,
    cancel: &CancellationToken,
) -> Result<(Stop, Option<ExitStatus>), Ending> {
    let stop = wait(process, limit, session, cancel).await?;
    let exit = match stop {
        Stop::Exited(exit) => Some(exit),
        Stop::TimedOut | Stop::Cancelled | Stop::Unrecorded => terminate(process).await,
    };
    // Also after a clean exit: agents leave shells and servers behind.
    sandbox.kill_all().await?;
    Ok((stop, exit))
}

async fn wait(
    process: &mut Process,
    limit: Duration,
    session: &Session,
    cancel: &CancellationToken,
) -> Result<Stop, Ending> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Ok(Stop::Cancelled),
        () = session.unrecorded() => Ok(Stop::Unrecorded),
        exit = process.wait() => Ok(Stop::Exited(exit?)),
        () = tokio::time::sleep(limit) => Ok(Stop::TimedOut),
    }
}

/// Asks the agent to end. Its output is drained meanwhile, so that it cannot block on a full pipe.
async fn terminate(process: &mut Process) -> Option<ExitStatus> {
    process.signal(SIGTERM);
    tokio::time::timeout(GRACE, process.wait()).await.ok()?.ok()
}

fn judge(stop: &Stop, plan: &Plan, session: &Session, stdout: &str, stderr: &str) -> Ending {
    match stop {
        Stop::Cancelled => Ending::new(Ended::Cancelled, "cancelled while the agent ran"),
        Stop::Unrecorded => Ending::new(Ended::EngineFailed, session.broken().unwrap_or_default()),
        Stop::TimedOut => Ending::new(
            Ended::TimedOut,
            format!("agent timeout: {} s", plan.task.agent_timeout_s),
        ),
        Stop::Exited(exit) => {
            let upstream = session.last_failure();
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
