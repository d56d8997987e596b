//! Why rollouts end, and what each cause means: one table for the engine, the result, `docs/endings.md` and the tests.

use serde::{Deserialize, Serialize};

/// How a rollout ended. Every rollout ends in exactly one of these; what follows from it depends on its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The agent came to its end.
    Completed,
    /// The agent crashed or gave up.
    AgentFailed,
    /// A setup command failed, or the task cannot be run.
    SetupFailed,
    /// The agent's time was up.
    TimedOut,
    /// A limit of the budget ended it.
    Budget,
    /// Somebody ended it.
    Cancelled,
    /// The sandbox broke.
    SandboxFailed,
    /// The model's endpoint failed.
    UpstreamFailed,
    /// The verify commands came to no reward.
    VerifierFailed,
    /// We failed.
    EngineFailed,
}

impl Ended {
    pub fn as_str(self) -> &'static str {
        match self {
            Ended::Completed => "completed",
            Ended::AgentFailed => "agent_failed",
            Ended::SetupFailed => "setup_failed",
            Ended::TimedOut => "timed_out",
            Ended::Budget => "budget",
            Ended::Cancelled => "cancelled",
            Ended::SandboxFailed => "sandbox_failed",
            Ended::UpstreamFailed => "upstream_failed",
            Ended::VerifierFailed => "verifier_failed",
            Ended::EngineFailed => "engine_failed",
        }
    }
}

/// Why a rollout ended. Every rollout has exactly one cause; `ended` is a coarser word for it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    Completed,
    EndpointUnreachable,
    EndpointError,
    RateLimited,
    EndpointAborted,
    AnswerBroken,
    EndpointSilent,
    EndpointRefused,
    KeyRefused,
    NotFound,
    NothingAnswered,
    AgentRequestRefused,
    AgentHungUp,
    AgentExited,
    AgentKilled,
    AgentTimeUsed,
    IdleAgent,
    BudgetLimit,
    OutputLength,
    MalformedCalls,
    ContextOverflow,
    TaskDoesNotFit,
    SetupFailed,
    VerifierFailed,
    SandboxFailed,
    EngineFailed,
    Cancelled,
}

/// Whose doing a cause is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doer {
    Endpoint,
    Agent,
    Model,
    Task,
    Machine,
    Caller,
}

/// What follows from a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub ended: Ended,
    /// Whether verify commands run on what an agent left. One that was never started left nothing.
    pub is_graded: bool,
    /// Whether a reward says something of the policy: the agent and its model did what they could with a model and a
    /// sandbox that worked.
    pub is_valid: bool,
    /// Whether the same rollout may end better when it is run again.
    pub is_retryable: bool,
}

impl Doer {
    pub fn as_str(self) -> &'static str {
        match self {
            Doer::Endpoint => "endpoint",
            Doer::Agent => "agent",
            Doer::Model => "model",
            Doer::Task => "task",
            Doer::Machine => "machine",
            Doer::Caller => "caller",
        }
    }
}

impl Cause {
    pub const ALL: [Cause; 27] = [
        Cause::Completed,
        Cause::EndpointUnreachable,
        Cause::EndpointError,
        Cause::RateLimited,
        Cause::EndpointAborted,
        Cause::AnswerBroken,
        Cause::EndpointSilent,
        Cause::EndpointRefused,
        Cause::KeyRefused,
        Cause::NotFound,
        Cause::NothingAnswered,
        Cause::AgentRequestRefused,
        Cause::AgentHungUp,
        Cause::AgentExited,
        Cause::AgentKilled,
        Cause::AgentTimeUsed,
        Cause::IdleAgent,
        Cause::BudgetLimit,
        Cause::OutputLength,
        Cause::MalformedCalls,
        Cause::ContextOverflow,
        Cause::TaskDoesNotFit,
        Cause::SetupFailed,
        Cause::VerifierFailed,
        Cause::SandboxFailed,
        Cause::EngineFailed,
        Cause::Cancelled,
    ];

    /// The table.
    pub fn verdict(self) -> Verdict {
        use Cause::*;
        match self {
            Completed => GOOD,
            EndpointUnreachable | EndpointError | RateLimited | EndpointAborted | AnswerBroken
            | EndpointSilent | EndpointRefused | NothingAnswered => UPSTREAM,
            // Whoever runs the endpoint has to change something first.
            KeyRefused | NotFound => Verdict {
                is_retryable: false,
                ..UPSTREAM
            },
            AgentRequestRefused | AgentHungUp | AgentExited | AgentKilled | MalformedCalls => {
                Verdict {
                    ended: Ended::AgentFailed,
                    ..GOOD
                }
            }
            AgentTimeUsed => Verdict {
                ended: Ended::TimedOut,
                ..GOOD
            },
            IdleAgent | BudgetLimit | OutputLength | ContextOverflow => Verdict {
                ended: Ended::Budget,
                ..GOOD
            },
            TaskDoesNotFit => Verdict {
                ended: Ended::Budget,
                ..NOTHING
            },
            SetupFailed => Verdict {
                ended: Ended::SetupFailed,
                ..NOTHING
            },
            VerifierFailed => Verdict {
                ended: Ended::VerifierFailed,
                ..NOTHING
            },
            SandboxFailed => Verdict {
                ended: Ended::SandboxFailed,
                is_retryable: true,
                ..NOTHING
            },
            EngineFailed => Verdict {
                ended: Ended::EngineFailed,
                is_retryable: true,
                ..NOTHING
            },
            Cancelled => NOTHING,
        }
    }

    pub fn doer(self) -> Doer {
        use Cause::*;
        match self {
            EndpointUnreachable | EndpointError | RateLimited | EndpointAborted | AnswerBroken
            | EndpointSilent | EndpointRefused | KeyRefused | NotFound | NothingAnswered => {
                Doer::Endpoint
            }
            Completed | AgentRequestRefused | AgentHungUp | AgentExited | AgentKilled
            | AgentTimeUsed | IdleAgent | BudgetLimit => Doer::Agent,
            OutputLength | MalformedCalls | ContextOverflow => Doer::Model,
            TaskDoesNotFit | SetupFailed | VerifierFailed => Doer::Task,
            SandboxFailed | EngineFailed => Doer::Machine,
            Cancelled => Doer::Caller,
        }
    }

    pub fn as_str(self) -> &'static str {
        use Cause::*;
        match self {
            Completed => "completed",
            EndpointUnreachable => "endpoint_unreachable",
            EndpointError => "endpoint_error",
            RateLimited => "rate_limited",
            EndpointAborted => "endpoint_aborted",
            AnswerBroken => "answer_broken",
            EndpointSilent => "endpoint_silent",
            EndpointRefused => "endpoint_refused",
            KeyRefused => "key_refused",
            NotFound => "not_found",
            NothingAnswered => "nothing_answered",
            AgentRequestRefused => "agent_request_refused",
            AgentHungUp => "agent_hung_up",
            AgentExited => "agent_exited",
            AgentKilled => "agent_killed",
            AgentTimeUsed => "agent_time_used",
            IdleAgent => "idle_agent",
            BudgetLimit => "budget_limit",
            OutputLength => "output_length",
            MalformedCalls => "malformed_calls",
            ContextOverflow => "context_overflow",
            TaskDoesNotFit => "task_does_not_fit",
            SetupFailed => "setup_failed",
            VerifierFailed => "verifier_failed",
            SandboxFailed => "sandbox_failed",
            EngineFailed => "engine_failed",
            Cancelled => "cancelled",
        }
    }

    /// What happened, for people.
    pub fn meaning(self) -> &'static str {
        use Cause::*;
        match self {
            Completed => "the agent says that it is done, or exits with 0",
            EndpointUnreachable => {
                "no connection, or one that closed without an answer, for as long as we had patience"
            }
            EndpointError => "5xx (or 408), for as long as we had patience",
            RateLimited => "429, for as long as we had patience",
            EndpointAborted => {
                "completions that the engine broke off (`finish_reason` `abort` or `error`)"
            }
            AnswerBroken => {
                "answers that broke off, had no finish reason, could not be read, or were no answers"
            }
            EndpointSilent => {
                "a call without a byte for too long, also when the agent's time ran out or the agent gave up on it"
            }
            EndpointRefused => {
                "a refusal that is not about the agent's own request (402, …), or any before the first answer"
            }
            KeyRefused => "401 or 403",
            NotFound => "404: no such model or path",
            NothingAnswered => {
                "no model call of the agent was answered at all, whatever its exit code and whosever doing that is (agents without a model are exempt)"
            }
            AgentRequestRefused => "the agent failed after a 4xx for its own request",
            AgentHungUp => "the agent failed after it hung up on a call that was going well",
            AgentExited => {
                "the agent exits with another code than 0, or tells of a failure of its own"
            }
            AgentKilled => "the agent was ended by a signal, be it for its memory",
            AgentTimeUsed => {
                "`agent_timeout_s` ran out with a model that worked, be it by slow reading"
            }
            IdleAgent => "no model call for `idle_s`",
            BudgetLimit => "a limit of the budget was reached",
            OutputLength => "the agent ended on a reply that was cut by its length",
            MalformedCalls => "the agent gave up over replies that it could not read",
            ContextOverflow => "the conversation no longer fits the context, after an answer",
            TaskDoesNotFit => "the context is too small for the agent's first prompt",
            SetupFailed => "a file or setup command of the task failed",
            VerifierFailed => {
                "the tests could not be placed, or without a policy there was no reward"
            }
            SandboxFailed => "the sandbox did not start, or broke",
            EngineFailed => "Rollcage itself failed, or was killed",
            Cancelled => "somebody ended the rollout",
        }
    }

    /// What of a status that is no success the endpoint is to blame for. Refusals of an agent's own request are the
    /// caller's to know.
    pub fn of_status(status: u16) -> Self {
        match status {
            401 | 403 => Cause::KeyRefused,
            404 => Cause::NotFound,
            429 => Cause::RateLimited,
            408 | 500..=599 => Cause::EndpointError,
            _ => Cause::EndpointRefused,
        }
    }
}

const GOOD: Verdict = Verdict {
    ended: Ended::Completed,
    is_graded: true,
    is_valid: true,
    is_retryable: false,
};

/// Graded all the same: what the agent got done is worth a look, and `reward_valid` says not to train on it.
const UPSTREAM: Verdict = Verdict {
    ended: Ended::UpstreamFailed,
    is_graded: true,
    is_valid: false,
    is_retryable: true,
};

const NOTHING: Verdict = Verdict {
    ended: Ended::Cancelled,
    is_graded: false,
    is_valid: false,
    is_retryable: false,
};

/// The table as `docs/endings.md` shows it.
pub fn table() -> String {
    let mut table = String::from(
        "| cause | whose doing | `ended` | graded | valid | retryable | what happened |\n\
         |---|---|---|---|---|---|---|\n",
    );
    let word = |is: bool| if is { "yes" } else { "no" };
    for cause in Cause::ALL {
        let verdict = cause.verdict();
        table.push_str(&format!(
            "| `{}` | {} | `{}` | {} | {} | {} | {} |\n",
            cause.as_str(),
            cause.doer().as_str(),
            verdict.ended.as_str(),
            word(verdict.is_graded),
            word(verdict.is_valid),
            word(verdict.is_retryable),
            cause.meaning(),
        ));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set to write the table into the documentation.
    const UPDATE: &str = "ROLLCAGE_UPDATE_DOCS";

    #[test]
    fn names_are_those_of_the_json() {
        for cause in Cause::ALL {
            let json = serde_json::to_value(cause).unwrap();
            assert_eq!(json, cause.as_str());
            assert_eq!(serde_json::from_value::<Cause>(json).unwrap(), cause);
        }
        let mut sorted = Cause::ALL.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted, Cause::ALL, "each once, in the order of the enum");
    }

    #[test]
    fn whose_doing_it_is_decides_what_a_reward_is_worth() {
        for cause in Cause::ALL {
            let Verdict {
                ended,
                is_graded,
                is_valid,
                is_retryable,
            } = cause.verdict();
            let name = cause.as_str();
            match cause.doer() {
                Doer::Endpoint => {
                    assert_eq!((ended, is_valid), (Ended::UpstreamFailed, false), "{name}");
                    let is_lasting = matches!(cause, Cause::KeyRefused | Cause::NotFound);
                    assert_eq!(is_retryable, !is_lasting, "{name}");
                }
                // Trying again for a better grade than a valid one would be choosing.
                Doer::Agent | Doer::Model => {
                    assert_eq!((is_graded, is_valid, is_retryable), (true, true, false));
                }
                Doer::Task | Doer::Machine | Doer::Caller => {
                    assert_eq!((is_graded, is_valid), (false, false), "{name}");
                }
            }
        }
    }

    #[test]
    fn statuses_have_their_causes() {
        for (status, cause) in [
            (401, Cause::KeyRefused),
            (403, Cause::KeyRefused),
            (404, Cause::NotFound),
            (429, Cause::RateLimited),
            (500, Cause::EndpointError),
            (503, Cause::EndpointError),
            (529, Cause::EndpointError),
            (402, Cause::EndpointRefused),
        ] {
            assert_eq!(Cause::of_status(status), cause, "{status}");
        }
    }

    #[test]
    fn the_documentation_has_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/endings.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (before, rest) = text.split_once("<!-- table -->\n").unwrap();
        let (shown, after) = rest.split_once("<!-- end -->").unwrap();
        let table = table();
        if std::env::var_os(UPDATE).is_some() {
            std::fs::write(
                path,
                format!("{before}<!-- table -->\n{table}<!-- end -->{after}"),
            )
            .unwrap();
            return;
        }
        assert_eq!(
            shown, table,
            "docs/endings.md is out of date: set {UPDATE}=1 to write it anew"
        );
    }
}
