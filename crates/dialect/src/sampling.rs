//! Whether the logprobs of a turn are of the distribution that it was sampled from, by its sampling parameters.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What distribution an endpoint's logprobs are of, as its probe measured it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum LogprobsMode {
    /// The model's own, whatever is asked for: vLLM, unless it runs with `--logprobs-mode processed_logprobs`.
    Raw,
    /// After the temperature, and before everything that cuts or bends the distribution: SGLang.
    Temperature,
    /// What was sampled from.
    Processed,
    #[default]
    Unknown,
}

impl LogprobsMode {
    pub fn as_str(self) -> &'static str {
        match self {
            LogprobsMode::Raw => "raw",
            LogprobsMode::Temperature => "temperature",
            LogprobsMode::Processed => "processed",
            LogprobsMode::Unknown => "unknown",
        }
    }

    /// Completes the sentence "logprobs are ...".
    pub fn in_words(self) -> &'static str {
        match self {
            LogprobsMode::Raw => "of the model itself, whatever it is sampled with",
            LogprobsMode::Temperature => "after the temperature, before top-p and the like",
            LogprobsMode::Processed => "of what was sampled from",
            LogprobsMode::Unknown => "of a distribution that could not be found out",
        }
    }
}

/// A sampling parameter other than the temperature, and the values at which it has no effect.
struct SamplingParameter {
    name: &'static str,
    /// The value that is sent to disable it.
    neutral: i32,
    /// Another value that disables it.
    also: Option<i32>,
}

const fn parameter(name: &'static str, neutral: i32) -> SamplingParameter {
    SamplingParameter {
        name,
        neutral,
        also: None,
    }
}

/// Parameters that a model's own defaults (`generation_config.json`) may set: unless sent, their values are unknown.
const DEFAULTED: [SamplingParameter; 6] = [
    parameter("top_p", 1),
    SamplingParameter {
        name: "top_k",
        neutral: -1,
        also: Some(0),
    },
    parameter("min_p", 0),
    parameter("presence_penalty", 0),
    parameter("frequency_penalty", 0),
    parameter("repetition_penalty", 1),
];

/// Parameters that have no effect unless a request sets them.
const OTHERS: [SamplingParameter; 9] = [
    // llama.cpp's name for `repetition_penalty`.
    parameter("repeat_penalty", 1),
    parameter("typical_p", 1),
    parameter("top_a", 0),
    parameter("tfs_z", 1),
    parameter("mirostat", 0),
    parameter("dynatemp_range", 0),
    parameter("xtc_probability", 0),
    parameter("dry_multiplier", 0),
    SamplingParameter {
        name: "top_n_sigma",
        neutral: -1,
        also: Some(0),
    },
];

impl SamplingParameter {
    fn is_neutral(&self, value: &Value) -> bool {
        let is = |neutral: i32| value.as_f64() == Some(f64::from(neutral));
        is(self.neutral) || self.also.is_some_and(is)
    }
}

/// Whether [`mismatch`] judges this member.
pub(crate) fn is_parameter(name: &str) -> bool {
    let mut parameters = DEFAULTED.iter().chain(&OTHERS);
    name == "temperature" || parameters.any(|it| it.name == name)
}

/// The neutral values that a training session sends along with its temperature.
pub(crate) fn neutral_values() -> impl Iterator<Item = (&'static str, i32)> {
    DEFAULTED.iter().map(|it| (it.name, it.neutral))
}

/// The reasons why the logprobs of a turn are not of the distribution that it was sampled from; empty if they are.
///
/// `sent` are the request's members as the endpoint received them, `refused` those that it does not support and that
/// therefore cannot have an effect. The logprobs match if the mode is
///
/// - processed: and the temperature is not 0, where there is no distribution;
/// - after the temperature: and the temperature was sent, and every other parameter was sent with a neutral value;
/// - raw or unknown: and the temperature was sent as 1, and every other parameter with a neutral value.
///
/// `None` means a record from before the mode was stored; its logprobs are accepted, as they were then.
pub fn mismatch(
    mode: Option<LogprobsMode>,
    sent: &Map<String, Value>,
    refused: &[String],
) -> Vec<String> {
    let Some(mode) = mode else {
        return Vec::new();
    };
    let value = |name: &str| sent.get(name).filter(|value| !value.is_null());
    let temperature = value("temperature").and_then(Value::as_f64);
    let is_fine = match (mode, temperature) {
        (_, Some(0.0)) => false,
        (LogprobsMode::Processed, _) => return Vec::new(),
        (LogprobsMode::Temperature, temperature) => temperature.is_some(),
        (LogprobsMode::Raw | LogprobsMode::Unknown, temperature) => temperature == Some(1.0),
    };
    let mut reasons = Vec::new();
    if !is_fine {
        reasons.push(describe("temperature", value("temperature")));
    }
    if mode == LogprobsMode::Processed {
        return reasons;
    }
    for parameter in &DEFAULTED {
        let is_refused = refused.iter().any(|name| name == parameter.name);
        match value(parameter.name) {
            Some(value) if parameter.is_neutral(value) => {}
            None if is_refused => {}
            other => reasons.push(describe(parameter.name, other)),
        }
    }
    for parameter in &OTHERS {
        if let Some(value) = value(parameter.name).filter(|value| !parameter.is_neutral(value)) {
            reasons.push(describe(parameter.name, Some(value)));
        }
    }
    reasons
}

/// As [`mismatch`], for a training session at this temperature, of which all is known before it starts.
pub fn session_mismatch(mode: LogprobsMode, temperature: f64) -> Vec<String> {
    let neutral = neutral_values().map(|(name, value)| (name.to_owned(), value.into()));
    let mut sent: Map<String, Value> = neutral.collect();
    sent.insert("temperature".to_owned(), temperature.into());
    mismatch(Some(mode), &sent, &[])
}

fn describe(name: &str, value: Option<&Value>) -> String {
    match value {
        Some(value) => format!("{name}={value}"),
        None => format!("no {name}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(mode: LogprobsMode, sent: Value, refused: &[&str], expect: &[&str]) {
        let Value::Object(sent) = sent else {
            panic!("an object");
        };
        let refused: Vec<String> = refused.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(mismatch(Some(mode), &sent, &refused), expect);
    }

    fn pinned(temperature: f64) -> Value {
        let mut sent = json!({ "temperature": temperature });
        for (name, value) in neutral_values() {
            sent[name] = value.into();
        }
        sent
    }

    fn with(mut sent: Value, name: &str, value: Value) -> Value {
        sent[name] = value;
        sent
    }

    #[test]
    fn raw_logprobs_match_only_at_temperature_1_with_neutral_parameters() {
        use LogprobsMode::{Raw, Unknown};
        for mode in [Raw, Unknown] {
            check(mode, pinned(1.0), &[], &[]);
            check(mode, pinned(0.5), &[], &["temperature=0.5"]);
            check(
                mode,
                with(pinned(1.0), "top_k", json!(20)),
                &[],
                &["top_k=20"],
            );
            check(mode, with(pinned(1.0), "top_k", json!(0)), &[], &[]);
            check(
                mode,
                with(pinned(1.0), "mirostat", json!(2)),
                &[],
                &["mirostat=2"],
            );
        }
    }

    #[test]
    fn parameters_that_were_not_sent_may_have_model_defaults() {
        let sent = json!({"temperature": 1, "top_p": 1.0});
        check(
            LogprobsMode::Raw,
            sent,
            &["min_p", "repetition_penalty"],
            &["no top_k", "no presence_penalty", "no frequency_penalty"],
        );
        check(LogprobsMode::Processed, json!({}), &[], &[]);
        check(
            LogprobsMode::Unknown,
            with(pinned(1.0), "temperature", Value::Null),
            &["temperature"],
            &["no temperature"],
        );
    }

    #[test]
    fn logprobs_after_the_temperature_match_any_temperature_but_no_other_parameter() {
        let mode = LogprobsMode::Temperature;
        check(mode, pinned(0.7), &[], &[]);
        check(
            mode,
            with(pinned(0.7), "top_p", json!(0.9)),
            &[],
            &["top_p=0.9"],
        );
        check(mode, pinned(0.0), &[], &["temperature=0.0"]);
    }

    #[test]
    fn processed_logprobs_match_unless_the_temperature_is_0() {
        let mode = LogprobsMode::Processed;
        check(
            mode,
            json!({"temperature": 0.3, "top_p": 0.5, "top_k": 3}),
            &[],
            &[],
        );
        check(mode, json!({"temperature": 0}), &[], &["temperature=0"]);
    }

    #[test]
    fn a_record_without_a_mode_is_accepted() {
        assert_eq!(mismatch(None, &Map::new(), &[]), Vec::<String>::new());
    }
}
