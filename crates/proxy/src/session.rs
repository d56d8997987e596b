//! A session, an agent's access to its model: its configuration, and its state, which changes with every call.

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

use crate::calls::{CallSummary, CallVerdict, Problem};
use crate::endpoint::Endpoint;
use crate::lessons::{EndpointLessons, Lesson, Lessons, Requirements, SamplingSource};
use crate::log::{CallLine, SessionLog};
use crate::outbound::Clients;
use crate::patience::Outages;
use crate::policy::{OnOverflow, SamplingPolicy};
use crate::profile::Profile;
use crate::recorder::Recorder;
use crate::remote::RemoteMcpServers;
use crate::request_memory::{NoRoom, RequestMemory, RequestShare};
use crate::scrub::KeyScrubber;
use crate::settings::ModelSettings;
use crate::transport::Transport;

/// Consecutive calls that failed in spite of our own retries, after which the session is hopeless: some agents would
/// retry forever.
const FAILURES_MAX: usize = 5;
/// For calls after one that has used up all patience.
const SECOND_PATIENCE: Duration = Duration::from_secs(10);

/// The configuration of a session.
pub struct SessionOptions {
    pub client: reqwest::Client,
    pub endpoint: Endpoint,
    pub settings: ModelSettings,
    /// The result of the endpoint's probe.
    pub profile: Profile,
    pub on_overflow: OnOverflow,
    /// The file of exchanges; it must not exist yet.
    pub record: PathBuf,
    /// The agent's time limit, if it has one.
    pub agent_time: Option<Duration>,
    /// Called with an event for every finished call.
    pub observe: Box<dyn Fn(What) + Send + Sync>,
    /// The remote MCP servers that the agent may use.
    pub mcp: RemoteMcpServers,
    pub clients: Arc<Clients>,
}

/// An agent's access to its model.
pub struct Session {
    pub(crate) options: SessionOptions,
    key: String,
    pub(crate) transport: Transport,
    /// Removes the endpoint's key from its answers.
    pub(crate) scrub: Option<Arc<KeyScrubber>>,
    recorder: Recorder,
    pub(crate) request_memory: RequestShare,
    exchanges: AtomicU64,
    lessons: EndpointLessons,
    /// Token ids are requested, and the endpoint returns them.
    gives_tokens: bool,
    /// Streams carry everything that whole answers do, so they may be passed on live.
    pub(crate) has_live_streams: bool,
    /// Thoughts that the endpoint needs back in later requests and the agent's dialect cannot carry.
    pub(crate) thoughts: Thoughts,
    /// Cancelled when exchanges can no longer be written.
    unrecorded: CancellationToken,
    /// Cancelled when a limit of the budget, or of the context, was reached.
    exhausted: CancellationToken,
    /// Cancelled when too many consecutive calls failed.
    hopeless: CancellationToken,
    pub(crate) outages: Arc<Outages>,
    /// Patience was used up, and no call has succeeded since.
    pub(crate) is_patience_used: AtomicBool,
    state: Mutex<SessionState>,
}

/// The part of a session that changes with every call.
struct SessionState {
    first_call: Option<Instant>,
    last_activity: Instant,
    open_calls: usize,
    calls: CallSummary,
    /// The endpoint failed, or was unavailable for a while, so its profile may be out of date.
    had_outage: bool,
    budget: BudgetLedger,
    counts: CallCounts,
    log: SessionLog,
}

/// The number of a session's finished calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// Answered by the model.
    pub answered: u64,
    /// Not answered, for any reason.
    pub failed: u64,
}

/// Alternatives per token, of which the endpoint gives fewer than were wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FewerAlternatives {
    pub wanted: u32,
    pub given: u32,
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
        let outages = Arc::<Outages>::default();
        let budget = BudgetLedger::new(options.settings.budget, options.settings.price);
        Arc::new(Session {
            key,
            transport,
            scrub: endpoint.key.as_ref().and_then(KeyScrubber::of),
            recorder,
            request_memory: RequestMemory::of_process().share(Arc::clone(&outages)),
            exchanges: AtomicU64::new(0),
            lessons: EndpointLessons::new(capture, profile.allowed(options.settings.top_logprobs)),
            gives_tokens: !capture.id_flags().is_empty() && profile.level == CaptureLevel::Tokens,
            has_live_streams: profile.has_live_streams || !has_tokens,
            thoughts: Thoughts::default(),
            unrecorded: CancellationToken::new(),
            exhausted: CancellationToken::new(),
            hopeless: CancellationToken::new(),
            outages,
            is_patience_used: AtomicBool::new(false),
            state: Mutex::new(SessionState {
                first_call: None,
                last_activity: Instant::now(),
                open_calls: 0,
                calls: CallSummary::default(),
                had_outage: false,
                budget,
                counts: CallCounts::default(),
                log: SessionLog::default(),
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

    /// How its calls have gone so far.
    pub fn calls(&self) -> CallSummary {
        self.state().calls.clone()
    }

    /// How many alternatives per token the endpoint gives, if it refused as many as were wanted.
    pub fn fewer_alternatives(&self) -> Option<FewerAlternatives> {
        let given = self.lessons.so_far().top_logprobs;
        let wanted = self.options.settings.top_logprobs;
        (given < wanted).then_some(FewerAlternatives { wanted, given })
    }

    /// Whether the endpoint failed, or was unavailable for a while.
    pub fn had_outage(&self) -> bool {
        self.state().had_outage
    }

    /// Like [`Session::had_outage`], and resets it: the caller handles the outage.
    pub fn take_outage(&self) -> bool {
        std::mem::take(&mut self.state().had_outage)
    }

    /// How long calls waited for an endpoint that had failed.
    pub fn outage(&self) -> Duration {
        self.outages.total()
    }

    pub fn spent(&self) -> Spent {
        self.state().budget.spent()
    }

    /// The number of calls that were refused because a limit was reached.
    pub fn budget_stops(&self) -> u64 {
        self.state().budget.stops()
    }

    /// The time since the last call began or ended.
    pub fn idle(&self) -> Duration {
        self.state().last_activity.elapsed()
    }

    pub fn call_counts(&self) -> CallCounts {
        self.state().counts
    }

    /// Blocks until everything recorded so far is on disk. Calls continue meanwhile.
    pub fn sync_record(&self) -> std::io::Result<()> {
        self.recorder.sync()
    }

    /// The size of the record so far, in whole frames even while calls run.
    pub fn recorded_bytes(&self) -> u64 {
        self.recorder.bytes()
    }

    pub fn log(&self) -> String {
        self.state().log.to_string()
    }

    /// The error after which exchanges can no longer be written, if there was one.
    pub fn record_error(&self) -> Option<String> {
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

    /// Returns once so many consecutive calls failed that further ones are pointless.
    pub async fn hopeless(&self) {
        self.hopeless.cancelled().await;
    }

    /// How long a failing call is retried: less once an earlier call has used all patience up.
    pub(crate) fn patience(&self) -> Duration {
        let patience = self.options.settings.upstream_patience;
        match self.is_patience_used.load(Ordering::Relaxed) {
            true => patience.min(SECOND_PATIENCE),
            false => patience,
        }
    }

    /// Returns once no call has been open for this long.
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

    /// How the next request is changed. `is_thinking_disabled` is the agent's choice; it is sent as a setting of the
    /// chat template only to engines that return token ids, since hosted services refuse unknown members.
    pub(crate) fn rewrite(&self, tokens_max: Option<u64>, is_thinking_disabled: bool) -> Rewrite {
        let settings = &self.options.settings;
        let Lessons {
            capture,
            is_template_refused,
            max_tokens_name,
            top_logprobs,
            without,
            ..
        } = self.lessons.so_far();
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
            top_logprobs,
            without,
        }
    }

    /// Reserves what a call may use. `Err` is the limit that was reached, which ends the session's calls.
    pub(crate) fn reserve(
        &self,
        body_bytes: usize,
        completion_wanted: Option<u64>,
    ) -> Result<Reservation, Limit> {
        // English and code take about four bytes per token in JSON; settling replaces this estimate by the real number.
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

    /// Notes that the agent sent a request that is invalid for every endpoint.
    pub(crate) fn note_refused_request(&self) {
        let verdict = CallVerdict::AgentFault(Cause::AgentRequestRefused);
        self.state().calls.note(verdict);
    }

    /// Notes that a request found no memory in time. If others had it, that is no fault of its agent.
    pub(crate) fn note_no_room(&self, no_room: NoRoom) {
        let text = "there was no memory for a request of the agent";
        let verdict = match no_room.is_others_doing {
            true => CallVerdict::Failed(Problem::new(Cause::EngineFailed, text)),
            false => CallVerdict::AgentFault(Cause::AgentRequestRefused),
        };
        self.state().calls.note(verdict);
        self.log_line(text.to_owned());
    }

    pub(crate) fn is_hung(&self, silent_since: Instant) -> bool {
        let agent_time = self.options.agent_time;
        self.state().calls.is_hung(silent_since, agent_time)
    }

    pub(crate) fn note(&self, line: CallLine, verdict: CallVerdict, what: What) {
        let mut state = self.state();
        match verdict {
            CallVerdict::Good(_) => state.counts.answered += 1,
            CallVerdict::Failed(_) | CallVerdict::AgentFault(_) | CallVerdict::TooLong { .. } => {
                state.counts.failed += 1;
            }
        }
        state.had_outage |= line.was_retried() || matches!(verdict, CallVerdict::Failed(_));
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

    /// The sampling that overrides the agent's.
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

    /// For an exchange's record: which distribution its logprobs are of, and the members left out because they were
    /// refused.
    pub(crate) fn capture_notes(&self) -> (Option<LogprobsMode>, Vec<String>) {
        let mode = self.gives_tokens.then_some(self.options.profile.logprobs);
        (mode, self.lessons.so_far().refused())
    }

    /// Learns from a refusal of `request` which parameter to leave out. `None` when there is nothing to learn from it.
    pub(crate) fn learn_from(&self, refusal: &str, request: &[u8]) -> Option<Lesson> {
        let requirements = Requirements {
            is_thinking_disabled: self.options.endpoint.is_thinking_disabled,
            sampling: match (self.options.settings.sampling, self.sampling()) {
                (SamplingPolicy::Pinned(_), _) => SamplingSource::Policy,
                (_, Some(_)) => SamplingSource::Default,
                (_, None) => SamplingSource::Agent,
            },
        };
        self.lessons.learn(refusal, request, &requirements)
    }

    /// Logs that the endpoint echoed its key, although the key was removed.
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

    fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
