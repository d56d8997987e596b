//! A running summary of a session's calls, from which the end of the rollout is judged: did the endpoint, the agent or
//! a limit end it?

use std::time::Duration;

use tokio::time::Instant;

use rollcage_model::ending::Cause;

/// A call counts as hung when it is silent for this many times the longest silence of any answered call.
const SILENCE_FACTOR: u32 = 3;
/// The shortest silence that can count as hung.
const SILENCE_MIN: Duration = Duration::from_secs(10);

/// Why a call has no good answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub cause: Cause,
    pub text: String,
}

impl Problem {
    pub fn new(cause: Cause, text: impl Into<String>) -> Self {
        Problem {
            cause,
            text: text.into(),
        }
    }
}

/// Who is responsible for the result of one call.
#[derive(Debug)]
pub(crate) enum CallVerdict {
    Good(AnsweredCall),
    /// The endpoint failed.
    Failed(Problem),
    /// The agent broke the call off or sent an invalid request; this says nothing about the endpoint.
    AgentFault(Cause),
    /// The prompt does not fit.
    TooLong {
        has_tools: bool,
    },
}

/// An answered call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AnsweredCall {
    /// Truncated by its length limit.
    pub(crate) is_cut: bool,
    pub(crate) has_tools: bool,
    /// The longest time without any byte from the endpoint.
    pub(crate) longest_silence: Duration,
}

/// The limit that ended the rollout's calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitReached {
    /// The name of the budget's limit, or `context`.
    pub by: String,
    /// The limit was reached before any call of the agent's main work was answered.
    pub is_at_first: bool,
}

/// How a session's calls have gone so far.
#[derive(Clone, Debug, Default)]
pub struct CallSummary {
    pub is_answered: bool,
    /// The endpoint's last failure, cleared by the next good answer.
    pub failure: Option<Problem>,
    /// The agent's last fault, cleared by the next good answer.
    pub agent_fault: Option<Cause>,
    /// The last answer to the agent's main work was truncated by its length limit.
    pub is_cut: bool,
    pub stopped: Option<LimitReached>,
    pub failures_in_a_row: usize,
    pub is_answered_with_tools: bool,
    pub is_first_too_long: bool,
    pub last_good: Option<Instant>,
    pub longest_silence: Duration,
}

impl CallSummary {
    pub(crate) fn note(&mut self, verdict: CallVerdict) {
        match verdict {
            CallVerdict::Good(good) => {
                self.is_answered = true;
                self.is_answered_with_tools |= good.has_tools;
                // Calls without tools, such as titles and summaries, are not the agent's main work.
                if good.has_tools || !self.is_answered_with_tools {
                    self.is_cut = good.is_cut;
                }
                self.longest_silence = self.longest_silence.max(good.longest_silence);
                self.failures_in_a_row = 0;
                self.failure = None;
                self.agent_fault = None;
                self.last_good = Some(Instant::now());
            }
            CallVerdict::Failed(problem) => {
                self.failures_in_a_row += 1;
                self.failure = Some(problem);
            }
            CallVerdict::AgentFault(cause) => self.agent_fault = Some(cause),
            CallVerdict::TooLong { has_tools } => {
                // A title may be answered before the agent's first real prompt, or concurrently with it.
                self.is_first_too_long = match has_tools {
                    true => !self.is_answered_with_tools,
                    false => !self.is_answered,
                };
            }
        }
    }

    /// Remembers the first limit that ended the calls.
    pub(crate) fn stop(&mut self, by: &str) {
        let is_at_first = self.is_first_too_long || !self.is_answered;
        self.stopped.get_or_insert_with(|| LimitReached {
            by: by.to_owned(),
            is_at_first,
        });
    }

    /// Whether a call that the agent gave up on, or that was open when the agent ended, was hung: silent for far longer
    /// than is usual in this session. `agent_time` is the agent's whole time limit.
    pub(crate) fn is_hung(&self, silent_since: Instant, agent_time: Option<Duration>) -> bool {
        // A later good answer shows that the agent did not depend on this call.
        if self.last_good.is_some_and(|good| good > silent_since) {
            return false;
        }
        let least = agent_time.map_or(SILENCE_MIN, |time| SILENCE_MIN.min(time / 4));
        silent_since.elapsed() >= least.max(self.longest_silence * SILENCE_FACTOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good(has_tools: bool, is_cut: bool) -> CallVerdict {
        CallVerdict::Good(AnsweredCall {
            is_cut,
            has_tools,
            longest_silence: Duration::from_secs(20),
        })
    }

    fn failed() -> CallVerdict {
        CallVerdict::Failed(Problem::new(Cause::EndpointError, "500"))
    }

    #[test]
    fn a_failure_counts_until_something_good_comes() {
        let mut calls = CallSummary::default();
        calls.note(failed());
        calls.note(CallVerdict::AgentFault(Cause::AgentHungUp));
        assert!(calls.failure.is_some() && !calls.is_answered);
        calls.note(good(true, false));
        assert_eq!((calls.failure.as_ref(), calls.agent_fault), (None, None));
        calls.note(failed());
        calls.note(failed());
        assert_eq!(calls.failures_in_a_row, 2);
        assert!(calls.failure.is_some() && calls.is_answered);
    }

    #[test]
    fn a_title_that_was_cut_is_not_the_agents_work() {
        let mut calls = CallSummary::default();
        calls.note(good(true, false));
        calls.note(good(false, true));
        assert!(!calls.is_cut);
        calls.note(good(true, true));
        calls.note(good(false, false));
        assert!(calls.is_cut);
        calls.note(good(true, false));
        assert!(!calls.is_cut);
    }

    #[test]
    fn a_title_does_not_make_a_first_prompt_fit() {
        let at_first = |answered: &[bool], has_tools: bool| {
            let mut calls = CallSummary::default();
            for has_tools in answered {
                calls.note(good(*has_tools, false));
            }
            calls.note(CallVerdict::TooLong { has_tools });
            calls.stop("context");
            calls.stop("calls");
            let stopped = calls.stopped.unwrap();
            assert_eq!(stopped.by, "context");
            stopped.is_at_first
        };
        assert!(at_first(&[], true) && at_first(&[], false));
        assert!(at_first(&[false], true));
        assert!(!at_first(&[true], true) && !at_first(&[false], false));
    }

    #[test]
    fn a_call_is_hung_when_it_is_silent_for_far_longer_than_others() {
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds));
        let is_hung = |calls: &CallSummary, seconds, time: Option<u64>| {
            calls.is_hung(ago(seconds).unwrap(), time.map(Duration::from_secs))
        };
        let fresh = CallSummary::default();
        assert!(!is_hung(&fresh, 5, None) && is_hung(&fresh, 11, None));
        assert!(is_hung(&fresh, 5, Some(12)) && !is_hung(&fresh, 5, Some(900)));
        // Answers took 20 seconds before.
        let slow = CallSummary {
            longest_silence: Duration::from_secs(20),
            ..CallSummary::default()
        };
        assert!(!is_hung(&slow, 50, None) && is_hung(&slow, 61, None));
        let coped = CallSummary {
            last_good: Some(Instant::now()),
            ..CallSummary::default()
        };
        assert!(!is_hung(&coped, 61, None));
    }
}
