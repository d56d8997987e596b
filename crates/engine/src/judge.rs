//! Finds the cause of a rollout's end. What follows from a cause is `rollcage_model::ending`'s to say.

use rollcage_model::ending::Cause;
use rollcage_model::transcript::AgentEnd;
use rollcage_sandbox::ExitStatus;

use rollcage_model::text::tail;
use rollcage_proxy::CallSummary;

/// What mini-swe-agent calls the end after replies that it could not read.
const UNREADABLE_REPLIES: &str = "RepeatedFormatError";

/// Why a rollout ended, and what there is to say of it.
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

    /// A file that does not fit is the task's mistake, not the sandbox's.
    pub(crate) fn from_setup(error: rollcage_sandbox::Error) -> Self {
        match error {
            rollcage_sandbox::Error::File { .. } => {
                Ending::new(Cause::SetupFailed, rollcage_model::text::chain(&error))
            }
            error => error.into(),
        }
    }

    pub(crate) fn cancelled() -> Self {
        Ending::new(Cause::Cancelled, "cancelled")
    }
}

impl From<rollcage_sandbox::Error> for Ending {
    fn from(error: rollcage_sandbox::Error) -> Self {
        Ending::new(Cause::SandboxFailed, rollcage_model::text::chain(&error))
    }
}

/// What stopped the wait for the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
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

/// Everything that an end is judged by.
pub(crate) struct Evidence<'a> {
    pub(crate) stop: Stop,
    pub(crate) calls: &'a CallSummary,
    /// Whether the agent asks a model at all.
    pub(crate) has_model: bool,
    /// Why exchanges can no longer be written, if so.
    pub(crate) unrecorded: Option<String>,
    pub(crate) agent_timeout_s: f64,
    /// What the agent says of its end.
    pub(crate) end: &'a AgentEnd,
    pub(crate) stderr: &'a str,
}

pub(crate) fn judge(evidence: &Evidence<'_>) -> Ending {
    let calls = evidence.calls;
    match evidence.stop {
        Stop::Cancelled => {
            return Ending::new(Cause::Cancelled, "cancelled while the agent ran");
        }
        Stop::Unrecorded => {
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
    // Nothing good came after it, whatever the agent made of it.
    if let Some(failure) = &calls.failure {
        return Ending::new(failure.cause, failure.text.clone());
    }
    if evidence.has_model && !calls.is_answered && !is_agents_doing(evidence) {
        return Ending::new(Cause::NothingAnswered, unanswered(evidence));
    }
    match (stopped, evidence.stop) {
        (Some(stopped), _) => Ending::new(
            Cause::BudgetLimit,
            format!("the rollout's budget is used up: {}", stopped.by),
        ),
        (None, Stop::Exited(exit)) => judge_exit(exit, evidence),
        (None, Stop::TimedOut) => Ending::new(
            Cause::AgentTimeUsed,
            format!("agent timeout: {} s", evidence.agent_timeout_s),
        ),
        (None, Stop::Idle) => Ending::new(
            Cause::IdleAgent,
            "the agent made no model call for too long: idle_s",
        ),
        (None, Stop::Exhausted | Stop::Hopeless | Stop::Cancelled | Stop::Unrecorded) => {
            Ending::new(Cause::BudgetLimit, "the rollout's budget is used up")
        }
    }
}

/// Whether the agent itself made its first calls come to nothing: it asked for what no model takes, or went away by
/// itself before an answer could come.
fn is_agents_doing(evidence: &Evidence<'_>) -> bool {
    match evidence.calls.agent_fault {
        Some(Cause::AgentRequestRefused) => true,
        Some(_) => matches!(evidence.stop, Stop::Exited(_)),
        // A limit of no calls at all.
        None => evidence.calls.stopped.is_some(),
    }
}

fn unanswered(evidence: &Evidence<'_>) -> String {
    let ended = match evidence.stop {
        Stop::Exited(exit) => format!("agent ended ({})", how(exit)),
        Stop::TimedOut => format!("agent timeout: {} s", evidence.agent_timeout_s),
        _ => "the agent made no model call for too long: idle_s".to_owned(),
    };
    let said = said(evidence).map(|text| format!(": {text}"));
    let said = said.unwrap_or_default();
    format!("no model call was answered before the {ended}{said}")
}

/// What the agent says of its end counts before its exit code: several exit with 0 after a failure, or with 1 after an
/// error that they got over.
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
    let said = said(evidence).map(|text| format!(": {text}"));
    let said = said.unwrap_or_default();
    Ending::new(cause, format!("agent failed ({}){said}", how(exit)))
}

fn how(exit: ExitStatus) -> String {
    match (exit.code, exit.signal) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no exit status".to_owned(),
    }
}

/// The agent's own words, or the last line of its errors.
fn said(evidence: &Evidence<'_>) -> Option<String> {
    match evidence.end {
        AgentEnd::Failed(why) => Some(head(why)),
        AgentEnd::Done | AgentEnd::Unsaid => last_line(evidence.stderr),
    }
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

/// What a verifier that failed makes of a rollout's end: a cause that is not valid stays the cause.
pub(crate) fn with_verifiers(ending: Ending, problem: Option<String>) -> Ending {
    match problem {
        Some(problem) if ending.cause.verdict().is_valid => {
            Ending::new(Cause::VerifierFailed, problem)
        }
        // Who had it graded all the same is told why there is no grade.
        Some(problem) if ending.cause == Cause::Cancelled => Ending::new(Cause::Cancelled, problem),
        _ => ending,
    }
}

/// The name of the limit that a cause stands for, where the session does not know it.
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
