//! Rewrites an agent's request into the request that is sent to the endpoint.

use bytes::Bytes;
use serde_json::{Map, Value};
use thiserror::Error;

use super::added::AddedFields;
use super::constraint::{
    Constraint, ConstraintPolicy, STRICT_TOOLS, constraints_of, without_strict,
};
use super::members::Members;
use super::segments::BodySegments;
use crate::sampling;

/// The changes to make to each request of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rewrite {
    /// Replaces the model that the agent names.
    pub model: Option<String>,
    /// Upper limit on completion tokens; also sent if the agent sets no limit.
    pub tokens_max: Option<u64>,
    /// Sets `chat_template_kwargs.enable_thinking` to false.
    pub is_thinking_disabled: bool,
    pub max_tokens_name: MaxTokensName,
    pub capture: CaptureMode,
    /// Request a JSON answer even if the agent requests a stream: for endpoints that omit token ids from streams.
    pub is_stream_off: bool,
    /// In a training session: overrides the agent's sampling parameters.
    pub sampling: Option<Sampling>,
    pub constrained: ConstraintPolicy,
    /// Number of alternatives to request if the agent sets none. vLLM returns no logprobs at all without it.
    pub top_logprobs: u32,
    /// Members that the endpoint refuses: not sent, be they the agent's or ours.
    pub without: Vec<&'static str>,
}

/// Sampling under which logprobs can be recomputed: a temperature, and every other parameter at its neutral value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    pub temperature: f64,
}

/// Which name to use for the limit on completion tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MaxTokensName {
    /// The agent's own choice, except for models that accept only `max_completion_tokens`.
    #[default]
    Auto,
    MaxTokens,
    MaxCompletionTokens,
}

/// What to request in addition to the agent's own request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureMode {
    /// Token ids, logprobs and usage.
    Tokens,
    /// The same with SGLang's own flags, since it refuses the usual one in streams. The ids come once per answer.
    TokensInSglext,
    /// Logprobs and usage: hosted services refuse members that they do not support.
    Logprobs,
    /// Nothing.
    #[default]
    Off,
}

impl CaptureMode {
    /// The request members that turn on token ids.
    pub fn id_flags(self) -> &'static [&'static str] {
        match self {
            CaptureMode::Tokens => &["return_token_ids"],
            CaptureMode::TokensInSglext => {
                &["return_input_ids_in_sglext", "return_output_ids_in_sglext"]
            }
            CaptureMode::Logprobs | CaptureMode::Off => &[],
        }
    }
}

/// A rewritten request, and the changes that were made.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedRequest {
    pub body: BodySegments,
    pub is_stream: bool,
    /// Top-level members that were added or changed, as sent.
    pub set: Map<String, Value>,
    /// Top-level members that were removed.
    pub removed: Vec<String>,
    pub added: AddedFields,
}

#[derive(Debug, Error)]
pub enum PrepareError {
    #[error("the request body is not UTF-8")]
    NotUtf8(#[source] std::str::Utf8Error),
    #[error("the request body is not a JSON object")]
    NotObject(#[source] serde_json::Error),
    #[error("the request body has the member `{name}` twice")]
    Duplicate { name: String },
    #[error(
        "`n` is {n}: only one completion per request can be captured, send one request for each instead"
    )]
    Several { n: String },
    #[error("the request's member `{name}` is not an object")]
    Member { name: &'static str },
    #[error(
        "`{name}` constrains what is sampled, and the policy of this training session is to refuse that (constrained = \
         refuse): leave it out, or change the policy to remove or keep"
    )]
    Constrained { name: String },
}

const MAX_TOKENS: &str = "max_tokens";
const MAX_COMPLETION_TOKENS: &str = "max_completion_tokens";

/// Applies `rewrite`; all members that it does not affect, such as `messages`, keep their bytes.
pub fn prepare(body: &Bytes, rewrite: &Rewrite) -> Result<PreparedRequest, PrepareError> {
    let mut draft = RequestDraft::read(body, rewrite)?;
    let n = draft.members.get("n");
    if let Some(n) = n.filter(|n| n.parse() != Ok(1.0_f64)) {
        return Err(PrepareError::Several { n: n.to_owned() });
    }
    let is_stream = draft.members.get("stream") == Some("true");

    if let Some(model) = &rewrite.model
        && draft.members.value::<String>("model").as_ref() != Some(model)
    {
        draft.set("model", model.as_str());
    }
    limit_tokens(&mut draft, rewrite);
    apply_constraint_policy(&mut draft, rewrite.constrained)?;
    if let Some(sampling) = rewrite.sampling {
        pin_sampling(&mut draft, sampling);
    }
    if rewrite.is_stream_off && is_stream {
        draft.set("stream", false);
        draft.remove("stream_options");
    }
    if rewrite.is_thinking_disabled {
        draft.set_inside("chat_template_kwargs", "enable_thinking", "false")?;
    }
    let added = match rewrite.capture {
        CaptureMode::Tokens | CaptureMode::TokensInSglext | CaptureMode::Logprobs => {
            let is_streamed = is_stream && !rewrite.is_stream_off;
            request_capture_fields(&mut draft, rewrite, is_streamed)?
        }
        CaptureMode::Off => AddedFields::default(),
    };
    Ok(draft.finish(is_stream, added))
}

/// A request that is being rewritten, and the changes so far.
pub(crate) struct RequestDraft<'a> {
    /// Members that must not be sent.
    without: &'a [&'static str],
    /// The agent's body, which `members` borrow from.
    source: &'a Bytes,
    pub(crate) members: Members<'a>,
    set: Map<String, Value>,
    removed: Vec<String>,
}

impl<'a> RequestDraft<'a> {
    /// Parses a body, which must be a JSON object without duplicate members.
    pub(crate) fn read(source: &'a Bytes, rewrite: &'a Rewrite) -> Result<Self, PrepareError> {
        let text = std::str::from_utf8(source).map_err(PrepareError::NotUtf8)?;
        let Some(members) = Members::read(text) else {
            // Parsed again for serde's description of the error.
            let read = serde_json::from_str::<Map<String, Value>>(text);
            let error = read
                .err()
                .unwrap_or_else(|| serde::de::Error::custom("it cannot be read"));
            return Err(PrepareError::NotObject(error));
        };
        if let Some(name) = members.duplicate() {
            return Err(PrepareError::Duplicate {
                name: name.to_owned(),
            });
        }
        let mut draft = RequestDraft {
            without: &rewrite.without,
            source,
            members,
            set: Map::new(),
            removed: Vec::new(),
        };
        for name in draft.without {
            draft.remove(name);
        }
        Ok(draft)
    }

    /// The request to send; the agent's own bytes if nothing was changed.
    pub(crate) fn finish(self, is_stream: bool, added: AddedFields) -> PreparedRequest {
        let is_changed = !self.set.is_empty() || !self.removed.is_empty();
        let body = match is_changed {
            true => self.members.write_segments(self.source),
            false => self.source.clone().into(),
        };
        PreparedRequest {
            body,
            is_stream,
            set: self.set,
            removed: self.removed,
            added,
        }
    }

    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        if self.without.contains(&name) {
            return;
        }
        let value = value.into();
        self.members.set(name, value.to_string());
        self.set.insert(name.to_owned(), value);
    }

    pub(crate) fn remove(&mut self, name: &str) {
        if self.members.remove(name) {
            self.removed.push(name.to_owned());
        }
    }

    /// Sets a member of the object `name`, which may be absent; returns whether that changed anything.
    fn set_inside(
        &mut self,
        name: &'static str,
        inner: &str,
        value: &'static str,
    ) -> Result<bool, PrepareError> {
        if self.without.contains(&name) {
            return Ok(false);
        }
        let mut object = match self.members.get(name) {
            Some(text) => Members::read(text).ok_or(PrepareError::Member { name })?,
            None => Members::default(),
        };
        if object.get(inner) == Some(value) {
            return Ok(false);
        }
        object.set(inner, value.to_owned());
        let text = object.write();
        let read = serde_json::from_str(&text).map_err(|_| PrepareError::Member { name })?;
        self.members.set(name, text);
        self.set.insert(name.to_owned(), read);
        Ok(true)
    }
}

/// Applies the session's policy to members that constrain sampling.
fn apply_constraint_policy(
    draft: &mut RequestDraft<'_>,
    policy: ConstraintPolicy,
) -> Result<(), PrepareError> {
    if policy == ConstraintPolicy::Keep {
        return Ok(());
    }
    for Constraint { name, is_known } in constraints_of(&draft.members) {
        if policy == ConstraintPolicy::Refuse && is_known {
            return Err(PrepareError::Constrained { name });
        }
        if name != STRICT_TOOLS {
            draft.remove(&name);
            continue;
        }
        let tools = draft.members.get("tools").and_then(without_strict);
        if let Some(tools) = tools {
            draft.members.set("tools", tools);
            draft.removed.push(name);
        }
    }
    Ok(())
}

/// Sends the neutral value of every sampling parameter: omitted ones would take the model's own defaults. An agent's seed
/// is left out: with the same one in every rollout of a group all of them would be the same.
fn pin_sampling(draft: &mut RequestDraft<'_>, sampling: Sampling) {
    draft.remove("seed");
    draft.set("temperature", sampling.temperature);
    for (name, neutral) in sampling::neutral_values() {
        draft.set(name, neutral);
    }
}

/// Whether a request has a top-level member of this name; false if it is no JSON object.
pub fn has_member(body: &[u8], name: &str) -> bool {
    let members = std::str::from_utf8(body).ok().and_then(Members::read);
    members.is_some_and(|members| members.get(name).is_some())
}

/// The limit on completion tokens in a request, under either name.
pub fn requested_max_tokens(body: &[u8]) -> Option<u64> {
    let members = Members::read(std::str::from_utf8(body).ok()?)?;
    [MAX_COMPLETION_TOKENS, MAX_TOKENS]
        .iter()
        .find_map(|name| members.value::<u64>(name))
}

fn request_capture_fields(
    draft: &mut RequestDraft<'_>,
    rewrite: &Rewrite,
    is_stream: bool,
) -> Result<AddedFields, PrepareError> {
    let mut added = AddedFields::default();
    if draft.members.get("logprobs") != Some("true") {
        draft.set("logprobs", true);
        added.logprobs = true;
    }
    if draft.members.get("top_logprobs").is_none() {
        draft.set("top_logprobs", rewrite.top_logprobs);
        added.top_logprobs = true;
    }
    for name in rewrite.capture.id_flags() {
        if draft.members.get(name) != Some("true") {
            draft.set(name, true);
            added.token_ids = true;
        }
    }
    if draft.members.get("include_reasoning") == Some("false") {
        draft.set("include_reasoning", true);
        added.reasoning = true;
    }
    if is_stream {
        added.usage = draft.set_inside("stream_options", "include_usage", "true")?;
    }
    Ok(added)
}

fn limit_tokens(draft: &mut RequestDraft<'_>, rewrite: &Rewrite) {
    let model: Option<String> = draft.members.value("model");
    let names = match rewrite.max_tokens_name {
        MaxTokensName::MaxTokens => Some((MAX_TOKENS, MAX_COMPLETION_TOKENS)),
        MaxTokensName::MaxCompletionTokens => Some((MAX_COMPLETION_TOKENS, MAX_TOKENS)),
        MaxTokensName::Auto if model.is_some_and(|model| refuses_max_tokens(&model)) => {
            Some((MAX_COMPLETION_TOKENS, MAX_TOKENS))
        }
        MaxTokensName::Auto => None,
    };
    if let Some((name, other)) = names {
        if draft.members.get(name).is_none()
            && let Some(value) = draft.members.value::<Value>(other)
        {
            draft.set(name, value);
        }
        draft.remove(other);
    }
    let Some(tokens_max) = rewrite.tokens_max else {
        return;
    };
    let mut is_limited = false;
    for name in [MAX_TOKENS, MAX_COMPLETION_TOKENS] {
        if let Some(text) = draft.members.get(name) {
            is_limited = true;
            // A lenient endpoint may still parse what is no number to us, so that is replaced as well.
            if !text
                .parse()
                .is_ok_and(|asked: f64| asked <= tokens_max as f64)
            {
                draft.set(name, tokens_max);
            }
        }
    }
    if !is_limited {
        draft.set(names.map_or(MAX_TOKENS, |(name, _)| name), tokens_max);
    }
}

/// OpenAI's reasoning models answer `max_tokens` with 400, also behind a router that prefixes names with `provider/`.
fn refuses_max_tokens(model: &str) -> bool {
    let name = model
        .rsplit('/')
        .next()
        .unwrap_or(model)
        .to_ascii_lowercase();
    let generation = |family: &str| {
        let rest = name.strip_prefix(family)?;
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest[..digits].parse::<u32>().ok()
    };
    generation("gpt-").is_some_and(|number| number >= 5) || generation("o").is_some()
}

#[cfg(test)]
mod tests;
