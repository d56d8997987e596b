//! What an endpoint was found to refuse in a session, so that it is asked without it from then on.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rollcage_model::chat::{Capture, MaxTokensName, RefusedParameter};

pub(super) struct Learned(Mutex<Lessons>);

#[derive(Clone)]
pub(super) struct Lessons {
    /// The most that is worth asking for.
    pub(super) capture: Capture,
    /// Settings of the chat template are refused.
    pub(super) is_template_refused: bool,
    pub(super) max_tokens_name: MaxTokensName,
    /// Other members that are refused.
    pub(super) without: Vec<&'static str>,
}

/// What a session must not do without.
pub(super) struct Needs {
    /// The endpoint's own setting, which goes by way of the chat template.
    pub(super) is_thinking_disabled: bool,
    /// The policy of a training session.
    pub(super) is_sampling_pinned: bool,
}

/// What became of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lesson {
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
    pub(super) fn new(capture: Capture) -> Self {
        Learned(Mutex::new(Lessons {
            capture,
            is_template_refused: false,
            max_tokens_name: MaxTokensName::Auto,
            without: Vec::new(),
        }))
    }

    pub(super) fn so_far(&self) -> Lessons {
        self.lessons().clone()
    }

    /// Learns from a refusal of `request` to ask for less. `None` when there is nothing to learn from it.
    pub(super) fn learn(&self, refusal: &str, request: &[u8], needs: &Needs) -> Option<Lesson> {
        let mut lessons = self.lessons();
        if refusal.contains("chat_template_kwargs") && !needs.is_thinking_disabled {
            let is_known = std::mem::replace(&mut lessons.is_template_refused, true);
            return Some(Lesson::of(is_known));
        }
        let flags = [Capture::Tokens, Capture::TokensInSglext].map(Capture::id_flags);
        if flags.concat().iter().any(|flag| refusal.contains(flag)) {
            let is_known = lessons.capture.id_flags().is_empty();
            if !is_known {
                lessons.capture = Capture::Logprobs;
            }
            return Some(Lesson::of(is_known));
        }
        if refusal.contains("logprobs") {
            let before = std::mem::replace(&mut lessons.capture, Capture::Off);
            return Some(Lesson::of(before == Capture::Off));
        }
        lessons.learn_parameter(refusal, request, needs)
    }

    fn lessons(&self) -> MutexGuard<'_, Lessons> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lessons {
    fn learn_parameter(&mut self, refusal: &str, request: &[u8], needs: &Needs) -> Option<Lesson> {
        let name = match RefusedParameter::read(refusal)? {
            RefusedParameter::Optional(name) => name,
            RefusedParameter::MaxTokens => {
                let other = MaxTokensName::MaxCompletionTokens;
                let before = std::mem::replace(&mut self.max_tokens_name, other);
                return Some(Lesson::of(before == other));
            }
        };
        let asked = String::from_utf8_lossy(request);
        let is_ours = needs.is_sampling_pinned || name == "stream_options";
        let is_sent = is_ours || asked.contains(&format!("\"{name}\""));
        // A policy is kept or told to be impossible, never dropped. Other samplers, at rest, are no loss.
        let is_policy = needs.is_sampling_pinned && name == "temperature";
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
