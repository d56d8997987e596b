//! The proxy: an agent's only way to a model, and where every exchange is recorded.
//!
//! It runs in our process and listens on a socket that was opened inside the rollout's network namespace, so whoever
//! connects is in that sandbox. The agent's key is the session's; the endpoint's key is put in here.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use rollcage_model::chat::{Capture, MaxTokensName, Rewrite};
use rollcage_model::event::What;
use rollcage_model::exchange::Line;

use crate::endpoint::Endpoint;
use crate::rollout::{Plan, Teller};
use crate::secret::is_same_key;
use crate::store::Record;

mod answer;
mod exchange;
mod forward;
mod recorder;
mod relay;
mod serve;

pub(crate) use serve::serve;

use recorder::Recorder;

/// Lines of the proxy's log kept in memory, for the result's tail.
const LOG_LINES_MAX: usize = 200;

/// A rollout's access to its model.
pub(crate) struct Session {
    client: reqwest::Client,
    endpoint: Endpoint,
    key: String,
    tokens_max: Option<u64>,
    top_logprobs: u32,
    recorder: Recorder,
    teller: Teller,
    exchanges: AtomicU64,
    /// How much the endpoint was found to refuse, as an index into [`CAPTURES`].
    capture: AtomicU8,
    unrecorded: CancellationToken,
    seen: Mutex<Seen>,
}

/// From the most to the least that is asked for.
const CAPTURES: [Capture; 3] = [Capture::Tokens, Capture::Logprobs, Capture::Off];

#[derive(Default)]
struct Seen {
    first_call: Option<Instant>,
    /// Why the last exchange failed; `None` after one that did not.
    last_failure: Option<String>,
    log: VecDeque<String>,
}

impl Session {
    pub(crate) fn create(
        client: reqwest::Client,
        plan: &Plan,
        record: &Record,
        teller: Teller,
    ) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Session {
            client,
            endpoint: plan.endpoint.clone(),
            key: random_key()?,
            tokens_max: plan.settings.tokens_max,
            top_logprobs: plan.settings.top_logprobs,
            recorder: Recorder::create(&record.exchanges())?,
            teller,
            exchanges: AtomicU64::new(0),
            capture: AtomicU8::new(u8::from(!plan.endpoint.has_token_ids)),
            unrecorded: CancellationToken::new(),
            seen: Mutex::default(),
        }))
    }

    /// What the agent authenticates with.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn first_call(&self) -> Option<Instant> {
        self.seen().first_call
    }

    pub(crate) fn last_failure(&self) -> Option<String> {
        self.seen().last_failure.clone()
    }

    pub(crate) fn log(&self) -> String {
        self.seen()
            .log
            .iter()
            .map(|line| format!("{line}\n"))
            .collect()
    }

    /// Why exchanges can no longer be written, if so.
    pub(crate) fn broken(&self) -> Option<String> {
        self.recorder.broken()
    }

    /// Returns once exchanges can no longer be written.
    pub(crate) async fn unrecorded(&self) {
        self.unrecorded.cancelled().await;
    }

    fn is_key(&self, key: &str) -> bool {
        is_same_key(key.as_bytes(), self.key.as_bytes())
    }

    fn next_exchange(&self) -> u64 {
        self.seen().first_call.get_or_insert_with(Instant::now);
        self.exchanges.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn record(&self, line: Line) -> Result<(), String> {
        self.recorder
            .append(line)
            .inspect_err(|_| self.unrecorded.cancel())
    }

    fn rewrite(&self) -> Rewrite {
        Rewrite {
            model: Some(self.endpoint.model.clone()),
            tokens_max: self.tokens_max,
            is_thinking_disabled: self.endpoint.is_thinking_disabled,
            max_tokens_name: MaxTokensName::Auto,
            capture: CAPTURES[usize::from(self.capture.load(Ordering::Relaxed))],
            top_logprobs: self.top_logprobs,
        }
    }

    /// Learns from an endpoint's refusal to ask for less. False when there is nothing to learn from it.
    fn learn_from(&self, refusal: &str) -> bool {
        let asked = self.capture.load(Ordering::Relaxed);
        let wanted = match usize::from(asked) {
            0 if refusal.contains("return_token_ids") => 1,
            0 | 1 if refusal.contains("logprobs") => 2,
            _ => return false,
        };
        self.capture.fetch_max(wanted, Ordering::Relaxed);
        true
    }

    fn note(&self, line: String, failure: Option<String>, what: What) {
        let mut seen = self.seen();
        seen.last_failure = failure;
        seen.log.push_back(line);
        if seen.log.len() > LOG_LINES_MAX {
            seen.log.pop_front();
        }
        drop(seen);
        self.teller.tell(what);
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// 256 bits from the kernel.
fn random_key() -> std::io::Result<String> {
    let mut bytes = [0_u8; 32];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sk-rollcage-{hex}"))
}

/// Whether the endpoint answers at all. Agents retry for a minute what we can tell at once.
pub(crate) async fn reach(client: &reqwest::Client, endpoint: &Endpoint) -> Result<(), String> {
    let url = format!("{}/models", endpoint.base_url);
    let mut request = client.get(&url).timeout(Duration::from_secs(15));
    if let Some(key) = &endpoint.key {
        request = request.bearer_auth(key.expose());
    }
    match request.send().await {
        Ok(answer) if answer.status() == 401 || answer.status() == 403 => Err(format!(
            "endpoint {} refuses the API key ({}): check the variable that holds it",
            endpoint.base_url,
            answer.status()
        )),
        // Not every endpoint lists its models; any other answer shows that somebody is there.
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "cannot reach endpoint {}: {}; is the server running and the URL right?",
            endpoint.base_url,
            forward::cause(&error)
        )),
    }
}
