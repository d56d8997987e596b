//! Which parameter an endpoint's refusal is about.

use serde_json::Value;

/// What an endpoint can be asked without; what the agent wanted of it stays in the record.
const OPTIONAL: [&str; 17] = [
    "frequency_penalty",
    "logit_bias",
    "metadata",
    "min_p",
    "parallel_tool_calls",
    "presence_penalty",
    "prompt_cache_key",
    "reasoning_effort",
    "repetition_penalty",
    "seed",
    "service_tier",
    "store",
    "stream_options",
    "temperature",
    "top_k",
    "top_p",
    "verbosity",
];

/// A parameter that an endpoint does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedParameter {
    /// The limit on completion tokens goes by its other name there.
    MaxTokens,
    /// One that can be left out.
    Optional(&'static str),
}

impl RefusedParameter {
    /// What a body with status 400 or 422 refuses; `None` when that is no parameter, or one that cannot be left out. A
    /// value that is wrong by itself (too large, of another type) is the agent's to put right.
    pub fn read(body: &str) -> Option<Self> {
        let told: Option<Value> = serde_json::from_str(body).ok();
        let told = |path: &str| told.as_ref()?.pointer(path)?.as_str();
        let is_unsupported = told("/error/code")
            .is_some_and(|code| code.starts_with("unsupported"))
            || is_about_support(body);
        if !is_unsupported {
            return None;
        }
        let is_named = |name: &str| match told("/error/param") {
            Some(param) => param == name,
            None => names(body, name),
        };
        if is_named("max_tokens") {
            return body
                .contains("max_completion_tokens")
                .then_some(RefusedParameter::MaxTokens);
        }
        let found = OPTIONAL.into_iter().find(|name| is_named(name));
        found.map(RefusedParameter::Optional)
    }
}

/// As the services put it that a model does not know, or no longer takes, a parameter.
fn is_about_support(body: &str) -> bool {
    const WORDS: [&str; 9] = [
        "unsupported",
        "not support",
        "unrecognized",
        "unknown",
        "unexpected",
        "not permitted",
        "forbidden",
        "not allowed",
        "deprecated",
    ];
    let body = body.to_ascii_lowercase();
    WORDS.iter().any(|word| body.contains(word))
}

/// Whether the name stands there as a word of its own.
fn names(body: &str, name: &str) -> bool {
    let is_part =
        |byte: Option<&u8>| byte.is_some_and(|it| it.is_ascii_alphanumeric() || *it == b'_');
    body.match_indices(name).any(|(at, _)| {
        let bytes = body.as_bytes();
        let before = at.checked_sub(1).and_then(|at| bytes.get(at));
        !is_part(before) && !is_part(bytes.get(at + name.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, expect: Option<RefusedParameter>) {
        assert_eq!(RefusedParameter::read(body), expect, "{body}");
    }

    #[test]
    fn services_are_understood() {
        use RefusedParameter::{MaxTokens, Optional};
        check(
            r#"{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","type":"invalid_request_error","param":"max_tokens","code":"unsupported_parameter"}}"#,
            Some(MaxTokens),
        );
        check(
            r#"{"error":{"message":"Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported.","type":"invalid_request_error","param":"temperature","code":"unsupported_value"}}"#,
            Some(Optional("temperature")),
        );
        check(
            r#"{"detail":[{"type":"extra_forbidden","loc":["body","top_k"],"msg":"Extra inputs are not permitted","input":-1}]}"#,
            Some(Optional("top_k")),
        );
        check(
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"`temperature` is deprecated for this model."}}"#,
            Some(Optional("temperature")),
        );
        check(
            r#"{"error":{"message":"Unrecognized request argument supplied: seed"}}"#,
            Some(Optional("seed")),
        );
    }

    #[test]
    fn what_is_wrong_with_a_request_is_the_agents_to_put_right() {
        let bodies = [
            r#"{"error":{"message":"max_tokens is too large: 99999","param":"max_tokens","code":"invalid_value"}}"#,
            r#"{"error":{"message":"temperature must be between 0 and 2","param":"temperature"}}"#,
            r#"{"error":{"message":"Unsupported image: seed_image","param":"messages[0].content"}}"#,
            r#"{"error":{"message":"unknown model: stored_metadata"}}"#,
            "",
        ];
        for body in bodies {
            check(body, None);
        }
    }
}
