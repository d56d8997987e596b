//! The proxy: an agent's only way to a model, and where every exchange is recorded.
//!
//! It runs in our process. For a rollout it listens on a socket that was opened inside the rollout's network
//! namespace, so whoever connects is in that sandbox. The agent's key names its session; the endpoint's key is put in
//! here.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::HeaderMap;
use tokio_util::sync::CancellationToken;

use rollcage_dialect::EndpointDialect;
use rollcage_dialect::anthropic::{Kept, Thoughts};
use rollcage_dialect::chat::{Capture, Rewrite};
use rollcage_model::budget::{Budget, Limit, Reservation, Spent};
use rollcage_model::ending::Cause;
use rollcage_model::event::What;
use rollcage_model::exchange::Line;
use rollcage_model::trace::CaptureLevel;

use crate::endpoint::Endpoint;
use crate::outbound::Clients;
use crate::remote::Remotes;

mod answer;
mod calls;
pub mod clock;
pub mod endpoint;
mod exchange;
mod failure;
mod forward;
mod incoming;
mod learned;
mod mcp;
pub mod outbound;
mod patience;
mod policy;
pub mod probe;
mod profiles;
mod question;
mod reach;
mod recorder;
mod refusal;
mod relay;
pub mod remote;
mod replay;
mod room;
mod scrub;
pub mod secret;
mod serve;
mod served;
mod sessions;
mod settings;
mod unread;
mod upstream;
mod workers;

pub use answer::{Body, json};
pub use calls::{Calls, Problem, Stopped};
pub use failure::cause;
pub use policy::{OnOverflow, SamplingPolicy};
pub use profiles::Profiles;
pub use reach::{Unusable, reach};
pub use serve::{Handler, Serving, answer, serve};
pub use served::settle_model;
pub use sessions::{Sessions, random_key};
pub use settings::ModelSettings;
pub use unread::{SMALL_BYTES_MAX, Unread, read_request_body, read_text};

use calls::Outcome;
use exchange::Noted;
use learned::{Learned, Lessons};
use patience::Outages;
use probe::Profile;
use recorder::Recorder;
use room::Room;
use scrub::Scrub;

/// Lines of the proxy's log kept in memory, for the result's tail.
const LOG_LINES_MAX: usize = 200;
/// Calls that fail one after the other, each in spite of our own retries: some agents would go on asking for ever.
const FAILURES_MAX: usize = 5;
/// For an endpoint that has used up all patience before.
const SECOND_PATIENCE: Duration = Duration::from_secs(10);

/// Everything about a session that is known before it opens.
pub struct SessionOptions {
    pub client: reqwest::Client,
    pub endpoint: Endpoint,
    pub settings: ModelSettings,
    /// What the endpoint's probe found.
    pub profile: Profile,
    pub on_overflow: OnOverflow,
    /// The file of exchanges; it must not exist yet.
    pub record: PathBuf,
    /// What the agent has in all, where there is a limit.
    pub agent_time: Option<Duration>,
    /// Is told of every answered call.
    pub observe: Box<dyn Fn(What) + Send + Sync>,
    /// The MCP servers outside that the agent may ask, and what they are asked with.
    pub mcp: Remotes,
    pub clients: Arc<Clients>,
}

/// An agent's access to its model.
pub struct Session {
    options: SessionOptions,
    key: String,
    /// Parsed once.
    url: reqwest::Url,
    /// What every call to the endpoint is sent with, its key too.
    headers: HeaderMap,
    /// Takes the endpoint's key out of what it answers.
    scrub: Option<Arc<Scrub>>,
    recorder: Recorder,
    room: Room,
    exchanges: AtomicU64,
    learned: Learned,
    /// The endpoint is asked for token ids, and gives them.
    gives_tokens: bool,
    /// What an endpoint that speaks Anthropic wants back from agents that speak something else.
    thoughts: Mutex<Thoughts>,
    /// Cancelled when exchanges can no longer be written.
    unrecorded: CancellationToken,
    /// Cancelled when a limit of the budget, or of the context, was reached.
    exhausted: CancellationToken,
    /// Cancelled when too many calls failed in a row.
    hopeless: CancellationToken,
    outages: Arc<Outages>,
    /// Patience was used up, and nothing good came since.
    is_patience_used: AtomicBool,
    seen: Mutex<Seen>,
}

struct Seen {
    first_call: Option<Instant>,
    last_activity: Instant,
    open_calls: usize,
    calls: Calls,
    /// The endpoint failed, or was away for a while: what is known of it may be true no more.
    has_been_away: bool,
    budget: Budget,
    log: VecDeque<Logged>,
}

/// A line of the log.
enum Logged {
    Call(Noted),
    Other(String),
}

impl fmt::Display for Logged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Logged::Call(call) => call.fmt(f),
            Logged::Other(text) => text.fmt(f),
        }
    }
}

impl Seen {
    fn write(&mut self, line: Logged) {
        self.log.push_back(line);
        if self.log.len() > LOG_LINES_MAX {
            self.log.pop_front();
        }
    }
}

impl Session {
    /// Opens the record; `key` is what the agent authenticates with.
    pub fn create(key: String, mut options: SessionOptions) -> std::io::Result<Arc<Self>> {
        let url = options.endpoint.url();
        let url: reqwest::Url = url.parse().map_err(std::io::Error::other)?;
        let headers = upstream::headers_of(&options.endpoint).map_err(std::io::Error::other)?;
        let capture = match options.endpoint.dialect {
            EndpointDialect::Chat if options.settings.is_black_box => Capture::Off,
            EndpointDialect::Chat if !options.endpoint.has_token_ids => Capture::Logprobs,
            EndpointDialect::Chat if options.profile.has_sglext => Capture::TokensInSglext,
            EndpointDialect::Chat => Capture::Tokens,
            EndpointDialect::Anthropic => {
                // There are no token ids that a stream could lose.
                options.profile.has_live_streams = true;
                Capture::Off
            }
        };
        let recorder = Recorder::create(&options.record)?;
        let budget = Budget::new(options.settings.budget, options.settings.price);
        Ok(Arc::new(Session {
            key,
            url,
            headers,
            scrub: options.endpoint.key.as_ref().and_then(Scrub::of),
            recorder,
            room: Room::new(),
            exchanges: AtomicU64::new(0),
            learned: Learned::new(capture),
            gives_tokens: !capture.id_flags().is_empty()
                && options.profile.level == CaptureLevel::Tokens,
            thoughts: Mutex::default(),
            unrecorded: CancellationToken::new(),
            exhausted: CancellationToken::new(),
            hopeless: CancellationToken::new(),
            outages: Arc::default(),
            is_patience_used: AtomicBool::new(false),
            seen: Mutex::new(Seen {
                first_call: None,
                last_activity: Instant::now(),
                open_calls: 0,
                calls: Calls::default(),
                has_been_away: false,
                budget,
                log: VecDeque::new(),
            }),
            options,
        }))
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn endpoint(&self) -> &Endpoint {
        &self.options.endpoint
    }

    pub fn first_call(&self) -> Option<Instant> {
        self.seen().first_call
    }

    /// Whether any call was answered well.
    pub fn has_answers(&self) -> bool {
        self.seen().calls.is_answered
    }

    /// How its calls went so far.
    pub fn calls(&self) -> Calls {
        self.seen().calls.clone()
    }

    /// Whether the endpoint failed, or was away for a while.
    pub fn has_endpoint_been_away(&self) -> bool {
        self.seen().has_been_away
    }

    /// The same, and forgets it: whoever asks sees to it.
    pub fn take_outage(&self) -> bool {
        std::mem::take(&mut self.seen().has_been_away)
    }

    /// For how long calls waited for an endpoint that was out of order.
    pub fn outage(&self) -> Duration {
        self.outages.total()
    }

    pub fn spent(&self) -> Spent {
        self.seen().budget.spent()
    }

    /// How many calls were answered by a limit instead of a model.
    pub fn budget_stops(&self) -> u64 {
        self.seen().budget.stops()
    }

    /// Seconds since the last call began or ended.
    pub fn idle(&self) -> Duration {
        self.seen().last_activity.elapsed()
    }

    pub fn log(&self) -> String {
        self.seen()
            .log
            .iter()
            .map(|line| format!("{line}\n"))
            .collect()
    }

    /// Why exchanges can no longer be written, if so.
    pub fn broken(&self) -> Option<String> {
        self.recorder.broken()
    }

    /// Returns once exchanges can no longer be written.
    pub async fn unrecorded(&self) {
        self.unrecorded.cancelled().await;
    }

    /// Returns once a limit was reached.
    pub async fn exhausted(&self) {
        self.exhausted.cancelled().await;
    }

    /// Returns once so many calls failed in a row that no other will get further.
    pub async fn hopeless(&self) {
        self.hopeless.cancelled().await;
    }

    /// For how long a call is made again. Once an endpoint has used patience up, others need not wait for as long.
    fn patience(&self) -> Duration {
        let patience = self.options.settings.upstream_patience;
        match self.is_patience_used.load(Ordering::Relaxed) {
            true => patience.min(SECOND_PATIENCE),
            false => patience,
        }
    }

    /// Returns once no call was open or made for so long.
    pub async fn idle_for(&self, limit: Duration) {
        loop {
            let left = {
                let seen = self.seen();
                let idle = if seen.open_calls > 0 {
                    Duration::ZERO
                } else {
                    seen.last_activity.elapsed()
                };
                limit.saturating_sub(idle)
            };
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }

    fn next_exchange(&self) -> u64 {
        let mut seen = self.seen();
        seen.first_call.get_or_insert_with(Instant::now);
        self.exchanges.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn record(&self, line: Line) -> Result<(), String> {
        self.recorder
            .append(line)
            .inspect_err(|_| self.unrecorded.cancel())
    }

    /// `is_thinking_disabled` is the agent's own wish. Only engines that give token ids are known to take it as a
    /// setting of the chat template; hosted services refuse what they do not know.
    fn rewrite(&self, tokens_max: Option<u64>, is_thinking_disabled: bool) -> Rewrite {
        let settings = &self.options.settings;
        let Lessons {
            capture,
            is_template_refused,
            max_tokens_name,
            without,
            ..
        } = self.learned.so_far();
        let has_template = !capture.id_flags().is_empty() && !is_template_refused;
        let tokens_max = [settings.tokens_max, tokens_max]
            .into_iter()
            .flatten()
            .min();
        Rewrite {
            model: Some(self.options.endpoint.model.clone()),
            tokens_max,
            is_thinking_disabled: self.options.endpoint.is_thinking_disabled
                || is_thinking_disabled && has_template,
            max_tokens_name,
            capture,
            is_stream_off: !self.options.profile.has_live_streams,
            sampling: self.sampling(),
            constrained: self.constrained(),
            top_logprobs: settings.top_logprobs,
            without,
        }
    }

    /// Sets aside what a call may use. `Err` is the limit that is reached, which is remembered.
    fn reserve(
        &self,
        body_bytes: usize,
        completion_wanted: Option<u64>,
    ) -> Result<Reservation, Limit> {
        // English and code are about four bytes a token in JSON; the settled number replaces the guess.
        let prompt_guess = body_bytes as u64 / 4;
        let mut seen = self.seen();
        let is_full = self.recorder.bytes() >= self.options.settings.record_bytes_max;
        let reserved = match is_full {
            true => Err(Limit::RecordBytes),
            false => (seen.budget).reserve(prompt_guess, completion_wanted.unwrap_or(8192)),
        };
        match reserved {
            Ok(reservation) => {
                seen.open_calls += 1;
                seen.last_activity = Instant::now();
                Ok(reservation)
            }
            Err(limit) => {
                seen.calls.stop(limit.as_str());
                self.exhausted.cancel();
                Err(limit)
            }
        }
    }

    fn settle(&self, reservation: Reservation, used: Option<Spent>) {
        let mut seen = self.seen();
        seen.budget.settle(reservation, used);
        seen.open_calls -= 1;
        seen.last_activity = Instant::now();
    }

    fn stop(&self, by: &str) {
        self.seen().calls.stop(by);
        self.exhausted.cancel();
    }

    /// The agent sent something that no endpoint would take.
    fn note_refused_request(&self) {
        let outcome = Outcome::AgentsDoing(Cause::AgentRequestRefused);
        self.seen().calls.note(outcome);
    }

    fn is_hung(&self, silent_since: Instant) -> bool {
        let agent_time = self.options.agent_time;
        self.seen().calls.is_hung(silent_since, agent_time)
    }

    fn keep_thoughts(&self, kept: Vec<Kept>) {
        self.thoughts().keep(kept);
    }

    fn thoughts(&self) -> std::sync::MutexGuard<'_, Thoughts> {
        self.thoughts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, call: Noted, outcome: Outcome, what: What) {
        let mut seen = self.seen();
        seen.has_been_away |= call.is_late() || matches!(outcome, Outcome::Failed(_));
        seen.calls.note(outcome);
        if seen.calls.failures_in_a_row >= FAILURES_MAX {
            self.hopeless.cancel();
        }
        seen.write(Logged::Call(call));
        drop(seen);
        (self.options.observe)(what);
    }

    fn log_line(&self, line: String) {
        self.seen().write(Logged::Other(line));
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
