//! A session's sampling policy, and how it handles a conversation that exceeds the model's context.

use rollcage_dialect::chat::Sampling;
use rollcage_dialect::sampling::session_mismatch;
use rollcage_model::finding::CaptureLevel;

use crate::profile::Profile;

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

    /// Why nothing can be trained on, where that is certain before the first call: a temperature that was asked for, and
    /// logprobs of another one. What an agent will ask for nobody knows.
    pub fn untrainable(self, profile: &Profile) -> Option<String> {
        let SamplingPolicy::Pinned(Sampling { temperature }) = self else {
            return None;
        };
        let reasons = session_mismatch(profile.logprobs, temperature);
        let is_lost = profile.level == CaptureLevel::Tokens && !reasons.is_empty();
        is_lost.then(|| {
            format!(
                "nothing sampled with {} can be trained on here: the endpoint's logprobs are {}. Sample at temperature 1, or \
                 let the server give processed logprobs (vLLM: --logprobs-mode processed_logprobs)",
                reasons.join(", "),
                profile.logprobs.in_words()
            )
        })
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

#[cfg(test)]
mod tests {
    use rollcage_dialect::sampling::LogprobsMode;

    use super::*;

    #[test]
    fn a_temperature_that_nothing_can_be_trained_at_is_known_beforehand() {
        let is_told = |temperature, logprobs, level| {
            let policy = SamplingPolicy::new(None, temperature).unwrap();
            let profile = Profile {
                logprobs,
                level,
                ..Profile::whole()
            };
            policy.untrainable(&profile).is_some()
        };
        use CaptureLevel::{Logprobs, Tokens};
        use LogprobsMode::{Processed, Raw, Temperature, Unknown};
        for mode in [Raw, Unknown] {
            assert!(is_told(Some(0.5), mode, Tokens));
            assert!(!is_told(Some(1.0), mode, Tokens));
            assert!(!is_told(None, mode, Tokens));
            assert!(!is_told(Some(0.5), mode, Logprobs), "it is none anyway");
        }
        for mode in [Processed, Temperature] {
            assert!(!is_told(Some(0.5), mode, Tokens));
        }
        // What nothing can ever be trained at is refused.
        assert!(SamplingPolicy::new(None, Some(0.0)).is_err());
    }
}
