//! One exchange seen as a model call: what was asked, what came back, and whether its tokens can be trusted.

use serde_json::{Map, Value, json};

use crate::exchange::{Exchange, Request};
use crate::finding::Code;
use crate::tokens::Tokens;
use rollcage_dialect::chat::{self, Flaw, Message, Reply, STRICT_TOOLS, Usage, is_aborted_finish};
use rollcage_dialect::sampling::{self, LogprobsMode};
use rollcage_dialect::{Dialect, EndpointDialect};

mod media;
mod session;
mod shared;

use session::Session;
use shared::RequestParts;
pub use shared::{Interner, Shared};

#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    pub exchange: u64,
    /// Unix seconds, when the request came.
    pub at: f64,
    /// `None` when no answer was stored.
    pub latency_s: Option<f64>,
    /// The name the upstream gave, or the one it was asked for.
    pub model: Option<String>,
    /// The name it was asked for.
    pub asked_model: Option<String>,
    pub messages: Vec<Shared>,
    pub tools: Option<Shared>,
    pub n_tools: usize,
    /// `None` when the exchange failed.
    pub message: Option<Message>,
    pub finish_reason: Option<String>,
    pub is_stream: bool,
    pub prompt_token_ids: Option<Tokens>,
    pub completion_token_ids: Option<Vec<u32>>,
    /// The ids were read out of token strings.
    pub is_from_strings: bool,
    /// Token strings, where logprobs came with them.
    pub tokens: Vec<String>,
    /// Whole or not at all: a list with a hole in it is `None`.
    pub logprobs: Option<Vec<f64>>,
    pub usage: Option<Usage>,
    pub upstream_status: Option<u16>,
    /// Always an object; `{"message": text}` when the upstream's was none.
    pub upstream_error: Option<Value>,
    /// What the agent says of its own sessions: recorded, never trusted.
    pub harness_session_id: Option<String>,
    pub parent_session_id: Option<String>,
    /// As the agent asked, and as the upstream was asked.
    pub requested_sampling: Map<String, Value>,
    pub sampling: Map<String, Value>,
    /// The upstream's request in short: each of [`COMPACT`], null where it was not sent.
    pub compact: Map<String, Value>,
    pub exactness: Exactness,
    /// What of the request makes the tokens unfit for training, in words, where that is why they are not exact.
    pub unfit: Option<String>,
    /// What the logprobs are of, where that was stored.
    pub logprobs_of: Option<LogprobsMode>,
    /// Members that the endpoint does not take, so that it was not asked for them.
    pub refused: Vec<String>,
    /// What the agent asked for that constrains sampling, or may, and was not sent.
    pub loosened: Vec<String>,
    /// How many images of the agent's request were not in the endpoint's.
    pub images_not_sent: usize,
    /// What the agent speaks.
    pub dialect: Dialect,
    /// Nothing but chat carries tokens.
    pub endpoint_dialect: EndpointDialect,
    /// What of the request had no counterpart in the endpoint's dialect.
    pub dropped: Vec<String>,
}

/// Whether ids and logprobs are the engine's own, whole and aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exactness {
    Exact,
    NotExact(Code),
}

const SAMPLING: [&str; 17] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "stop",
    "stop_sequences",
    "logit_bias",
    "reasoning_effort",
    "thinking",
];

/// What the original keeps of a request, beside its messages.
pub const COMPACT: [&str; 8] = [
    "model",
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "logprobs",
    "top_logprobs",
    "stream",
];

impl Turn {
    /// A turn that shares nothing.
    pub fn new(exchange: &Exchange) -> Self {
        Turn::read(exchange, &mut Interner::default())
    }

    /// A turn that shares with others what they have in common: equal messages, tools and prompt prefixes are kept once.
    pub fn read(exchange: &Exchange, interner: &mut Interner) -> Self {
        let Exchange {
            request, response, ..
        } = exchange;
        let RequestParts {
            members: asked,
            messages,
            tools,
        } = match request.endpoint_dialect {
            EndpointDialect::Chat => interner.chat_parts(exchange.endpoint_body()),
            EndpointDialect::Anthropic => interner.anthropic_parts(exchange.endpoint_body()),
        };
        let requested_sampling = match request.dialect {
            // What a chat agent asks for is told in its own words, also where another dialect has none for it.
            Dialect::Chat if exchange.sent.is_some() => sampling_of(&members_of(&request.body)),
            _ => sampling_of(&asked),
        };
        let n_tools = tools.as_ref().and_then(|tools| tools.as_array());
        let n_tools = n_tools.map_or(0, Vec::len);
        let loosened = loosened(request, &asked, tools.as_deref());
        let sent = as_sent(asked, request);

        let reply = reply_of(exchange);
        let upstream_error = error_of(exchange, &reply);
        let (exactness, unfit) = match upstream_error {
            Some(_) => (Exactness::NotExact(Code::UpstreamError), None),
            None => judge(&reply, is_usage_due(exchange, &sent), || {
                unfit_for_training(request, &sent, &messages, &tools)
            }),
        };
        let logprobs = whole_logprobs(&reply);
        let entries = reply.logprobs.unwrap_or_default();
        let session = Session::of(&request.headers);
        let asked_model = sent.get("model").and_then(Value::as_str);
        let asked_model = asked_model.map(str::to_owned);
        Turn {
            exchange: request.exchange,
            at: request.at,
            latency_s: response.as_ref().map(|response| response.total_s),
            model: reply.model.or_else(|| asked_model.clone()),
            asked_model,
            messages,
            tools,
            n_tools,
            message: upstream_error.is_none().then_some(reply.message),
            finish_reason: reply.finish_reason,
            is_stream: response.as_ref().is_some_and(|response| response.is_stream),
            prompt_token_ids: reply.prompt_token_ids.map(|ids| {
                let sampled = reply.token_ids.as_deref().unwrap_or_default();
                interner.prompts.keep(ids, sampled)
            }),
            completion_token_ids: reply.token_ids,
            is_from_strings: reply.is_from_strings,
            logprobs,
            tokens: entries.into_iter().map(|entry| entry.token).collect(),
            usage: reply.usage,
            upstream_status: response.as_ref().and_then(|response| response.status),
            upstream_error,
            harness_session_id: session.own,
            parent_session_id: session.parent,
            requested_sampling,
            sampling: sampling_of(&sent),
            compact: compact_of(&sent),
            exactness,
            unfit,
            logprobs_of: request.logprobs_of,
            refused: request.refused.clone(),
            loosened,
            images_not_sent: media::not_sent(exchange),
            dialect: request.dialect,
            endpoint_dialect: request.endpoint_dialect,
            dropped: request.dropped.clone(),
        }
    }

    /// The name of the turn's node.
    pub fn node_id(&self) -> String {
        format!("n{}", self.exchange)
    }

    /// There was no completion, so nothing can go on from it.
    pub fn is_failed(&self) -> bool {
        self.upstream_error.is_some()
    }

    pub fn is_exact(&self) -> bool {
        self.exactness == Exactness::Exact
    }

    /// Which of the members that ask for tokens the endpoint does not take.
    pub fn refused_capture(&self) -> impl Iterator<Item = &str> {
        let names = self.refused.iter().map(String::as_str);
        names.filter(|name| chat::RefusedParameter::CAPTURE.contains(name))
    }

    pub fn n_trainable_tokens(&self) -> usize {
        if !self.is_exact() {
            return 0;
        }
        self.completion_token_ids.as_ref().map_or(0, Vec::len)
    }

    /// Tokens that are exact, whether or not they are fit for training.
    pub(crate) fn n_captured_tokens(&self) -> usize {
        match self.is_exact() || self.unfit.is_some() {
            true => self.completion_token_ids.as_ref().map_or(0, Vec::len),
            false => 0,
        }
    }
}

fn reply_of(exchange: &Exchange) -> Reply {
    let Some(response) = &exchange.response else {
        return Reply::default();
    };
    let dialect = exchange.request.endpoint_dialect;
    dialect.read(&response.text(), response.is_stream).0
}

fn members_of(body: &[u8]) -> Map<String, Value> {
    serde_json::from_slice(body).unwrap_or_default()
}

fn as_sent(mut asked: Map<String, Value>, request: &Request) -> Map<String, Value> {
    for name in &request.removed {
        asked.remove(name);
    }
    asked.extend(request.set.clone());
    asked
}

fn whole_logprobs(reply: &Reply) -> Option<Vec<f64>> {
    let entries = reply.logprobs.as_deref().unwrap_or_default();
    let is_whole = !entries.is_empty() || reply.token_ids.as_ref().is_some_and(Vec::is_empty);
    let logprobs = entries.iter().map(|entry| entry.logprob).collect();
    is_whole.then_some(logprobs)?
}

/// The constraints in an agent's request that were not sent.
fn loosened(request: &Request, asked: &Map<String, Value>, tools: Option<&Value>) -> Vec<String> {
    // Few requests had anything removed.
    if request.removed.is_empty() {
        return Vec::new();
    }
    let constraints = chat::constraints_in(asked, tools).into_iter();
    let names = constraints.map(|constraint| constraint.name);
    names
        .filter(|name| request.removed.contains(name) && !request.refused.contains(name))
        .collect()
}

/// Whether the answer is a stream that was to end with its usage. A session passes streams on live only where its probe saw
/// their usage, so one without has lost its end, and may have lost more.
fn is_usage_due(exchange: &Exchange, sent: &Map<String, Value>) -> bool {
    let is_stream = exchange.response.as_ref().is_some_and(|it| it.is_stream);
    is_stream
        && sent
            .get("stream_options")
            .is_some_and(|it| it["include_usage"] == true)
}

fn sampling_of(members: &Map<String, Value>) -> Map<String, Value> {
    let known = SAMPLING
        .iter()
        .filter_map(|name| members.get_key_value(*name));
    known
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn compact_of(sent: &Map<String, Value>) -> Map<String, Value> {
    let value = |name: &&str| sent.get(*name).cloned().unwrap_or_default();
    COMPACT
        .iter()
        .map(|name| ((*name).to_owned(), value(name)))
        .collect()
}

/// The upstream's error; `None` when there is a completion, even one that was cut.
fn error_of(exchange: &Exchange, reply: &Reply) -> Option<Value> {
    let message = |text: &str| json!({ "message": text });
    let Some(response) = &exchange.response else {
        return Some(message("no response was stored"));
    };
    if let Some(error) = &reply.upstream_error {
        return Some(match error {
            Value::Object(_) => error.clone(),
            Value::String(text) => message(text),
            other => message(&other.to_string()),
        });
    }
    if response
        .status
        .is_none_or(|status| !(200..300).contains(&status))
    {
        return Some(match serde_json::from_slice(&response.body) {
            Ok(Value::Object(body)) => Value::Object(body),
            _ if response.body.trim_ascii().is_empty() => {
                message(response.error.as_deref().unwrap_or("no answer"))
            }
            _ => message(&response.text()),
        });
    }
    let has_tokens = reply.token_ids.is_some() || reply.is_complete;
    // A whole answer without a message is none, whatever else is in it.
    let is_none = !response.is_stream && reply.flaws.contains(&Flaw::Unreadable);
    let has_nothing = reply.message.is_empty() && (!has_tokens || is_none);
    has_nothing.then(|| {
        message(
            response
                .error
                .as_deref()
                .unwrap_or("the answer has no completion in it"),
        )
    })
}

/// Why tokens that are exact cannot be trained on, by what was asked: sampled under a constraint, from a prompt that is
/// more than its ids, or with logprobs of another distribution.
fn unfit_for_training(
    request: &Request,
    sent: &Map<String, Value>,
    messages: &[Shared],
    tools: &Option<Shared>,
) -> Option<(Code, String)> {
    let is_loosened = request.removed.iter().any(|name| name == STRICT_TOOLS);
    let tools = tools.as_deref().filter(|_| !is_loosened);
    let constraints = chat::constraints_in(sent, tools);
    if !constraints.is_empty() {
        let names: Vec<String> = constraints.iter().map(ToString::to_string).collect();
        return Some((Code::ConstrainedSampling, names.join(", ")));
    }
    if let Some(kind) = messages.iter().find_map(|message| media::kind_of(message)) {
        return Some((Code::MediaInPrompt, kind.to_owned()));
    }
    let mode = request.logprobs_of;
    let mismatch = sampling::mismatch(mode, sent, &request.refused);
    let words = || {
        let about = mode.unwrap_or_default().in_words();
        format!(
            "the logprobs are {about}, and this was sampled with {}",
            mismatch.join(", ")
        )
    };
    (!mismatch.is_empty()).then(|| (Code::LogprobsNotSampled, words()))
}

/// Whether the tokens are exact, and why exact ones are unfit for training, if they are.
fn judge(
    reply: &Reply,
    is_usage_due: bool,
    unfit: impl Fn() -> Option<(Code, String)>,
) -> (Exactness, Option<String>) {
    match (flaw_of(reply, is_usage_due), unfit()) {
        (Some(code), _) => (Exactness::NotExact(code), None),
        (None, Some((code, words))) => (Exactness::NotExact(code), Some(words)),
        (None, None) => (Exactness::Exact, None),
    }
}

/// The first reason not to trust the tokens, the most obvious ones first.
fn flaw_of(reply: &Reply, is_usage_due: bool) -> Option<Code> {
    if reply
        .finish_reason
        .as_deref()
        .is_some_and(is_aborted_finish)
    {
        return Some(Code::AbortedTurn);
    }
    if reply
        .flaws
        .iter()
        .any(|flaw| matches!(flaw, Flaw::TokenId { .. }))
    {
        return Some(Code::InvalidTokenId);
    }
    let Some(prompt_ids) = reply
        .prompt_token_ids
        .as_ref()
        .filter(|ids| !ids.is_empty())
    else {
        return Some(Code::NoPromptIds);
    };
    let Some(ids) = &reply.token_ids else {
        return Some(Code::NoSampledIds);
    };
    let n_logprobs = reply.logprobs.as_ref().map_or(0, Vec::len);
    if n_logprobs == 0 && !ids.is_empty() {
        return Some(Code::NoLogprobs);
    }
    let flaw = reply.flaws.first().map(|flaw| match flaw {
        Flaw::TokenId { .. } => Code::InvalidTokenId,
        Flaw::Logprob { .. } => Code::InvalidLogprob,
        Flaw::PositiveLogprob { .. } => Code::PositiveLogprob,
        Flaw::Pairing { .. } => Code::LogprobMisalign,
        // A part that cannot be read may have held tokens.
        Flaw::Unreadable => Code::CaptureIngestFailed,
    });
    if flaw.is_some() {
        return flaw;
    }
    if n_logprobs != ids.len() {
        return Some(Code::LogprobMisalign);
    }
    if !reply.is_complete {
        return Some(Code::TruncatedTurn);
    }
    // The engine's own count shows tokens that were lost on the way, in ids and logprobs alike.
    let is_off = |counted: u64, ids: &[u32]| u64::try_from(ids.len()) != Ok(counted);
    let Some(usage) = reply.usage else {
        return is_usage_due.then_some(Code::NoUsage);
    };
    (is_off(usage.completion_tokens, ids) || is_off(usage.prompt_tokens, prompt_ids))
        .then_some(Code::LengthMismatch)
}
