//! Parameters that an endpoint has refused in a session; they are left out of later requests.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rollcage_dialect::chat::{
    CaptureMode, MaxTokensName, RefusedParameter, has_member, top_logprobs_max,
};

pub(crate) struct EndpointLessons(Mutex<Lessons>);

/// What the refusals so far have shown.
#[derive(Clone)]
pub(crate) struct Lessons {
    /// The highest capture level that was not refused.
    pub(crate) capture: CaptureMode,
    /// Settings of the chat template are refused.
    pub(crate) is_template_refused: bool,
    pub(crate) max_tokens_name: MaxTokensName,
    /// How many alternatives per token to ask for: fewer than were wanted if so many were refused.
    pub(crate) top_logprobs: u32,
    /// Refused members that we add for capture.
    refused_capture: Vec<&'static str>,
    /// Other refused members.
    pub(crate) without: Vec<&'static str>,
}

/// Parameters that a session must keep sending although they were refused.
pub(crate) struct Requirements {
    /// The endpoint's configuration disables thinking, which needs the chat template's settings.
    pub(crate) is_thinking_disabled: bool,
    pub(crate) sampling: SamplingSource,
}

/// Who chose the sampling parameters that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SamplingSource {
    /// The agent: nothing is overridden.
    Agent,
    /// Our default for training, which overrides the agent.
    Default,
    /// The user, which overrides the agent.
    Policy,
}

/// What was learnt from a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lesson {
    New,
    /// A concurrent call was refused for the same reason before.
    Known,
}

impl Lesson {
    fn of(is_known: bool) -> Self {
        match is_known {
            true => Lesson::Known,
            false => Lesson::New,
        }
    }
}

impl EndpointLessons {
    pub(crate) fn new(capture: CaptureMode, top_logprobs: u32) -> Self {
        EndpointLessons(Mutex::new(Lessons {
            capture,
            is_template_refused: false,
            max_tokens_name: MaxTokensName::Auto,
            top_logprobs,
            refused_capture: Vec::new(),
            without: Vec::new(),
        }))
    }

    pub(crate) fn so_far(&self) -> Lessons {
        self.lock().clone()
    }

    /// Learns from a refusal of `request` which parameter to leave out. `None` when there is nothing to learn: the
    /// refusal names no parameter for certain, or the agent itself sent that parameter and should see the refusal.
    pub(crate) fn learn(
        &self,
        refusal: &str,
        request: &[u8],
        requirements: &Requirements,
    ) -> Option<Lesson> {
        let mut lessons = self.lock();
        if let Some(max) = top_logprobs_max(refusal) {
            return lessons.learn_alternatives(max, request);
        }
        match RefusedParameter::read(refusal)? {
            RefusedParameter::Template => {
                let is_own = has_member(request, "chat_template_kwargs");
                if is_own || requirements.is_thinking_disabled {
                    return None;
                }
                let is_known = std::mem::replace(&mut lessons.is_template_refused, true);
                Some(Lesson::of(is_known))
            }
            RefusedParameter::Capture(name) => lessons.learn_capture(name, request),
            RefusedParameter::MaxTokens => {
                let other = MaxTokensName::MaxCompletionTokens;
                let before = std::mem::replace(&mut lessons.max_tokens_name, other);
                Some(Lesson::of(before == other))
            }
            RefusedParameter::Optional(name) => lessons.learn_optional(name, request, requirements),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lessons> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lessons {
    /// Every member that is not sent because the endpoint refused it.
    pub(crate) fn refused(&self) -> Vec<String> {
        let template = self.is_template_refused.then_some("chat_template_kwargs");
        let names = self.refused_capture.iter().chain(&self.without).copied();
        names.chain(template).map(str::to_owned).collect()
    }

    fn learn_alternatives(&mut self, max: u32, request: &[u8]) -> Option<Lesson> {
        if is_asked_by_agent(request, "top_logprobs") || self.capture == CaptureMode::Off {
            return None;
        }
        let is_known = self.top_logprobs <= max;
        self.top_logprobs = self.top_logprobs.min(max);
        Some(Lesson::of(is_known))
    }

    fn learn_capture(&mut self, name: &'static str, request: &[u8]) -> Option<Lesson> {
        if is_asked_by_agent(request, name) {
            return None;
        }
        let less = match name {
            "logprobs" => CaptureMode::Off,
            _ => CaptureMode::Logprobs,
        };
        let is_known = self.capture == CaptureMode::Off || self.capture == less;
        if !is_known {
            self.capture = less;
            self.refused_capture.push(name);
        }
        Some(Lesson::of(is_known))
    }

    fn learn_optional(
        &mut self,
        name: &'static str,
        request: &[u8],
        requirements: &Requirements,
    ) -> Option<Lesson> {
        let is_ours = requirements.sampling != SamplingSource::Agent || name == "stream_options";
        let is_sent = match name {
            // We send it, unless the agent chose a number.
            "top_logprobs" => !is_asked_by_agent(request, name),
            _ => is_ours || has_member(request, name),
        };
        // A user's policy is applied or the call fails; it is never dropped. The other samplers are sent with neutral
        // values, so leaving them out changes nothing.
        let is_policy = requirements.sampling == SamplingSource::Policy && name == "temperature";
        if !is_sent || is_policy {
            return None;
        }
        let is_known = self.without.contains(&name);
        if !is_known {
            self.without.push(name);
        }
        Some(Lesson::of(is_known))
    }
}

/// Whether the agent's request has this member. `logprobs` and `top_logprobs` count as one.
fn is_asked_by_agent(request: &[u8], name: &str) -> bool {
    let names = match name {
        "logprobs" | "top_logprobs" => ["logprobs", "top_logprobs"].as_slice(),
        _ => &[name],
    };
    names.iter().any(|name| has_member(request, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUIREMENTS: Requirements = Requirements {
        is_thinking_disabled: false,
        sampling: SamplingSource::Default,
    };

    #[track_caller]
    fn check(refusal: &str, request: &str, expect: (CaptureMode, &[&str])) {
        let learned = EndpointLessons::new(CaptureMode::Tokens, 5);
        let lesson = learned.learn(refusal, request.as_bytes(), &REQUIREMENTS);
        let lessons = learned.so_far();
        assert_eq!(
            (lessons.capture, lessons.refused()),
            (expect.0, texts(expect.1))
        );
        let is_new = !expect.1.is_empty();
        assert_eq!(lesson, is_new.then_some(Lesson::New), "{refusal}");
    }

    fn texts(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn capture_is_reduced_only_when_a_refusal_names_its_parameter() {
        let plain = r#"{"messages":[{"content":"\"logprobs\""}]}"#;
        let unknown =
            r#"{"error":{"message":"Unrecognized request argument supplied: return_token_ids"}}"#;
        check(
            unknown,
            plain,
            (CaptureMode::Logprobs, &["return_token_ids"]),
        );
        let unsupported = r#"{"error":{"message":"logprobs is not supported"}}"#;
        check(unsupported, plain, (CaptureMode::Off, &["logprobs"]));
        let echo = r#"{"message":"[{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'unexpected', 'input': {'logprobs': True, 'return_token_ids': True}}]"}"#;
        check(echo, plain, (CaptureMode::Tokens, &[]));
    }

    #[test]
    fn parameters_that_the_agent_sent_are_kept() {
        let refusal = r#"{"error":{"message":"Requested sample logprobs of 50, which is greater than max allowed: 20 (parameter=logprobs, value=50)","param":"logprobs","code":400}}"#;
        let request = r#"{"logprobs":true,"top_logprobs":50}"#;
        check(refusal, request, (CaptureMode::Tokens, &[]));
        let refusal =
            r#"{"error":{"message":"top_logprobs is not supported","param":"top_logprobs"}}"#;
        check(refusal, request, (CaptureMode::Tokens, &[]));
        check(refusal, "{}", (CaptureMode::Tokens, &["top_logprobs"]));
        let refusal = r#"{"error":{"message":"logprobs is not supported"}}"#;
        check(refusal, request, (CaptureMode::Tokens, &[]));
    }

    #[test]
    fn fewer_alternatives_are_asked_for_where_so_many_are_refused() {
        let refusal = |max: u32| {
            format!("Requested sample logprobs of 5, which is greater than max allowed: {max}")
        };
        let learned = EndpointLessons::new(CaptureMode::Tokens, 5);
        let learn = |max, request: &[u8]| learned.learn(&refusal(max), request, &REQUIREMENTS);
        assert_eq!(learn(2, br#"{"logprobs":true,"top_logprobs":5}"#), None);
        assert_eq!(learned.so_far().top_logprobs, 5, "that one is the agent's");
        assert_eq!(learn(2, b"{}"), Some(Lesson::New));
        assert_eq!(learn(2, b"{}"), Some(Lesson::Known));
        assert_eq!(learn(0, b"{}"), Some(Lesson::New));
        let lessons = learned.so_far();
        assert_eq!(
            (lessons.top_logprobs, lessons.capture),
            (0, CaptureMode::Tokens)
        );
        assert_eq!(lessons.refused(), texts(&[]));
    }

    #[test]
    fn neutral_samplers_are_left_out_and_a_policy_is_not() {
        let refusal =
            |name: &str| format!(r#"{{"error":{{"message":"unknown parameter {name}"}}}}"#);
        check(&refusal("top_k"), "{}", (CaptureMode::Tokens, &["top_k"]));
        check(
            &refusal("temperature"),
            "{}",
            (CaptureMode::Tokens, &["temperature"]),
        );
        let learned = EndpointLessons::new(CaptureMode::Tokens, 5);
        let requirements = Requirements {
            sampling: SamplingSource::Policy,
            ..REQUIREMENTS
        };
        assert_eq!(
            learned.learn(&refusal("temperature"), b"{}", &requirements),
            None
        );
        assert_eq!(
            learned.learn(&refusal("min_p"), b"{}", &requirements),
            Some(Lesson::New)
        );
        assert_eq!(
            learned.learn(&refusal("min_p"), b"{}", &requirements),
            Some(Lesson::Known)
        );
    }
}
