//! A client of Ollama's own API: lists and downloads models and makes sure of a large enough context. Its
//! OpenAI-compatible API has no setting for the context and silently truncates longer prompts, so a variant with a
//! larger context is created from the requested model; both share the same weights.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{OllamaSettings, OnServingStep, ServingError, ServingStep};
use rollcage_proxy::{SMALL_BYTES_MAX, read_text};

/// Ollama's default port.
const PORT: u16 = 11434;
const ASK_LIMIT: Duration = Duration::from_secs(30);
/// Large models take minutes to load from a slow disk.
const LOAD_LIMIT: Duration = Duration::from_secs(900);
/// Timeout between two progress lines while a server downloads or verifies.
const SILENCE_LIMIT: Duration = Duration::from_secs(300);
const PULL_LIMIT: Duration = Duration::from_secs(12 * 3600);
/// A download that breaks off is resumed.
const PULL_TRIES: usize = 5;
const LINE_BYTES_MAX: usize = 1 << 20;
/// How long a server that we start keeps a model loaded after a call; long, because agents run tests in between.
pub(super) const KEEP_ALIVE: &str = "30m";

/// One line of a streamed response, such as that of a download.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ProgressLine {
    status: String,
    digest: Option<String>,
    total: Option<u64>,
    completed: Option<u64>,
    error: Option<String>,
}

/// Why a streamed response did not succeed.
#[derive(Debug)]
enum StreamFailure {
    /// The server reported an error; a retry would not help.
    Refused(String),
    /// The connection was lost.
    Lost(String),
}

pub(super) struct Ollama<'a> {
    pub(super) client: &'a reqwest::Client,
    /// A URL without a path.
    pub(super) host: &'a str,
    /// We started it with the requested context, so only a model's own setting can be smaller.
    pub(super) has_context: bool,
}

impl Ollama<'_> {
    /// Whether an Ollama server answers.
    pub(super) async fn is_there(&self, limit: Duration) -> bool {
        let url = format!("{}/api/version", self.host);
        let answer = self.client.get(url).timeout(limit).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// Downloads a model if necessary, sets its context and loads it. Returns the model name to use and its context.
    pub(super) async fn prepare(
        &self,
        model: &str,
        settings: &OllamaSettings,
        on_step: OnServingStep<'_>,
    ) -> Result<(String, u64), ServingError> {
        let (context_tokens, keep_alive) =
            (settings.context_tokens, settings.keep_alive.as_deref());
        if !self.has(model).await? {
            self.pull(model, on_step).await?;
        }
        let shown = self.ask("show", &json!({"model": model}), ASK_LIMIT).await;
        let shown = shown.map_err(|problem| self.failed("look at", model, problem))?;
        let limits = read_show(&shown);
        let context_wanted = limits
            .context_max
            .map_or(context_tokens, |max| max.min(context_tokens));
        let (name, context) = match limits.context_set {
            Some(set) if set >= context_wanted => (model.to_owned(), set),
            None if self.has_context => (model.to_owned(), context_wanted),
            _ => (
                self.widen(model, context_wanted, on_step).await?,
                context_wanted,
            ),
        };
        on_step(&ServingStep::Loading {
            model: name.clone(),
        });
        let mut body = json!({"model": name, "stream": false});
        if let Some(keep_alive) = keep_alive {
            // A plain number (seconds, or -1 for ever) must not be sent as a string.
            let number = keep_alive.trim().parse::<i64>().map(Value::from);
            body["keep_alive"] = number.unwrap_or_else(|_| keep_alive.into());
        }
        let loaded = self.ask("generate", &body, LOAD_LIMIT).await;
        loaded.map_err(|problem| self.failed("load", &name, problem))?;
        Ok((name, context))
    }

    async fn has(&self, model: &str) -> Result<bool, ServingError> {
        let url = format!("{}/api/tags", self.host);
        let request = self.client.get(url).timeout(ASK_LIMIT);
        let list = read_answer(request).await;
        let list = list.map_err(|problem| self.failed("look for", model, problem))?;
        let wanted = with_tag(model);
        let models = list.get("models").and_then(Value::as_array);
        Ok(models.into_iter().flatten().any(|entry| {
            let name = entry.get("name").or_else(|| entry.get("model"));
            name.and_then(Value::as_str)
                .is_some_and(|name| name.eq_ignore_ascii_case(&wanted))
        }))
    }

    async fn pull(&self, model: &str, on_step: OnServingStep<'_>) -> Result<(), ServingError> {
        let pulled = tokio::time::timeout(PULL_LIMIT, async {
            let mut tries = 1;
            loop {
                let mut sizes = BTreeMap::new();
                let on_line = |line: &ProgressLine| on_step(&pull_step(model, line, &mut sizes));
                let body = json!({"model": model, "stream": true});
                match self.follow("pull", &body, on_line).await {
                    Err(StreamFailure::Lost(_)) if tries < PULL_TRIES => tries += 1,
                    ended => return ended,
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let ended = match pulled.await {
            Ok(ended) => ended,
            Err(_) => Err(StreamFailure::Lost("it took too long".to_owned())),
        };
        ended.map_err(|broken| self.failed("download", model, broken.into_text()))
    }

    /// Creates a variant of a model with a larger context.
    async fn widen(
        &self,
        model: &str,
        context_tokens: u64,
        on_step: OnServingStep<'_>,
    ) -> Result<String, ServingError> {
        let name = widened_name(model, context_tokens);
        on_step(&ServingStep::Widening {
            model: model.to_owned(),
            context_tokens,
        });
        let body = json!({
            "model": name, "from": model, "parameters": {"num_ctx": context_tokens}, "stream": true,
        });
        let made = self.follow("create", &body, |_| ()).await;
        made.map_err(|broken| self.failed("set the context of", model, broken.into_text()))?;
        Ok(name)
    }

    async fn ask(&self, what: &str, body: &Value, limit: Duration) -> Result<Value, String> {
        let url = format!("{}/api/{what}", self.host);
        let request = self.client.post(url).body(body.to_string()).timeout(limit);
        read_answer(request).await
    }

    /// Reads a streamed response. Only a line `success` means success: errors also come after a good status.
    async fn follow(
        &self,
        what: &str,
        body: &Value,
        mut on_line: impl FnMut(&ProgressLine),
    ) -> Result<(), StreamFailure> {
        let url = format!("{}/api/{what}", self.host);
        let request = self.client.post(url).body(body.to_string());
        let lost = |error: reqwest::Error| StreamFailure::Lost(rollcage_proxy::cause(&error));
        let silent = |_| StreamFailure::Lost("the server fell silent".to_owned());
        let answer = tokio::time::timeout(SILENCE_LIMIT, request.send()).await;
        let answer = answer.map_err(silent)?.map_err(lost)?;
        if !answer.status().is_success() {
            return Err(StreamFailure::Refused(refusal(answer).await));
        }
        let mut chunks = answer.bytes_stream();
        let mut pending = Vec::new();
        let mut is_done = false;
        while let Some(chunk) = tokio::time::timeout(SILENCE_LIMIT, chunks.next())
            .await
            .map_err(silent)?
        {
            pending.extend_from_slice(&chunk.map_err(lost)?);
            while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).collect();
                is_done |= read_line(&line, &mut on_line)?;
            }
            if pending.len() > LINE_BYTES_MAX {
                return Err(StreamFailure::Refused(
                    "it sent a line without an end".to_owned(),
                ));
            }
        }
        is_done |= read_line(&pending, &mut on_line)?;
        if is_done {
            Ok(())
        } else {
            Err(StreamFailure::Lost("the answer broke off".to_owned()))
        }
    }

    fn failed(&self, what: &'static str, model: &str, problem: String) -> ServingError {
        ServingError::Model {
            what,
            model: model.to_owned(),
            host: self.host.to_owned(),
            problem,
        }
    }
}

impl StreamFailure {
    fn into_text(self) -> String {
        let (StreamFailure::Refused(text) | StreamFailure::Lost(text)) = self;
        text
    }
}

/// Returns whether the line reports success.
fn read_line(line: &[u8], on_line: &mut impl FnMut(&ProgressLine)) -> Result<bool, StreamFailure> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return Ok(false);
    }
    let line: ProgressLine = serde_json::from_slice(line)
        .map_err(|error| StreamFailure::Refused(format!("it sent what is not JSON: {error}")))?;
    if let Some(error) = line.error {
        return Err(StreamFailure::Refused(error));
    }
    on_line(&line);
    Ok(line.status == "success")
}

async fn read_answer(request: reqwest::RequestBuilder) -> Result<Value, String> {
    let lost = |error: reqwest::Error| rollcage_proxy::cause(&error);
    let answer = request.send().await.map_err(lost)?;
    if !answer.status().is_success() {
        return Err(refusal(answer).await);
    }
    let text = read_text(answer, SMALL_BYTES_MAX, None).await?;
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| format!("it answered what is not JSON: {error}"))?;
    match value.get("error").and_then(Value::as_str) {
        Some(error) => Err(error.to_owned()),
        None => Ok(value),
    }
}

/// The error message of a failed response.
async fn refusal(answer: reqwest::Response) -> String {
    let status = answer.status();
    let text = read_text(answer, SMALL_BYTES_MAX, None).await;
    let text = text.unwrap_or_default();
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    match value.get("error").and_then(Value::as_str) {
        Some(error) => error.to_owned(),
        None => format!("it answered {status}"),
    }
}

/// A download has several parts; the progress is the sum over those known so far.
fn pull_step(
    model: &str,
    line: &ProgressLine,
    sizes: &mut BTreeMap<String, (u64, u64)>,
) -> ServingStep {
    if let (Some(digest), Some(total)) = (&line.digest, line.total) {
        sizes.insert(digest.clone(), (line.completed.unwrap_or(0), total));
    }
    ServingStep::Pulling {
        model: model.to_owned(),
        status: line.status.clone(),
        completed: sizes.values().map(|(completed, _)| completed).sum(),
        total: sizes.values().map(|(_, total)| total).sum(),
    }
}

struct ContextLimits {
    /// The longest context that the model supports.
    context_max: Option<u64>,
    /// The context in the model's own settings.
    context_set: Option<u64>,
}

fn read_show(shown: &Value) -> ContextLimits {
    let info = shown.get("model_info").and_then(Value::as_object);
    let context_max = info
        .into_iter()
        .flatten()
        .find_map(|(key, value)| key.ends_with(".context_length").then(|| value.as_u64())?);
    let parameters = shown.get("parameters").and_then(Value::as_str);
    let context_set = parameters.unwrap_or_default().lines().find_map(|line| {
        let (name, value) = line.trim().split_once(char::is_whitespace)?;
        (name == "num_ctx").then(|| value.trim().parse().ok())?
    });
    ContextLimits {
        context_max,
        context_set,
    }
}

fn with_tag(model: &str) -> String {
    let last = model.rsplit('/').next().unwrap_or(model);
    if last.contains(':') {
        model.to_owned()
    } else {
        format!("{model}:latest")
    }
}

/// `qwen3:4b` becomes `rollcage/qwen3:4b-ctx32768`.
fn widened_name(model: &str, context_tokens: u64) -> String {
    let full = with_tag(model);
    let (name, tag) = full.rsplit_once(':').unwrap_or((&full, "latest"));
    let name = name.replace(['/', ':'], "-");
    format!("rollcage/{name}:{tag}-ctx{context_tokens}")
}

/// Parses `OLLAMA_HOST` as Ollama does: scheme and port are optional, and a wildcard address means this machine.
pub(crate) fn host_url(text: &str) -> String {
    let text = text.trim().trim_matches(['"', '\'']).trim();
    let (scheme, rest, default_port) = match text.split_once("://") {
        Some(("https", rest)) => ("https", rest, 443),
        Some((_, rest)) => ("http", rest, 80),
        None => ("http", text, PORT),
    };
    let rest = rest.split('/').next().unwrap_or_default();
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, port.parse().unwrap_or(default_port))
        }
        _ => (rest, default_port),
    };
    let host = match host.trim_matches(['[', ']']) {
        "" | "0.0.0.0" | "::" => "127.0.0.1".to_owned(),
        address if address.contains(':') => format!("[{address}]"),
        name => name.to_owned(),
    };
    format!("{scheme}://{host}:{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_parsed_as_by_ollama() {
        for (text, expect) in [
            ("", "http://127.0.0.1:11434"),
            ("0.0.0.0", "http://127.0.0.1:11434"),
            ("0.0.0.0:8080", "http://127.0.0.1:8080"),
            (":8080", "http://127.0.0.1:8080"),
            ("gpu", "http://gpu:11434"),
            ("http://gpu", "http://gpu:80"),
            ("https://gpu/", "https://gpu:443"),
            ("\"gpu:1\"", "http://gpu:1"),
            ("::1", "http://[::1]:11434"),
            ("[::1]:9", "http://[::1]:9"),
        ] {
            assert_eq!(host_url(text), expect, "{text}");
        }
    }

    #[test]
    fn a_model_with_a_larger_context_has_a_name_of_its_own() {
        assert_eq!(
            widened_name("qwen3:4b", 32768),
            "rollcage/qwen3:4b-ctx32768"
        );
        assert_eq!(widened_name("qwen3", 1), "rollcage/qwen3:latest-ctx1");
        assert_eq!(
            widened_name("hf.co/me/m:Q4_K_M", 1),
            "rollcage/hf.co-me-m:Q4_K_M-ctx1"
        );
    }

    #[test]
    fn context_limits_are_read_from_the_description() {
        let shown = json!({
            "parameters": "stop    \"<|im_end|>\"\nnum_ctx                        4096\n",
            "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40960},
        });
        let limits = read_show(&shown);
        assert_eq!(
            (limits.context_max, limits.context_set),
            (Some(40960), Some(4096))
        );
        let limits = read_show(&json!({}));
        assert_eq!((limits.context_max, limits.context_set), (None, None));
    }
}
