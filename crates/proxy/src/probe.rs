//! Probes, once per endpoint, what it can deliver: how much can be captured, whether its streams carry all token ids
//! (also around tool calls), which model it serves, how long a prompt may be, and which distribution its logprobs are
//! of.

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

use rollcage_dialect::chat::{
    CaptureMode, Flaw, PreparedRequest, RefusedParameter, Reply, Rewrite, is_about_top_logprobs,
    prepare, read_reply, top_logprobs_max,
};
pub use rollcage_dialect::sampling::LogprobsMode;
use rollcage_dialect::upstream::AnswerFault;
use rollcage_model::ending::Cause;
use rollcage_model::finding::CaptureLevel;

use crate::body::{SMALL_BYTES_MAX, read_text};
use crate::calls::Problem;
use crate::endpoint::Endpoint;
use crate::failure::cause;
pub use crate::profile::Profile;
pub use crate::reach::ReachLimits;
use crate::reach::{Unusable, is_loading, reach, wait_for_loading};
use crate::served_models::suggest_models;

/// For each of the small calls after the first one.
const CALL_LIMIT: Duration = Duration::from_secs(120);

/// Makes a few small calls to the endpoint, with as many alternatives per token as later calls will ask for. The error
/// says why it cannot be used at all.
pub async fn probe(
    client: &reqwest::Client,
    endpoint: &Endpoint,
    top_logprobs: u32,
) -> Result<Profile, Unusable> {
    probe_within(client, endpoint, top_logprobs, ReachLimits::default()).await
}

/// Like [`probe`], with the caller's limits.
pub async fn probe_within(
    client: &reqwest::Client,
    endpoint: &Endpoint,
    top_logprobs: u32,
    limits: ReachLimits,
) -> Result<Profile, Unusable> {
    let since = Instant::now();
    reach(client, endpoint, limits).await?;
    let mut prober = Prober {
        client,
        endpoint,
        top_logprobs,
    };
    if !endpoint.dialect.has_tokens() {
        return prober.without_tokens().await;
    }
    let (served_model, context_tokens) = prober.model().await;
    let mut capture = if endpoint.has_token_ids {
        CaptureMode::Tokens
    } else {
        CaptureMode::Logprobs
    };
    let (question, reply) = prober.first_reply(&mut capture, (since, limits)).await?;
    let mut level = level_of(&reply);
    let mut has_live_streams = match level {
        CaptureLevel::Tokens => prober.is_stream_whole(capture).await,
        // Without token ids there is nothing for a stream to lose.
        CaptureLevel::Logprobs | CaptureLevel::Text => true,
    };
    // SGLang refuses the usual flag in streams, and returns the ids there when its own flags are used.
    let is_lacking = level != CaptureLevel::Tokens || !has_live_streams;
    if capture == CaptureMode::Tokens && is_lacking && prober.has_sglext(&question).await {
        let is_whole = prober.is_stream_whole(CaptureMode::TokensInSglext).await;
        if is_whole || level != CaptureLevel::Tokens {
            capture = CaptureMode::TokensInSglext;
            (level, has_live_streams) = (CaptureLevel::Tokens, is_whole);
        }
    }
    let logprobs = match level {
        CaptureLevel::Tokens => prober.logprobs_mode(capture).await,
        CaptureLevel::Logprobs | CaptureLevel::Text => LogprobsMode::Unknown,
    };
    Ok(Profile {
        level,
        has_live_streams,
        has_sglext: capture == CaptureMode::TokensInSglext,
        served_model: served_model.or(reply.model),
        context_tokens: context_tokens.or(endpoint.context_tokens),
        logprobs,
        top_logprobs_max: (prober.top_logprobs < top_logprobs).then_some(prober.top_logprobs),
    })
}

/// Whether every token had probability 1.
fn is_certain(tokens: &[(u32, f64)]) -> bool {
    tokens.iter().all(|(_, logprob)| logprob.abs() < 1e-6)
}

/// For logprobs that top-k does not change: whether they are taken before or after the temperature is applied, by
/// comparing the same tokens at two temperatures. Engines are not fully deterministic, but a temperature of 2 changes
/// logprobs far more than their noise does.
fn compare_temperatures(cold: &[(u32, f64)], hot: &[(u32, f64)]) -> LogprobsMode {
    let same = cold
        .iter()
        .zip(hot)
        .take_while(|(one, other)| one.0 == other.0);
    let (mut size, mut change) = (0.0, 0.0);
    for ((_, cold), (_, hot)) in same {
        size += cold.abs();
        change += (cold - hot).abs();
    }
    match change / size {
        // Too small to tell.
        _ if size < 1e-3 => LogprobsMode::Unknown,
        ratio if ratio < 0.1 => LogprobsMode::Raw,
        ratio if ratio > 0.25 => LogprobsMode::Temperature,
        _ => LogprobsMode::Unknown,
    }
}

fn level_of(reply: &Reply) -> CaptureLevel {
    let has_logprobs = reply
        .logprobs
        .as_ref()
        .is_some_and(|logprobs| !logprobs.is_empty());
    let has_ids = reply.prompt_token_ids.is_some()
        && reply.token_ids.as_ref().is_some_and(|ids| !ids.is_empty());
    match (has_ids, has_logprobs) {
        (true, true) => CaptureLevel::Tokens,
        (_, true) => CaptureLevel::Logprobs,
        (_, false) => CaptureLevel::Text,
    }
}

enum ProbeAnswer {
    Replied(Box<Reply>),
    /// A good status, and no answer.
    Broken(String),
    Refused {
        status: StatusCode,
        text: String,
    },
}

struct Prober<'a> {
    client: &'a reqwest::Client,
    endpoint: &'a Endpoint,
    /// How many alternatives per token to ask for.
    top_logprobs: u32,
}

impl Prober<'_> {
    /// The first good answer, and the question as the endpoint accepts it. What it refuses of `capture` is left out.
    async fn first_reply(
        &mut self,
        capture: &mut CaptureMode,
        times: (Instant, ReachLimits),
    ) -> Result<(Value, Box<Reply>), Unusable> {
        let first =
            |limit: &str| json!({"messages": [{"role": "user", "content": "Say ok."}], (limit): 8});
        let mut question = first("max_tokens");
        loop {
            match self.ask_first(&question, *capture, times).await? {
                ProbeAnswer::Replied(reply) => return Ok((question, reply)),
                ProbeAnswer::Refused { text, .. } if self.learns_alternatives(&text, *capture) => {}
                ProbeAnswer::Refused { text, .. }
                    if question.get("max_tokens").is_some()
                        && RefusedParameter::read(&text) == Some(RefusedParameter::MaxTokens) =>
                {
                    question = first("max_completion_tokens");
                }
                ProbeAnswer::Refused { text, .. }
                    if *capture == CaptureMode::Tokens && text.contains("return_token_ids") =>
                {
                    *capture = CaptureMode::Logprobs;
                }
                ProbeAnswer::Refused { text, .. }
                    if *capture != CaptureMode::Off && text.contains("logprobs") =>
                {
                    *capture = CaptureMode::Off;
                }
                ProbeAnswer::Refused { status, text } => {
                    return Err(self.refused(status, &text).await);
                }
                ProbeAnswer::Broken(text) => {
                    return Err(Unusable::Failed(Problem::new(Cause::AnswerBroken, text)));
                }
            }
        }
    }

    /// Whether a refusal is about the number of alternatives, so that fewer are asked for from now on: as many as it
    /// names, or none. The sampled token's own logprob comes without any.
    fn learns_alternatives(&mut self, refusal: &str, capture: CaptureMode) -> bool {
        let is_asked = capture != CaptureMode::Off && self.top_logprobs > 0;
        let named = top_logprobs_max(refusal).filter(|max| *max < self.top_logprobs);
        let is_about_it = named.is_some() || is_about_top_logprobs(refusal);
        if is_asked && is_about_it {
            self.top_logprobs = named.unwrap_or_default();
        }
        is_asked && is_about_it
    }

    /// The error for a first call that was finally refused.
    async fn refused(&self, status: StatusCode, text: &str) -> Unusable {
        if let Err(unusable) = Unusable::check_key(self.endpoint, status) {
            return unusable;
        }
        let Endpoint {
            base_url, model, ..
        } = self.endpoint;
        if status == StatusCode::NOT_FOUND {
            let instead = suggest_models(self.client, self.endpoint).await;
            return Unusable::Model(format!(
                "endpoint {base_url} has no model `{model}`, or no chat completions: {instead}"
            ));
        }
        let text: String = text.trim().chars().take(300).collect();
        let text = format!("endpoint {base_url} answered {status} to a first question: {text}");
        Unusable::Failed(Problem::new(Cause::of_status(status.as_u16()), text))
    }

    /// The profile of an endpoint whose dialect has no tokens: no model call is needed. Whether the model exists is
    /// checked with its entry in the list of models, which costs nothing.
    async fn without_tokens(&self) -> Result<Profile, Unusable> {
        let Endpoint {
            base_url, model, ..
        } = self.endpoint;
        let request = self.client.get(format!("{base_url}/models/{model}"));
        let request = self
            .endpoint
            .authorise(request.timeout(Duration::from_secs(15)));
        let mut entry = Value::Null;
        if let Ok(answer) = request.send().await {
            let status = answer.status();
            let text = self.read(answer).await.unwrap_or_default();
            entry = serde_json::from_str(&text).unwrap_or_default();
            let is_unknown = status == StatusCode::NOT_FOUND
                && entry["error"]["type"] == "not_found_error"
                && text.contains(model.as_str());
            if is_unknown {
                let instead = suggest_models(self.client, self.endpoint).await;
                return Err(Unusable::Model(format!(
                    "endpoint {base_url} has no model `{model}`: {instead}"
                )));
            }
        }
        Ok(Profile {
            level: CaptureLevel::Text,
            has_live_streams: true,
            has_sglext: false,
            served_model: entry["id"].as_str().map(str::to_owned),
            context_tokens: entry["max_input_tokens"].as_u64(),
            logprobs: LogprobsMode::Unknown,
            top_logprobs_max: None,
        })
    }

    /// The first call. Waits for a server that is still loading its model, whether it says so or does not answer.
    async fn ask_first(
        &self,
        question: &Value,
        capture: CaptureMode,
        (since, limits): (Instant, ReachLimits),
    ) -> Result<ProbeAnswer, Unusable> {
        loop {
            let asked = Instant::now();
            let left = limits.loading.saturating_sub(since.elapsed());
            // Even when the time for loading is used up, a slow server has the usual time to answer.
            let limit = left.max(limits.reach);
            match self.ask_within(question, capture, limit).await {
                Ok(ProbeAnswer::Refused { status, .. })
                    if is_loading(status) && wait_for_loading(since, limits).await => {}
                Ok(ProbeAnswer::Broken(_)) if wait_for_loading(since, limits).await => {}
                Ok(asked) => return Ok(asked),
                Err(text) if asked.elapsed() >= limit => {
                    return Err(Unusable::Failed(Problem::new(Cause::EndpointSilent, text)));
                }
                Err(text) => return Err(text.into()),
            }
        }
    }

    async fn ask(&self, question: &Value, capture: CaptureMode) -> Result<ProbeAnswer, String> {
        self.ask_within(question, capture, CALL_LIMIT).await
    }

    async fn ask_within(
        &self,
        question: &Value,
        capture: CaptureMode,
        limit: Duration,
    ) -> Result<ProbeAnswer, String> {
        let rewrite = Rewrite {
            model: Some(self.endpoint.model.clone()),
            is_thinking_disabled: self.endpoint.is_thinking_disabled,
            capture,
            top_logprobs: self.top_logprobs,
            ..Rewrite::default()
        };
        let PreparedRequest {
            body,
            is_stream,
            added,
            ..
        } = prepare(&question.to_string().into(), &rewrite).map_err(|error| error.to_string())?;
        let request = self
            .client
            .post(self.endpoint.url())
            .timeout(limit)
            .body(body.concat());
        let request = self.endpoint.authorise(request);
        let failed = |error: String| {
            format!(
                "endpoint {} did not answer a first question: {error}",
                self.endpoint.base_url
            )
        };
        let response = request.send().await;
        let response = response.map_err(|error| failed(cause(&error)))?;
        let status = response.status();
        let text = self.read(response).await.map_err(failed)?;
        if !status.is_success() {
            return Ok(ProbeAnswer::Refused { status, text });
        }
        let fault = match is_stream {
            true => None,
            false => self.endpoint.dialect.fault(text.as_bytes(), &added),
        };
        let broken = match fault {
            None | Some(AnswerFault::Aborted(_)) => {
                let reply = Box::new(read_reply(&text, is_stream));
                return Ok(ProbeAnswer::Replied(reply));
            }
            Some(AnswerFault::Error(error)) => format!("an error as its answer: {}", error.message),
            Some(AnswerFault::Unreadable(why)) => format!("no answer: {why}"),
        };
        Ok(ProbeAnswer::Broken(format!(
            "endpoint {} gave {broken}",
            self.endpoint.base_url
        )))
    }

    /// Reads an answer up to a size limit, and removes our key from it.
    async fn read(&self, answer: reqwest::Response) -> Result<String, String> {
        read_text(answer, SMALL_BYTES_MAX, self.endpoint.key.as_ref()).await
    }

    async fn has_sglext(&self, question: &Value) -> bool {
        let asked = self.ask(question, CaptureMode::TokensInSglext).await;
        matches!(asked, Ok(ProbeAnswer::Replied(reply)) if level_of(&reply) == CaptureLevel::Tokens)
    }

    /// Compares the number of ids with the usage in a stream of text, and in one that passes through a tool parser.
    async fn is_stream_whole(&self, capture: CaptureMode) -> bool {
        let tool = json!({"type": "function", "function": {
            "name": "note",
            "description": "Keeps a note.",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        }});
        let plain = json!({
            "messages": [{"role": "user", "content": "Count from one to ten."}],
            "max_tokens": 32, "stream": true,
        });
        let with_tool = json!({
            "messages": [{"role": "user", "content": "Call the tool note with the text ok. Do nothing else."}],
            "max_tokens": 256, "stream": true, "tools": [tool],
        });
        for question in [plain, with_tool] {
            let Ok(ProbeAnswer::Replied(reply)) = self.ask(&question, capture).await else {
                return false;
            };
            let ids = reply.token_ids.as_ref().map_or(0, Vec::len) as u64;
            let logprobs = reply.logprobs.as_ref().map_or(0, Vec::len) as u64;
            let is_whole = reply
                .usage
                .is_some_and(|usage| usage.completion_tokens == ids && ids == logprobs);
            // A null among the logprobs spoils one turn (vLLM's speculative decoding produces some), but loses no
            // token.
            let is_lost = |flaw: &Flaw| !matches!(flaw, Flaw::Logprob { .. });
            let is_lossy = reply.flaws.iter().any(is_lost);
            if !is_whole || ids == 0 || reply.prompt_token_ids.is_none() || is_lossy {
                return false;
            }
        }
        true
    }

    /// Which distribution the logprobs are of. With top-k 1 the same most likely tokens are sampled at every
    /// temperature. Logprobs taken after the cut are then 0; those taken after the temperature, but before the cut,
    /// change with the temperature; raw ones do not.
    async fn logprobs_mode(&self, capture: CaptureMode) -> LogprobsMode {
        let cut = |temperature: f64| json!({"temperature": temperature, "top_k": 1, "top_p": 1});
        let cold = self.sampled(capture, cut(1.0)).await;
        let hot = self.sampled(capture, cut(2.0)).await;
        let (Some(cold), Some(hot)) = (cold, hot) else {
            return LogprobsMode::Unknown;
        };
        if !is_certain(&cold) || !is_certain(&hot) {
            return compare_temperatures(&cold, &hot);
        }
        // Either the logprobs are of the cut distribution, or the model is that certain of these tokens.
        let free = json!({"temperature": 1.0, "top_k": -1, "top_p": 1});
        let narrow = json!({"temperature": 1.0, "top_k": -1, "top_p": 1e-4});
        let free = self.sampled(capture, free).await;
        let narrow = self.sampled(capture, narrow).await;
        match (free, narrow) {
            (Some(free), Some(narrow)) if !is_certain(&free) && is_certain(&narrow) => {
                LogprobsMode::Processed
            }
            _ => LogprobsMode::Unknown,
        }
    }

    /// A few tokens and their logprobs; `None` when there are none to compare.
    async fn sampled(&self, capture: CaptureMode, sampling: Value) -> Option<Vec<(u32, f64)>> {
        let mut question = json!({
            "messages": [{"role": "user", "content": "Name any animal."}],
            "max_tokens": 16,
        });
        if let (Some(members), Value::Object(sampling)) = (question.as_object_mut(), sampling) {
            members.extend(sampling);
        }
        let Ok(ProbeAnswer::Replied(reply)) = self.ask(&question, capture).await else {
            return None;
        };
        let (ids, logprobs) = (reply.token_ids?, reply.logprobs?);
        let pairs = ids.into_iter().zip(logprobs);
        let pairs: Vec<(u32, f64)> = pairs
            .filter_map(|(id, entry)| Some((id, entry.logprob?)))
            .collect();
        (!pairs.is_empty()).then_some(pairs)
    }

    /// The model's own entry in the list of models, as vLLM and SGLang give it.
    async fn model(&self) -> (Option<String>, Option<u64>) {
        let request = self
            .client
            .get(format!("{}/models", self.endpoint.base_url))
            .timeout(Duration::from_secs(15));
        let request = self.endpoint.authorise(request);
        let Ok(response) = request.send().await else {
            return (None, None);
        };
        let list: Value = self
            .read(response)
            .await
            .ok()
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or_default();
        let entries = list
            .get("data")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let is_ours = |entry: &&Value| {
            entry.get("id").and_then(Value::as_str) == Some(self.endpoint.model.as_str())
        };
        let Some(entry) = entries.iter().find(is_ours) else {
            return (None, None);
        };
        let text = |name: &str| entry.get(name).and_then(Value::as_str).map(str::to_owned);
        let length = ["max_model_len", "context_length", "context_window"];
        let length = length
            .iter()
            .find_map(|name| entry.get(*name).and_then(Value::as_u64))
            // llama.cpp's name for it.
            .or_else(|| entry.pointer("/meta/n_ctx").and_then(Value::as_u64));
        (text("root").or_else(|| text("id")), length)
    }
}
