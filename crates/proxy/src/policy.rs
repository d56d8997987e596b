//! What a session samples with, and what becomes of calls that would make its tokens unfit for training.

use rollcage_dialect::chat::Sampling;

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
