//! What the API answers beside results and what `rollcage_model::browse` has. The OpenAPI document and the page's own
//! types are generated from these.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use rollcage_model::browse::rollout::{RolloutRow, Status};
use rollcage_model::event::Event;
use rollcage_model::id::RolloutId;
use rollcage_model::network::Attempt;
use rollcage_model::record::Artifact;
use rollcage_model::view::View;

pub(crate) mod live;

use crate::server::rollouts::catalogue::{AgentView, EndpointView};

/// An answer of 400 or more.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ErrorAnswer {
    /// What went wrong.
    pub(crate) error: ErrorBody,
}

/// What went wrong.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ErrorBody {
    /// For programs.
    pub(crate) code: String,
    /// For people.
    pub(crate) message: String,
}

/// Who may call this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AccessKind {
    /// Whoever has a token.
    Token,
    /// Whoever reaches it.
    Open,
}

/// Whether a caller is signed in. Needs no token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct SessionInfo {
    /// Who may call this server.
    pub(crate) access: AccessKind,
    /// Whether this caller may.
    pub(crate) signed_in: bool,
    /// Whose rollouts the caller sees; null where it may not call.
    pub(crate) owner: Option<String>,
}

/// A browser's sign-in.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignIn {
    /// The server's token.
    pub(crate) token: String,
    /// Whether the page is shown in a frame of another site.
    #[serde(default)]
    pub(crate) framed: bool,
}

/// The server, for a page.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ServerInfo {
    /// As OpenEnv's clients name it.
    pub(crate) name: String,
    /// The program's version.
    pub(crate) version: String,
    /// Whether rollouts can run here.
    pub(crate) sandbox: SandboxState,
    /// Whether a long-lived agent can be kept here.
    pub(crate) live: bool,
    /// The most rollouts of one request.
    pub(crate) count_max: usize,
    /// What a rollout can be exported as.
    pub(crate) formats: Vec<ExportFormat>,
    /// Tasks in the server's folder.
    pub(crate) tasks: usize,
}

/// Whether sandboxes can be started.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct SandboxState {
    /// Whether one was started.
    pub(crate) ready: bool,
    /// Why not, and what to do.
    pub(crate) reason: Option<String>,
}

/// A format of exports.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ExportFormat {
    /// As `format` names it.
    pub(crate) name: String,
    /// What it is for.
    pub(crate) about: String,
}

/// A task that runs at once, without any model.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Preset {
    /// Names it.
    pub(crate) id: String,
    /// In a few words.
    pub(crate) title: String,
    /// What one sees.
    pub(crate) about: String,
    /// The body for `POST /v1/rollouts`.
    pub(crate) request: Map<String, Value>,
}

/// The presets.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Presets {
    /// In the order in which they are shown.
    pub(crate) presets: Vec<Preset>,
}

/// The agents.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Agents {
    /// All of them.
    pub(crate) agents: Vec<AgentView>,
}

/// The endpoints.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Endpoints {
    /// All kinds.
    pub(crate) endpoints: Vec<EndpointView>,
}

/// Which endpoint is asked for its models, beside its kind.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EndpointQuestion {
    /// In place of its own address.
    pub(crate) base_url: Option<String>,
    /// In place of the server's key. It is kept nowhere.
    pub(crate) api_key: Option<String>,
    /// In place of its default model.
    pub(crate) model: Option<String>,
}

/// What came of asking an endpoint for its models.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct EndpointCheck {
    /// Its kind.
    pub(crate) kind: String,
    /// Whether it answered.
    pub(crate) reachable: bool,
    /// Why not.
    pub(crate) error: Option<String>,
    /// The models that it serves, as far as it says.
    pub(crate) models: Vec<String>,
    /// How long it took.
    pub(crate) seconds: f64,
}

/// A request as one would type it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct CommandLine {
    /// For a shell. Never holds a key.
    pub(crate) command: String,
    /// What the command line cannot say, in words.
    pub(crate) notes: Vec<String>,
}

/// Where a rollout that has not ended stands.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct RolloutProgress {
    /// As lists have it.
    #[serde(flatten)]
    pub(crate) row: RolloutRow,
    /// In words, such as `setup [1/3]: make`.
    pub(crate) doing: String,
    /// A served agent's own name for its conversation.
    pub(crate) serve_session_id: Option<String>,
    /// Unix seconds.
    pub(crate) queued_at: f64,
}

/// How a file differs from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FileChange {
    /// It was not there.
    Added,
    /// It was other.
    Changed,
    /// It is gone.
    Removed,
    /// It is the same.
    Same,
    /// What it was, or what it is, is not known.
    Unknown,
}

/// A file of the work directory.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct FileView {
    /// Below the work directory, or absolute.
    pub(crate) path: String,
    /// How it differs from what setup left.
    pub(crate) change: FileChange,
    /// What setup left; null where it was not there, is no text, too long, or not known.
    pub(crate) before: Option<String>,
    /// What was there at the end; null where that is no text, too long, or it is gone.
    pub(crate) after: Option<String>,
    /// Whether a text was cut, to 8000 characters.
    pub(crate) is_cut: bool,
}

/// A page of the work directory's files.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ChangesPage {
    /// Those that changed first, then those of which that is not known, then the others; by path.
    pub(crate) files: Vec<FileView>,
    /// The first one's place.
    pub(crate) start: usize,
    /// How many there are.
    pub(crate) total: usize,
    /// Whether what setup left is known.
    pub(crate) has_start: bool,
}

/// What a rollout tried to reach.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct NetworkPage {
    /// In order of their start, as in the record's `network.jsonl`.
    pub(crate) attempts: Vec<Attempt>,
    /// The first one's place.
    pub(crate) start: usize,
    /// How many there are.
    pub(crate) total: usize,
}

/// A message of the event stream over all rollouts; the name of the server-sent event says which one.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum StreamMessage {
    /// `hello`: the stream begins; whoever was connected before reads its lists again.
    Hello(StreamHello),
    /// `row`: a rollout as lists have it, each time it changes; at most a few times a second for each.
    Row(Box<RolloutRow>),
    /// `removed`: a rollout was deleted.
    Removed(RemovedRollout),
    /// `event`: what happened to a rollout that was asked for with `watch`.
    Event(Box<WatchedEvent>),
    /// `beat`: nothing happened for 15 seconds.
    Beat(StreamBeat),
}

/// The start of a stream.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct StreamHello {
    /// Another one after each start of the server.
    pub(crate) server: String,
    /// Unix seconds on the server.
    pub(crate) now: f64,
}

/// A sign that the connection is alive: `{}`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct StreamBeat {}

/// A rollout that was deleted.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct RemovedRollout {
    /// Which one.
    pub(crate) rollout_id: RolloutId,
}

/// An event of one rollout.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct WatchedEvent {
    /// Counts the rollout's events from 1.
    pub(crate) seq: u64,
    /// What happened.
    #[serde(flatten)]
    pub(crate) event: Event,
}

/// Rollouts that were taken on.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Created {
    /// The first one.
    pub(crate) rollout_id: RolloutId,
    /// All of them.
    pub(crate) rollout_ids: Vec<RolloutId>,
    /// What they have in common.
    pub(crate) group: String,
    /// `queued`.
    pub(crate) status: Status,
}

/// The result of a rollout that has ended.
#[derive(Clone, Serialize, JsonSchema)]
pub(crate) struct EndedRollout {
    /// `ended`.
    pub(crate) status: Status,
    /// The whole result.
    #[serde(flatten)]
    pub(crate) result: View<'static>,
}

/// What came of a wish to end a rollout early.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Cancelled {
    /// Which one.
    pub(crate) rollout_id: RolloutId,
    /// False when it had ended already.
    pub(crate) cancelled: bool,
}

/// What came of a wish to have a rollout graded.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Finalized {
    /// Which one.
    pub(crate) rollout_id: RolloutId,
    /// False when it had ended already.
    pub(crate) finalized: bool,
}

/// A message to an agent.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewMessage {
    /// What to say.
    #[schemars(length(min = 1))]
    pub(crate) text: String,
}

/// A message that waits for its turn.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct MessageQueued {
    /// Whose agent it is for.
    pub(crate) rollout_id: RolloutId,
    /// True.
    pub(crate) queued: bool,
}

/// The text files of a work directory at the end.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Files {
    /// Those that were kept.
    pub(crate) files: Vec<FileSize>,
    /// Paths of files that are there and were not kept.
    pub(crate) files_extra: Vec<String>,
}

/// A file that was kept.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct FileSize {
    /// Absolute; below the work directory in older records.
    pub(crate) path: String,
    /// How many characters were kept of it.
    pub(crate) chars: usize,
}

/// The artifacts of a rollout.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Artifacts {
    /// In the order of their paths.
    pub(crate) artifacts: Vec<Artifact>,
}
