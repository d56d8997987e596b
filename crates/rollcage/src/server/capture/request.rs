//! The body of `POST /sessions`, and its validation.

use serde::Deserialize;
use serde_json::{Map, Value};

use rollcage_dialect::EndpointDialect;
use rollcage_dialect::chat::{ConstraintPolicy, Sampling};
use rollcage_model::finding::CaptureLevel;

use super::HttpError;

/// `POST /sessions`.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct SessionRequest {
    pub(super) session_id: Option<String>,
    pub(super) metadata: Option<Map<String, Value>>,
    pub(super) llm_url: Option<String>,
    pub(super) model: Option<String>,
    pub(super) api_key: Option<String>,
    pub(super) purpose: Option<String>,
    pub(super) sampling: Option<Map<String, Value>>,
    /// What happens to calls that constrain sampling: `refuse`, `remove` or `keep`.
    pub(super) constrained: Option<String>,
    pub(super) max_model_calls: Option<u64>,
    /// The API of `llm_url`: `anthropic`; any other name means OpenAI's chat completions.
    pub(super) provider: Option<String>,
}

impl SessionRequest {
    /// Harnesses send many provider names; all but one speak chat.
    pub(super) fn dialect(&self) -> EndpointDialect {
        match self.provider.as_deref() {
            Some("anthropic") => EndpointDialect::Anthropic,
            _ => EndpointDialect::Chat,
        }
    }

    /// Whether a session at an endpoint of this level is for evaluation.
    pub(super) fn is_eval(&self, level: CaptureLevel) -> Result<bool, HttpError> {
        match self.purpose.as_deref().unwrap_or("auto") {
            "auto" => Ok(level != CaptureLevel::Tokens),
            "eval" => Ok(true),
            "train" if level == CaptureLevel::Tokens => Ok(false),
            "train" => Err(HttpError::bad_request(
                "purpose is train, but this engine gives no token ids",
            )),
            other => Err(HttpError::bad_request(format!(
                "purpose `{other}` is none of auto, eval, train"
            ))),
        }
    }

    pub(super) fn constrained(&self) -> Result<Option<ConstraintPolicy>, HttpError> {
        let Some(name) = &self.constrained else {
            return Ok(None);
        };
        let known = ConstraintPolicy::from_name(name);
        let wrong = || HttpError::bad_request("constrained must be refuse, remove or keep");
        known.map(Some).ok_or_else(wrong)
    }
}

pub(super) fn check_metadata(metadata: &Map<String, Value>) -> Result<(), HttpError> {
    const RESERVED: [&str; 7] = [
        "session_id",
        "upstream",
        "capture_level",
        "max_model_calls",
        "sampling",
        "purpose",
        "eval_sampling",
    ];
    match RESERVED.iter().find(|name| metadata.contains_key(**name)) {
        Some(name) => Err(HttpError::bad_request(format!(
            "metadata cannot include reserved key: {name}"
        ))),
        None => Ok(()),
    }
}

/// A training session may choose its temperature; every other sampler must have its neutral value.
pub(super) fn sampling_of(
    wanted: Option<&Map<String, Value>>,
) -> Result<Option<Sampling>, HttpError> {
    let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) else {
        return Ok(None);
    };
    let mut temperature = 1.0;
    for (name, value) in wanted {
        let number = value.as_f64();
        let neutral = match name.as_str() {
            "temperature" => {
                temperature = number
                    .filter(|number| *number > 0.0 && number.is_finite())
                    .ok_or_else(|| {
                        HttpError::bad_request("sampling.temperature must be a number above 0")
                    })?;
                continue;
            }
            "top_p" | "repetition_penalty" => 1.0,
            "min_p" | "presence_penalty" | "frequency_penalty" => 0.0,
            "top_k" => -1.0,
            other => {
                return Err(HttpError::bad_request(format!(
                    "sampling.{other} is not allowed in a training session"
                )));
            }
        };
        if number != Some(neutral) && !(name == "top_k" && number == Some(0.0)) {
            return Err(HttpError::bad_request(format!(
                "sampling.{name} must be {neutral}, which does nothing"
            )));
        }
    }
    Ok(Some(Sampling { temperature }))
}
