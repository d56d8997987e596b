//! What an endpoint was found to refuse in a session, so that it is asked without it from then on.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rollcage_dialect::chat::{CaptureMode, MaxTokensName, RefusedParameter, has_member};

pub(crate) struct Learned(Mutex<Lessons>);

#[derive(Clone)]
pub(crate) struct Lessons {
    /// The most that is worth asking for.
    pub(crate) capture: CaptureMode,
    /// Settings of the chat template are refused.
    pub(crate) is_template_refused: bool,
    pub(crate) max_tokens_name: MaxTokensName,
    /// Members for capture that are refused.
    refused_capture: Vec<&'static str>,
    /// Other members that are refused.
    pub(crate) without: Vec<&'static str>,
}

/// What a session must not do without.
pub(crate) struct Needs {
    /// The endpoint's own setting, which goes by way of the chat template.
    pub(crate) is_thinking_disabled: bool,
    /// Sampling that is sent whatever the agent asks for.
    pub(crate) sampling: Pinned,
}

/// Who wants the sampling as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinned {
    /// The agent alone.
    No,
    /// Nobody said otherwise.
    ByDefault,
    /// The user.
    ByPolicy,
}

/// What became of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lesson {
    New,
    /// Another call, at the same time, was refused the same.
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

impl Learned {
    pub(crate) fn new(capture: CaptureMode) -> Self {
        Learned(Mutex::new(Lessons {
            capture,
            is_template_refused: false,
            max_tokens_name: MaxTokensName::Auto,
            refused_capture: Vec::new(),
            without: Vec::new(),
        }))
    }

    pub(crate) fn so_far(&self) -> Lessons {
        self.lessons().clone()
    }

    /// Learns from a refusal of `request` to ask for less. `None` when there is nothing to learn from it: it proves
    /// nothing, or the agent asked for that itself, and its refusal is its own.
    pub(crate) fn learn(&self, refusal: &str, request: &[u8], needs: &Needs) -> Option<Lesson> {
        let mut lessons = self.lessons();
        match RefusedParameter::read(refusal)? {
            RefusedParameter::Template => {
                let is_own = has_member(request, "chat_template_kwargs");
                if is_own || needs.is_thinking_disabled {
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
            RefusedParameter::Optional(name) => lessons.learn_optional(name, request, needs),
        }
    }

    fn lessons(&self) -> MutexGuard<'_, Lessons> {
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
        needs: &Needs,
    ) -> Option<Lesson> {
        let is_ours = needs.sampling != Pinned::No || name == "stream_options";
        let is_sent = match name {
            // Ours, unless the agent chose a number.
            "top_logprobs" => !is_asked_by_agent(request, name),
            _ => is_ours || has_member(request, name),
        };
        // A policy is kept or told to be impossible, never dropped. Other samplers, at rest, are no loss.
        let is_policy = needs.sampling == Pinned::ByPolicy && name == "temperature";
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

/// Logprobs and their alternatives are one wish.
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

    const NEEDS: Needs = Needs {
        is_thinking_disabled: false,
        sampling: Pinned::ByDefault,
    };

    #[track_caller]
    fn check(refusal: &str, request: &str, expect: (CaptureMode, &[&str])) {
        let learned = Learned::new(CaptureMode::Tokens);
        let lesson = learned.learn(refusal, request.as_bytes(), &NEEDS);
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
    fn capture_is_reduced_by_proof_alone() {
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
    fn what_the_agent_asked_for_itself_is_its_own() {
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
    fn samplers_at_rest_are_left_out_and_a_policy_is_not() {
        let refusal =
            |name: &str| format!(r#"{{"error":{{"message":"unknown parameter {name}"}}}}"#);
        check(&refusal("top_k"), "{}", (CaptureMode::Tokens, &["top_k"]));
        check(
            &refusal("temperature"),
            "{}",
            (CaptureMode::Tokens, &["temperature"]),
        );
        let learned = Learned::new(CaptureMode::Tokens);
        let needs = Needs {
            sampling: Pinned::ByPolicy,
            ..NEEDS
        };
        assert_eq!(learned.learn(&refusal("temperature"), b"{}", &needs), None);
        assert_eq!(
            learned.learn(&refusal("min_p"), b"{}", &needs),
            Some(Lesson::New)
        );
        assert_eq!(
            learned.learn(&refusal("min_p"), b"{}", &needs),
            Some(Lesson::Known)
        );
    }
}
