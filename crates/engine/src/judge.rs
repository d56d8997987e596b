//! Determines the cause of a rollout's end. What follows from a cause is defined by `rollcage_model::ending`.

use rollcage_model::ending::Cause;
use rollcage_model::live::ErrorCode;
use rollcage_model::transcript::AgentEnd;
use rollcage_sandbox::ExitStatus;

use rollcage_model::text::tail;
use rollcage_proxy::CallSummary;

/// mini-swe-agent's name for giving up after replies that it could not parse.
const UNREADABLE_REPLIES: &str = "RepeatedFormatError";

/// Why a rollout ended, with a message for the user.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) cause: Cause,
    pub(crate) error: Option<String>,
}

impl Ending {
    pub(crate) fn new(cause: Cause, error: impl Into<String>) -> Self {
        Ending {
            cause,
            error: Some(error.into()),
        }
    }

    /// For errors during setup: a file that cannot be written is the task's mistake, not the sandbox's.
    pub(crate) fn from_setup(error: rollcage_sandbox::Error) -> Self {
        match error {
            rollcage_sandbox::Error::File { .. } | rollcage_sandbox::Error::Invalid { .. } => {
                Ending::new(Cause::SetupFailed, rollcage_model::text::chain(&error))
            }
            error => error.into(),
        }
    }

    /// The same, with what may be the reason added to its error, if it has one.
    #[must_use]
    pub(crate) fn with(mut self, reason: Option<String>) -> Self {
        if let (Some(error), Some(reason)) = (&mut self.error, reason) {
            *error = format!("{error}; {reason}");
        }
        self
    }

    pub(crate) fn cancelled() -> Self {
        Ending::new(Cause::Cancelled, "cancelled")
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.error.as_deref().unwrap_or_default())
    }
}

impl From<rollcage_sandbox::Error> for Ending {
    fn from(error: rollcage_sandbox::Error) -> Self {
        Ending::new(Cause::SandboxFailed, rollcage_model::text::chain(&error))
    }
}

/// Why driving the agent stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    Exited(ExitStatus),
    /// A served agent has no more turns; how the last one failed, if it did.
    Served(Option<ErrorCode>),
    TimedOut,
    Cancelled,
    /// The exchanges can no longer be written; continuing would lose tokens.
    Unrecorded,
    /// A limit was reached, and the agent kept running for the whole grace period.
    Exhausted,
    /// Too many calls failed in a row.
    Hopeless,
    Idle,
}

/// Everything that an end is judged by.
pub(crate) struct Evidence<'a> {
    pub(crate) stop: StopReason,
    pub(crate) calls: &'a CallSummary,
    /// Whether the agent uses a model at all.
    pub(crate) has_model: bool,
    /// Why exchanges can no longer be written, if so.
    pub(crate) unrecorded: Option<String>,
    pub(crate) agent_timeout_s: f64,
    /// Whether the agent ran as a server.
    pub(crate) is_served: bool,
    /// How the agent itself reported its end.
    pub(crate) end: &'a AgentEnd,
    pub(crate) stderr: &'a str,
}

pub(crate) fn judge(evidence: &Evidence<'_>) -> Ending {
    let calls = evidence.calls;
    match evidence.stop {
        StopReason::Cancelled => {
            return Ending::new(Cause::Cancelled, "cancelled while the agent ran");
        }
        StopReason::Unrecorded => {
            let why = evidence.unrecorded.clone();
            return Ending::new(Cause::EngineFailed, why.unwrap_or_default());
        }
        _ => {}
    }
    let stopped = calls.stopped.as_ref();
    if let Some(stopped) = stopped.filter(|stopped| stopped.by == "context") {
        return match stopped.is_at_first {
            true => Ending::new(
                Cause::TaskDoesNotFit,
                "the model's context is too small for the agent's first prompt: serve the model with a larger one",
            ),
            false => Ending::new(
                Cause::ContextOverflow,
                "the rollout's budget is used up: context",
            ),
        };
    }
    // The last call failed and no later one succeeded, so the failure counts whatever the agent's exit code is.
    if let Some(failure) = &calls.failure {
        return Ending::new(failure.cause, failure.text.clone());
    }
    if evidence.has_model && !calls.is_answered {
        return Ending::new(Cause::NothingAnswered, unanswered(evidence));
    }
    match (stopped, evidence.stop) {
        (Some(stopped), _) => Ending::new(
            Cause::BudgetLimit,
            format!("the rollout's budget is used up: {}", stopped.by),
        ),
        (None, StopReason::Exited(exit)) => judge_exit(exit, evidence),
        (None, StopReason::Served(failure)) => judge_served(failure, evidence),
        (None, StopReason::TimedOut) => {
            let text = format!("agent timeout: {} s", evidence.agent_timeout_s);
            let text = match evidence.is_served {
                true => turn_failure(ErrorCode::Timeout, &text),
                false => text,
            };
            Ending::new(Cause::AgentTimeUsed, text)
        }
        (None, StopReason::Idle) => Ending::new(
            Cause::IdleAgent,
            "the agent made no model call for too long: idle_s",
        ),
        (
            None,
            StopReason::Exhausted
            | StopReason::Hopeless
            | StopReason::Cancelled
            | StopReason::Unrecorded,
        ) => Ending::new(Cause::BudgetLimit, "the rollout's budget is used up"),
    }
}

fn unanswered(evidence: &Evidence<'_>) -> String {
    let ended = match evidence.stop {
        StopReason::Exited(exit) => format!("agent ended ({})", exit_text(exit)),
        StopReason::Served(_) => "agent's turn ended".to_owned(),
        StopReason::TimedOut => format!("agent timeout: {} s", evidence.agent_timeout_s),
        StopReason::Idle => "agent made none for too long: idle_s".to_owned(),
        _ => "calls ended".to_owned(),
    };
    let stopped = evidence.calls.stopped.as_ref();
    let stopped =
        stopped.map(|stopped| format!("; the rollout's budget is used up: {}", stopped.by));
    let stopped = stopped.unwrap_or_default();
    let message = agent_message(evidence).map(|text| format!(": {text}"));
    let message = message.unwrap_or_default();
    format!("no model call was answered before the {ended}{message}{stopped}")
}

/// The agent's own report takes precedence over its exit code: several agents exit with 0 after a failure, or with 1
/// after an error that they recovered from.
fn judge_exit(exit: ExitStatus, evidence: &Evidence<'_>) -> Ending {
    if evidence.calls.is_cut {
        let text = "the model's last reply was cut by the limit on its length";
        return Ending::new(Cause::OutputLength, text);
    }
    let is_well = match evidence.end {
        AgentEnd::Done => true,
        AgentEnd::Failed(_) => false,
        AgentEnd::Unsaid => exit.code == Some(0),
    };
    if is_well {
        return Ending {
            cause: Cause::Completed,
            error: None,
        };
    }
    let is_unreadable =
        matches!(evidence.end, AgentEnd::Failed(why) if why.starts_with(UNREADABLE_REPLIES));
    let cause = match (exit.signal, evidence.calls.agent_fault) {
        _ if is_unreadable => Cause::MalformedCalls,
        (Some(_), _) => Cause::AgentKilled,
        (None, Some(cause)) => cause,
        (None, None) => Cause::AgentExited,
    };
    let message = agent_message(evidence).map(|text| format!(": {text}"));
    let message = message.unwrap_or_default();
    Ending::new(
        cause,
        format!("agent failed ({}){message}", exit_text(exit)),
    )
}

/// A served agent is judged by its last turn.
fn judge_served(failure: Option<ErrorCode>, evidence: &Evidence<'_>) -> Ending {
    if evidence.calls.is_cut {
        let text = "the model's last reply was cut by the limit on its length";
        return Ending::new(Cause::OutputLength, text);
    }
    let Some(code) = failure else {
        return Ending {
            cause: Cause::Completed,
            error: None,
        };
    };
    let cause = match (code, evidence.calls.agent_fault) {
        (ErrorCode::Crashed, _) => Cause::AgentKilled,
        (_, Some(cause)) => cause,
        (_, None) => Cause::AgentExited,
    };
    let message = agent_message(evidence).unwrap_or_default();
    Ending::new(cause, turn_failure(code, &message))
}

/// Why a turn failed, in the words of OpenEnv's original.
pub(crate) fn turn_failure(code: ErrorCode, message: &str) -> String {
    let name = match code {
        ErrorCode::Aborted => "AbortedError",
        ErrorCode::Timeout => "TimeoutError",
        ErrorCode::Budget => "BudgetError",
        ErrorCode::Upstream => "UpstreamError",
        ErrorCode::Crashed => "CrashedError",
        ErrorCode::Interrupted => "InterruptedError",
    };
    format!("wait_for_completion: {name}: {message}")
}

pub(crate) fn exit_text(exit: ExitStatus) -> String {
    match (exit.code, exit.signal) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no exit status".to_owned(),
    }
}

/// The agent's own error message, or the last line of its standard error.
fn agent_message(evidence: &Evidence<'_>) -> Option<String> {
    match evidence.end {
        AgentEnd::Failed(why) => Some(head(why)),
        AgentEnd::Done | AgentEnd::Unsaid => last_line(evidence.stderr),
    }
}

/// The beginning of a message: some agents print a whole page.
fn head(text: &str) -> String {
    text.chars().take(300).collect()
}

fn last_line(text: &str) -> Option<String> {
    text.lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .map(|line| tail(line.trim(), 300))
}

/// Replaces the ending if the verifier failed. A cause that is already invalid stays the cause.
pub(crate) fn with_verifier_problem(ending: Ending, problem: Option<String>) -> Ending {
    match problem {
        Some(problem) if ending.cause.verdict().is_valid => {
            Ending::new(Cause::VerifierFailed, problem)
        }
        // A cancelled rollout that was graded on request: the requester learns why there is no grade.
        Some(problem) if ending.cause == Cause::Cancelled => Ending::new(Cause::Cancelled, problem),
        _ => ending,
    }
}

/// The name of the limit behind a cause, for limits that the session does not track.
pub(crate) fn stopped_by(cause: Cause) -> Option<&'static str> {
    match cause {
        Cause::AgentTimeUsed => Some("agent_timeout_s"),
        Cause::IdleAgent => Some("idle_s"),
        Cause::OutputLength => Some("output_length"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
