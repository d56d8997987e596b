//! An agent's access to its model: what is known of it before it opens, and what its calls have shown so far.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use rollcage_dialect::anthropic::Thoughts;
use rollcage_dialect::chat::{CaptureMode, ConstraintPolicy, Rewrite, Sampling};
use rollcage_dialect::sampling::LogprobsMode;
use rollcage_model::budget::{BudgetLedger, Limit, Reservation, Spent};
use rollcage_model::ending::Cause;
use rollcage_model::event::What;
use rollcage_model::exchange::Line;
use rollcage_model::finding::CaptureLevel;

use crate::calls::{CallVerdict, Calls};
use crate::endpoint::Endpoint;
use crate::learned::{Learned, Lesson, Lessons, Needs, Pinned};
use crate::log::{CallLine, Log};
use crate::outbound::Clients;
use crate::patience::Outages;
use crate::policy::{OnOverflow, SamplingPolicy};
use crate::profile::Profile;
use crate::recorder::Recorder;
use crate::remote::Remotes;
use crate::room::Room;
use crate::scrub::Scrub;
use crate::settings::ModelSettings;
use crate::transport::Transport;

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
    pub(crate) options: SessionOptions,
    key: String,
    pub(crate) transport: Transport,
    /// Takes the endpoint's key out of what it answers.
    pub(crate) scrub: Option<Arc<Scrub>>,
    recorder: Recorder,
    pub(crate) room: Room,
    exchanges: AtomicU64,
    learned: Learned,
    /// The endpoint is asked for token ids, and gives them.
    gives_tokens: bool,
    /// Streams lose nothing that whole answers have, so they may be passed on as they come.
    pub(crate) has_live_streams: bool,
    /// What an endpoint wants back from agents whose own dialect does not carry it.
    pub(crate) thoughts: Thoughts,
    /// Cancelled when exchanges can no longer be written.
    unrecorded: CancellationToken,
    /// Cancelled when a limit of the budget, or of the context, was reached.
    exhausted: CancellationToken,
    /// Cancelled when too many calls failed in a row.
    hopeless: CancellationToken,
    pub(crate) outages: Arc<Outages>,
    /// Patience was used up, and nothing good came since.
    pub(crate) is_patience_used: AtomicBool,
    state: Mutex<State>,
}

/// What changes with every call.
struct State {
    first_call: Option<Instant>,
    last_activity: Instant,
    open_calls: usize,
    calls: Calls,
    /// The endpoint failed, or was away for a while: what is known of it may be true no more.
    has_been_away: bool,
    budget: BudgetLedger,
    counts: CallCounts,
    log: Log,
}

/// How many calls of a session were recorded with their end, for whoever does not read the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// With an answer of the model's.
    pub answered: u64,
    /// Without one, for any reason.
    pub failed: u64,
}

impl Session {
    /// Opens the record; `key` is what the agent authenticates with.
    pub fn create(key: String, options: SessionOptions) -> std::io::Result<Arc<Self>> {
        let transport = Transport::to(&options.endpoint, &options.client)?;
        let recorder = Recorder::create(&options.record)?;
        Ok(Self::with(key, options, transport, recorder))
    }

    pub(crate) fn with(
        key: String,
        options: SessionOptions,
        transport: Transport,
        recorder: Recorder,
    ) -> Arc<Self> {
        let (endpoint, profile) = (&options.endpoint, &options.profile);
        let has_tokens = endpoint.dialect.has_tokens();
        let capture = if !has_tokens || options.settings.is_black_box {
            CaptureMode::Off
        } else if !endpoint.has_token_ids {
            CaptureMode::Logprobs
        } else if profile.has_sglext {
            CaptureMode::TokensInSglext
        } else {
            CaptureMode::Tokens
        };
        let budget = BudgetLedger::new(options.settings.budget, options.settings.price);
        Arc::new(Session {
            key,
            transport,
            scrub: endpoint.key.as_ref().and_then(Scrub::of),
            recorder,
            room: Room::new(),
            exchanges: AtomicU64::new(0),
            learned: Learned::new(capture),
            gives_tokens: !capture.id_flags().is_empty() && profile.level == CaptureLevel::Tokens,
            has_live_streams: profile.has_live_streams || !has_tokens,
            thoughts: Thoughts::default(),
            unrecorded: CancellationToken::new(),
            exhausted: CancellationToken::new(),
            hopeless: CancellationToken::new(),
            outages: Arc::default(),
            is_patience_used: AtomicBool::new(false),
            state: Mutex::new(State {
                first_call: None,
                last_activity: Instant::now(),
                open_calls: 0,
                calls: Calls::default(),
                has_been_away: false,
                budget,
                counts: CallCounts::default(),
                log: Log::default(),
            }),
            options,
        })
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn endpoint(&self) -> &Endpoint {
        &self.options.endpoint
    }

    pub fn first_call(&self) -> Option<Instant> {
        self.state().first_call
    }

    /// Whether any call was answered well.
    pub fn has_answers(&self) -> bool {
        self.state().calls.is_answered
    }

    /// How its calls went so far.
    pub fn calls(&self) -> Calls {
        self.state().calls.clone()
    }

    /// Whether the endpoint failed, or was away for a while.
    pub fn has_endpoint_been_away(&self) -> bool {
        self.state().has_been_away
    }

    /// The same, and forgets it: whoever asks sees to it.
    pub fn take_outage(&self) -> bool {
        std::mem::take(&mut self.state().has_been_away)
    }

    /// For how long calls waited for an endpoint that was out of order.
    pub fn outage(&self) -> Duration {
        self.outages.total()
    }

    pub fn spent(&self) -> Spent {
        self.state().budget.spent()
    }

    /// How many calls were answered by a limit instead of a model.
    pub fn budget_stops(&self) -> u64 {
        self.state().budget.stops()
    }

    /// Seconds since the last call began or ended.
    pub fn idle(&self) -> Duration {
        self.state().last_activity.elapsed()
    }

    /// What was noted of its calls, the last ones.
    pub fn call_counts(&self) -> CallCounts {
        self.state().counts
    }

    /// Waits until everything that was recorded so far is on disk; blocks, and calls go on meanwhile.
    pub fn sync_record(&self) -> std::io::Result<()> {
        self.recorder.sync()
    }

    /// How much of the record is written: whole exchanges' frames, also while calls run.
    pub fn recorded_bytes(&self) -> u64 {
        self.recorder.bytes()
    }

    pub fn log(&self) -> String {
        self.state().log.to_string()
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
    pub(crate) fn patience(&self) -> Duration {
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
                let state = self.state();
                let idle = if state.open_calls > 0 {
                    Duration::ZERO
                } else {
                    state.last_activity.elapsed()
                };
                limit.saturating_sub(idle)
            };
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }

    pub(crate) fn next_exchange(&self) -> u64 {
        let mut state = self.state();
        state.first_call.get_or_insert_with(Instant::now);
        self.exchanges.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn record(&self, line: Line) -> Result<(), String> {
        self.recorder
            .append(line)
            .inspect_err(|_| self.unrecorded.cancel())
    }

    /// `is_thinking_disabled` is the agent's own wish. Only engines that give token ids are known to take it as a
    /// setting of the chat template; hosted services refuse what they do not know.
    pub(crate) fn rewrite(&self, tokens_max: Option<u64>, is_thinking_disabled: bool) -> Rewrite {
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
            is_stream_off: !self.has_live_streams,
            sampling: self.sampling(),
            constrained: self.constrained(),
            top_logprobs: settings.top_logprobs,
            without,
        }
    }

    /// Sets aside what a call may use. `Err` is the limit that is reached, which is remembered.
    pub(crate) fn reserve(
        &self,
        body_bytes: usize,
        completion_wanted: Option<u64>,
    ) -> Result<Reservation, Limit> {
        // English and code are about four bytes a token in JSON; the settled number replaces the guess.
        let prompt_guess = body_bytes as u64 / 4;
        let mut state = self.state();
        let is_full = self.recorder.bytes() >= self.options.settings.record_bytes_max;
        let reserved = match is_full {
            true => Err(Limit::RecordBytes),
            false => (state.budget).reserve(prompt_guess, completion_wanted.unwrap_or(8192)),
        };
        match reserved {
            Ok(reservation) => {
                state.open_calls += 1;
                state.last_activity = Instant::now();
                Ok(reservation)
            }
            Err(limit) => {
                state.calls.stop(limit.as_str());
                self.exhausted.cancel();
                Err(limit)
            }
        }
    }

    pub(crate) fn settle(&self, reservation: Reservation, used: Option<Spent>) {
        let mut state = self.state();
        state.budget.settle(reservation, used);
        state.open_calls -= 1;
        state.last_activity = Instant::now();
    }

    pub(crate) fn stop(&self, by: &str) {
        self.state().calls.stop(by);
        self.exhausted.cancel();
    }

    /// The agent sent something that no endpoint would take.
    pub(crate) fn note_refused_request(&self) {
        let verdict = CallVerdict::AgentsDoing(Cause::AgentRequestRefused);
        self.state().calls.note(verdict);
    }

    pub(crate) fn is_hung(&self, silent_since: Instant) -> bool {
        let agent_time = self.options.agent_time;
        self.state().calls.is_hung(silent_since, agent_time)
    }

    pub(crate) fn note(&self, line: CallLine, verdict: CallVerdict, what: What) {
        let mut state = self.state();
        match verdict {
            CallVerdict::Good(_) => state.counts.answered += 1,
            CallVerdict::Failed(_) | CallVerdict::AgentsDoing(_) | CallVerdict::TooLong { .. } => {
                state.counts.failed += 1;
            }
        }
        state.has_been_away |= line.is_late() || matches!(verdict, CallVerdict::Failed(_));
        state.calls.note(verdict);
        if state.calls.failures_in_a_row >= FAILURES_MAX {
            self.hopeless.cancel();
        }
        state.log.add_call(line);
        drop(state);
        (self.options.observe)(what);
    }

    pub(crate) fn log_line(&self, line: String) {
        self.state().log.add(line);
    }

    /// What is sampled with, whatever the agent asks for.
    fn sampling(&self) -> Option<Sampling> {
        match self.options.settings.sampling {
            SamplingPolicy::Pinned(sampling) => Some(sampling),
            SamplingPolicy::Auto if self.gives_tokens => Some(Sampling { temperature: 1.0 }),
            SamplingPolicy::Auto | SamplingPolicy::Agent => None,
        }
    }

    fn constrained(&self) -> ConstraintPolicy {
        let settings = &self.options.settings;
        let usual = match settings.sampling {
            SamplingPolicy::Pinned(_) => ConstraintPolicy::Refuse,
            SamplingPolicy::Auto | SamplingPolicy::Agent => ConstraintPolicy::Keep,
        };
        settings.constrained.unwrap_or(usual)
    }

    /// What an exchange's record says of its logprobs, and of what was not asked for.
    pub(crate) fn known_of_endpoint(&self) -> (Option<LogprobsMode>, Vec<String>) {
        let mode = self.gives_tokens.then_some(self.options.profile.logprobs);
        (mode, self.learned.so_far().refused())
    }

    /// Learns from an endpoint's refusal of `request` to ask for less. `None` when there is nothing to learn from it.
    pub(crate) fn learn_from(&self, refusal: &str, request: &[u8]) -> Option<Lesson> {
        let needs = Needs {
            is_thinking_disabled: self.options.endpoint.is_thinking_disabled,
            sampling: match (self.options.settings.sampling, self.sampling()) {
                (SamplingPolicy::Pinned(_), _) => Pinned::ByPolicy,
                (_, Some(_)) => Pinned::ByDefault,
                (_, None) => Pinned::No,
            },
        };
        self.learned.learn(refusal, request, &needs)
    }

    /// An endpoint that repeats keys is worth a word, though nobody got to see it.
    pub(crate) fn note_echoed_key(&self, exchange: u64) {
        if self.scrub.as_ref().is_some_and(|scrub| scrub.take_found()) {
            let url = &self.options.endpoint.base_url;
            tracing::warn!(url, "the endpoint repeated its API key; it was taken out");
            let text = "the endpoint repeated its API key in an answer; it was taken out";
            self.log_line(format!("#{exchange} {text}"));
        }
    }

    /// A body without the endpoint's key.
    pub(crate) fn scrub_body(&self, body: Bytes) -> Bytes {
        let Some(key) = &self.options.endpoint.key else {
            return body;
        };
        let text = String::from_utf8_lossy(&body);
        let scrubbed = key.scrub(&text);
        match scrubbed == text {
            true => body,
            false => scrubbed.into(),
        }
    }

    /// A text without the endpoint's key.
    pub(crate) fn scrub_text(&self, text: String) -> String {
        match &self.options.endpoint.key {
            Some(key) => key.scrub(&text),
            None => text,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
