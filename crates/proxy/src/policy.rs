//! A session's sampling policy, and how it handles a conversation that exceeds the model's context.

use rollcage_dialect::chat::Sampling;

/// Who chooses the sampling parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum SamplingPolicy {
    /// Temperature 1 and neutral samplers where the endpoint returns tokens, so that they can be trained on; otherwise
    /// the agent's choice.
    #[default]
    Auto,
    /// The agent's choice, or the model's defaults where it makes none.
    Agent,
    /// This, whatever the agent requests: a training session.
    Pinned(Sampling),
}

impl SamplingPolicy {
    /// The values that a user can choose.
    pub const NAMES: [&'static str; 2] = ["auto", "agent"];

    /// Reads a user's choice. The error is addressed to that user.
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

/// What happens when a conversation no longer fits the model's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnOverflow {
    /// The agent gets a final answer, and the rollout ends.
    Stop,
    /// The agent gets the endpoint's refusal.
    PassOn,
}
