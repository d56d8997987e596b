//! Runs setup and verify commands: one shell command each, in an environment that the agent cannot influence.

use std::collections::BTreeMap;
use std::time::Duration;

use rollcage_agents::base_environment;
use rollcage_live::place::MARK;
use rollcage_model::record::CommandResult;
use rollcage_model::text::tail;
use rollcage_sandbox::{Command, Error, OutputLimit, Sandbox, User, run};

/// Characters kept of each output stream of a command; the same limit as in OpenEnv's original.
pub(crate) const TAIL_CHARS: usize = 2000;
/// Characters kept of logs, and of each event of an agent.
pub(crate) const LOG_TAIL_CHARS: usize = 4000;
/// Events kept of an agent's event log.
const TAIL_EVENTS: usize = 20;
/// Room for [`TAIL_CHARS`] characters of four bytes.
const TAIL_BYTES: usize = 4 * TAIL_CHARS;

/// The time limit for listing processes.
const LIST_LIMIT: Duration = Duration::from_secs(10);

/// The names of the live processes of the sandbox's user, without an agent's server that stands ready.
pub(crate) async fn live_processes(sandbox: &dyn Sandbox) -> Result<Vec<String>, Error> {
    // Only the environment of the user's own processes is readable. The shell expands the list before it starts
    // anything.
    const LIST: &str = r#"for process in /proc/[0-9]*; do
        [ "$process" != "/proc/$$" ] && head -c 1 "$process/environ" > /dev/null &&
            ! grep -qz '^{MARK}=' "$process/environ" && cat "$process/comm"
    done 2> /dev/null; true"#;
    let env = base_environment(&BTreeMap::new());
    let listed = run_command(sandbox, &LIST.replace("{MARK}", MARK), env, "/", LIST_LIMIT).await?;
    Ok(listed.stdout.lines().map(str::to_owned).collect())
}

/// A shell command in `cwd`.
pub(crate) fn shell(command: &str, env: BTreeMap<String, String>, cwd: &str) -> Command {
    // No profile and no rc file: the agent may have written them.
    let argv = ["/bin/bash", "--noprofile", "--norc", "-c", command];
    Command {
        argv: argv.map(str::to_owned).to_vec(),
        env,
        cwd: cwd.to_owned(),
        ..Command::default()
    }
}

/// Runs one command in `cwd`. `Err` means that it could not be started.
pub(crate) async fn run_command(
    sandbox: &dyn Sandbox,
    command: &str,
    env: BTreeMap<String, String>,
    cwd: &str,
    limit: Duration,
) -> Result<CommandResult, Error> {
    run_command_as(User::User, sandbox, command, env, cwd, limit).await
}

pub(crate) async fn run_command_as(
    user: User,
    sandbox: &dyn Sandbox,
    command: &str,
    env: BTreeMap<String, String>,
    cwd: &str,
    limit: Duration,
) -> Result<CommandResult, Error> {
    let finished = run(
        sandbox,
        Command {
            user,
            ..shell(command, env, cwd)
        },
        limit,
        OutputLimit {
            bytes_max: TAIL_BYTES,
        },
    )
    .await?;
    let exit_code = match (finished.timed_out, finished.exit.code, finished.exit.signal) {
        (true, _, _) | (false, None, None) => -1,
        (false, Some(code), _) => code,
        (false, None, Some(signal)) => 128 + signal,
    };
    Ok(CommandResult {
        cmd: command.to_owned(),
        exit_code,
        stdout: tail(&String::from_utf8_lossy(&finished.stdout), TAIL_CHARS),
        stderr: tail(&String::from_utf8_lossy(&finished.stderr), TAIL_CHARS),
        duration_s: seconds(finished.duration),
        timed_out: finished.timed_out,
    })
}

/// The last events of an agent's event log, one per line; a long line is cut to its end.
pub(crate) fn last_events(text: &str) -> String {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let first = lines.len().saturating_sub(TAIL_EVENTS);
    let kept = lines.iter().skip(first);
    kept.map(|line| tail(line, LOG_TAIL_CHARS)).collect()
}

/// Seconds with three decimals, as results show them.
pub(crate) fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_twenty_events_are_kept() {
        let text: String = (0..30)
            .map(|number| format!("{{\"n\":{number}}}\n"))
            .collect();
        let kept = last_events(&text);
        assert_eq!(kept.lines().count(), 20);
        assert!(kept.starts_with("{\"n\":10}\n") && kept.ends_with("{\"n\":29}\n"));
        let flood = format!("{}\nthe end\n", "x".repeat(100_000));
        assert_eq!(
            last_events(&flood).len(),
            LOG_TAIL_CHARS + "the end\n".len()
        );
        assert_eq!(last_events(""), "");
    }
}
