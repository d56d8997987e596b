//! What a session samples with, and what becomes of calls that would make its tokens unfit for training.

use rollcage_dialect::chat::{Constrained, Sampling};
use rollcage_dialect::sampling::LogprobsMode;

use super::Session;
use super::learned::{Lesson, Needs, Pinned};

/// Who says what is sampled with.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum SamplingPolicy {
    /// Temperature 1 and nothing else where the endpoint gives tokens, so that they can be trained on; else the agent.
    #[default]
    Auto,
    /// The agent, or the model's own defaults where it says nothing.
    Agent,
    /// This, whatever the agent asks for: a training session.
    Pinned(Sampling),
}

impl SamplingPolicy {
    /// What a user can say without a temperature.
    pub const NAMES: [&'static str; 2] = ["auto", "agent"];

    /// What a user said. The error is for that user.
    pub fn new(who: Option<&str>, temperature: Option<f64>) -> Result<Self, String> {
        match (who, temperature) {
            (_, Some(temperature)) if !(temperature > 0.0 && temperature.is_finite()) => {
                Err("`temperature` must be above 0".to_owned())
            }
            (Some("agent"), Some(_)) => {
                let text =
                    "`sampling` agent leaves the temperature to the agent: give one of the two";
                Err(text.to_owned())
            }
            (None | Some("auto"), Some(temperature)) => {
                Ok(SamplingPolicy::Pinned(Sampling { temperature }))
            }
            (None | Some("auto"), None) => Ok(SamplingPolicy::Auto),
            (Some("agent"), None) => Ok(SamplingPolicy::Agent),
            (Some(_), _) => Err("`sampling` must be auto or agent".to_owned()),
        }
    }
}

/// What becomes of a conversation that no longer fits the model's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnOverflow {
    /// The agent gets a last answer, and the rollout is over.
    Stop,
    /// The agent gets the endpoint's refusal.
    PassOn,
}

impl Session {
    /// What is sampled with, whatever the agent asks for.
    pub(super) fn sampling(&self) -> Option<Sampling> {
        match self.options.settings.sampling {
            SamplingPolicy::Pinned(sampling) => Some(sampling),
            SamplingPolicy::Auto if self.gives_tokens => Some(Sampling { temperature: 1.0 }),
            SamplingPolicy::Auto | SamplingPolicy::Agent => None,
        }
    }

    pub(super) fn constrained(&self) -> Constrained {
        let settings = &self.options.settings;
        let usual = match settings.sampling {
            SamplingPolicy::Pinned(_) => Constrained::Refuse,
            SamplingPolicy::Auto | SamplingPolicy::Agent => Constrained::Keep,
        };
        settings.constrained.unwrap_or(usual)
    }

    /// What an exchange's record says of its logprobs, and of what was not asked for.
    pub(super) fn known_of_endpoint(&self) -> (Option<LogprobsMode>, Vec<String>) {
        let mode = self.gives_tokens.then_some(self.options.profile.logprobs);
        (mode, self.learned.so_far().refused())
    }

    /// Learns from an endpoint's refusal of `request` to ask for less. `None` when there is nothing to learn from it.
    pub(super) fn learn_from(&self, refusal: &str, request: &[u8]) -> Option<Lesson> {
        let needs = Needs {
            is_thinking_disabled: self.options.endpoint.is_thinking_disabled,
            sampling: match (self.options.settings.sampling, self.sampling()) {
                (SamplingPolicy::Pinned(_), _) => Pinned::ByPolicy,
                (_, Some(_)) => Pinned::ByDefault,
                (_, None) => Pinned::No,
            },
        };
        self.learned.learn(refusal, request, &needs)
    }
}
